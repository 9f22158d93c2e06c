"""Evaluates a row function on all rows in a pass, or loads the result from an index on disk."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from loadax.core.arguments import integer, optional_flag
from loadax.core.digest import digest_values
from loadax.core.formatting import count_text
from loadax.core.log import log
from loadax.errors import ArgumentError
from loadax.kept.index_folder import Entry, IndexFolder
from loadax.kept.kept_pass import PassOptions, check_index, kept_pass
from loadax.kept.parts import Arrays
from loadax.protocols import Engine
from loadax.reader import Reader
from loadax.row_index.scan import (
    SPAN_ROWS,
    RowFunction,
    RowWork,
    row_spans,
    threads_for,
)
from loadax.work.executors import index_engine


@final
@dataclass(frozen=True)
class Question:
    """A function to evaluate on every row.

    Args:
        verb: Name of the dataset's verb.
        name: Name of the function or leaf, for messages.
        judge: Function that computes the values of a span of rows.
        dtype: Dtype of the values.
        known_as: Identity of the question, as JSON; None: the fingerprint of `function`.
        function: The user's function, if any.
        check: Checks values that were loaded from an index, with the mask of the rows; raises `ValueError`.
        span_rows: Most rows of a span.
    """

    verb: str
    name: str
    judge: RowFunction
    dtype: Any
    known_as: list[str] | None
    function: Callable[..., Any] | None
    check: Callable[[Entry, NDArray[np.bool_]], object]
    span_rows: int = SPAN_ROWS


@final
@dataclass(frozen=True)
class Options:
    """Options of an evaluation.

    Args:
        index: Path of the index folder; None: no index.
        workers: Number of threads; None: chosen from the source.
        executor: What evaluates rows instead of threads; None: threads.
        progress: Whether to show a progress bar; None: if stderr is a terminal.
        key: Identifier of the function in the index, where it is an option of the verb; None: its fingerprint.
    """

    index: str | os.PathLike[str] | None
    workers: int | None
    executor: Engine | None
    progress: bool | None
    key: str | None = None


def scan_options(
    index: Any, workers: Any, executor: Any, progress: Any, key: Any = None
) -> Options:
    """The options, checked. The path of the index is checked when it is opened.

    Raises:
        ArgumentError: When one can't be used.
    """
    if workers is not None:
        workers = integer("workers", workers, 1)
    return Options(
        index,
        workers,
        index_engine(executor, index),
        optional_flag("progress", progress),
        key,
    )


def answers(
    question: Question, reader: Reader, met: NDArray[np.bool_], options: Options
) -> tuple[NDArray[Any], str]:
    """Computes or loads the values of the rows in `met`, ascending, and their digest.

    Raises:
        ArgumentError: When a map is random, the index path is invalid, or there is none in a run of several processes.
        SourceError: When the index can't be read or written.
    """
    if reader.traits.random:
        raise ArgumentError(
            f"{question.verb}() reads rows once; call it before random maps and maps "
            "with_epoch=True"
        )
    if options.index is None:
        folder = None
    else:
        folder = IndexFolder(options.index)
    check_index(folder, question.verb, count_text(len(met), "row"))
    if folder is None:
        known_as = None
    else:
        known_as = _known_as(question, reader, options)
    label = f"{question.verb} {question.name.partition(' ')[0]}"

    def merge(parts: Iterator[Arrays]) -> Entry:
        values = np.concatenate(
            [np.empty(0, question.dtype), *(part["values"] for part in parts)]
        )
        if folder is None:
            rows = count_text(int(met.sum()), "row")
            text = "%s %s: read %s; pass index=PATH to store the result"
            log.info(text, question.verb, question.name, rows)
        return Entry({"answers": values}, {"digest": digest_values(values)})

    entry = kept_pass(
        None if known_as is None else folder,
        question.verb,
        lambda: {"function or key": known_as, **_identity(reader, met)},
        lambda entry: question.check(entry, met),
        lambda: RowWork(
            row_spans(reader, met, question.span_rows),
            question.judge,
            question.dtype,
            label,
        ),
        merge,
        PassOptions(
            threads_for(reader, options.workers), options.executor, options.progress
        ),
    )
    return entry.arrays["answers"], entry.facts["digest"]


def _known_as(
    question: Question, reader: Reader, options: Options
) -> list[str] | None:
    """Identity of the question; None, with a warning, if changes of it or of a map can be invisible."""
    from loadax.row_index.index_identity import CACHED, shared_identity

    if question.function is None:
        own = []
    else:
        own = [question.function]
    advice = "pass key=, a text that you change with it"
    if question.verb in ("split_by", "offsets"):
        advice = CACHED
    return shared_identity(
        own, question.known_as, reader, options.index, options.executor, advice
    )


def _identity(reader: Reader, met: NDArray[np.bool_]) -> dict[str, Any]:
    """Everything besides the question that the values depend on; asked for where there is an index."""
    from loadax.row_index.index_identity import data_identity

    return data_identity(reader, met)
