"""Evaluates a row function on all rows, or takes the result from an index on disk."""

import hashlib
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from loadax.core.distributed import Process, this_process
from loadax.core.fingerprint import fingerprint
from loadax.core.spec import flatten_spec, leaf_arrays
from loadax.errors import ArgumentError
from loadax.reader import Reader
from loadax.row_index.identity import identify, spread, update
from loadax.row_index.multiprocess import compute_together
from loadax.row_index.scan import RowFunction, ScanProgress, plan_runs, read_run, scan, threads_for
from loadax.row_index.store import DAMAGED, Identity, Loaded, digest_of, load, save
from loadax.sources.io.paths import local_path
from loadax.writing.progress import progress_bar

_SAMPLE = 64  # rows whose contents tell data from other data of the same shape

_log = logging.getLogger("loadax")


@final
@dataclass(frozen=True)
class Question:
    """What is asked of every row.

    Args:
        verb: of the dataset.
        name: of the function or leaf that answers, for people.
        judge: answers for a run of rows.
        dtype: of what `judge` gives.
        known_as: what tells this question from others, as JSON; None: `function` does.
        function: that answers.
    """

    verb: str
    name: str
    judge: RowFunction
    dtype: Any
    known_as: list[str] | None
    function: Callable[..., Any] | None


@final
@dataclass(frozen=True)
class Options:
    """How it is looked at.

    Args:
        index: path of the file where the answers are kept.
        workers: threads.
        progress: whether to show a bar; None: when stderr is a terminal.
    """

    index: str | os.PathLike[str] | None
    workers: int | None
    progress: bool | None


def answers(question: Question, reader: Reader, met: NDArray[np.bool_], options: Options) -> Loaded:
    """The answers for the rows that are met, ascending, and their digest.

    Raises:
        ArgumentError: when a map is random, the index can't lie where it should, or several processes have no index to
            share.
        SourceError: when the index can't be written, or other processes make no progress.
    """
    process = this_process()
    if reader.random:
        raise ArgumentError(
            f"{question.verb}() looks at each row once, but a map before it is random; "
            f"{question.verb} first, and map at random behind it"
        )
    path = _path(options.index, question, process)
    known_as = None if path is None else _known_as(question, path, process)
    if path is None or known_as is None:
        values = _look(question, reader, met, options, Process(0, 1), lambda _: None)
        if path is None:
            _log.info(
                "%s %s: looked at %d rows; index=PATH would keep what was found",
                question.verb,
                question.name,
                met.sum(),
            )
        return Loaded(values, digest_of(values), None)
    identity = {"verb": question.verb, "question": known_as, **_identity(reader, met)}
    loaded = load(path, identity)
    if loaded.values is not None:
        _log.info("index %s: read", path)
        return loaded
    if loaded.differs == DAMAGED:
        _log.warning("index %s is damaged (its contents are not what its digest says): it is built anew", path)
    elif loaded.differs is not None:
        _log.warning(
            "index %s is another one (its %s differs): it is built anew",
            path,
            _DIFFERS.get(loaded.differs, loaded.differs),
        )
    if process.count > 1:
        return compute_together(
            path, identity, process, lambda beat: _look(question, reader, met, options, process, beat)
        )
    values = _look(question, reader, met, options, process, lambda _: None)
    loaded = Loaded(values, save(path, identity, values), None)
    _log.info("index %s: written", path)
    return loaded


_DIFFERS = {
    "loadax index": "version",
    "question": "function or key",
    "data": "dataset",
    "sample": "sample of the rows' contents",
    "memory": "contents",
    "files": "files' names, sizes or times of change",
}


def _path(index: Any, question: Question, process: Process) -> Path | None:
    if index is None:
        if process.count > 1:
            raise ArgumentError(
                f"{question.verb}() without index=, in a run of {process.count} processes: "
                "each would look at all rows; pass index=PATH on a file system that all of them see, "
                "then each looks at its share, or build the index before the run: "
                f"`loadax index SRC --{question.verb.replace('_', '-')} MODULE:FUNCTION --out PATH`"
            )
        return None
    path = local_path(index) if isinstance(index, str | os.PathLike) else None
    if path is None:
        raise ArgumentError(
            f"index={index!r}: pass the path of a local file, or of one on a file system that is mounted"
        )
    if path.is_dir():
        raise ArgumentError(f"index={os.fspath(index)!r} is a folder; pass the path of a file in it")
    return path


def _known_as(question: Question, path: Path, process: Process) -> list[str] | None:
    """What tells the question from others; None, and a log line, when nothing does."""
    if question.known_as is not None:
        return question.known_as
    assert question.function is not None
    digest, unknown = fingerprint(question.function)
    if unknown is None:
        return ["code", digest]
    hint = (
        "pass key=, a text of your own that you change with it" if question.verb == "filter" else "use a plain function"
    )
    text = f"{question.verb} {question.name} can't be recognised when it changes (it depends on {unknown}); {hint}"
    if process.count > 1:
        raise ArgumentError(f"{text}: {process.count} processes share an index, and must know that it is this one")
    _log.warning("index %s is neither read nor written, and all rows are looked at: %s", path, text)
    return None


def _identity(reader: Reader, met: NDArray[np.bool_]) -> Identity:
    """What the answers depend on beside the question: which rows, as which maps make them.

    Shuffles and repeats don't matter.
    """
    specs, structure = flatten_spec(reader.spec)
    data = {
        "rows": len(met),
        "met": "all" if met.all() else hashlib.sha256(np.packbits(met).data).hexdigest()[:16],
        "maps": reader.describe(),
        "functions": [fingerprint(each.function).digest for each in reader.maps],
        "examples": [
            [path, list(spec.shape), str(spec.dtype)] for path, spec in zip(structure.paths, specs, strict=True)
        ],
    }
    return {"data": data, "sample": _sample(reader, met), **identify(reader.source)}


def _sample(reader: Reader, met: NDArray[np.bool_]) -> str:
    """A hash of what a few rows hold, evenly spaced."""
    rows = np.arange(len(met)) if met.all() else np.flatnonzero(met)
    rows = rows[spread(len(rows), _SAMPLE)]
    digest = hashlib.sha256()
    if len(rows):
        for _, example in read_run(reader, rows, ScanProgress()).examples():
            for leaf in leaf_arrays(example):
                update(digest, leaf)
    return digest.hexdigest()[:16]


def _look(
    question: Question,
    reader: Reader,
    met: NDArray[np.bool_],
    options: Options,
    process: Process,
    beat: Callable[[int], None],
) -> NDArray[Any]:
    """The answers for this process's share of the rows."""
    workers = threads_for(reader, options.workers)
    runs = plan_runs(reader, met, workers)
    mine = runs[len(runs) * process.index // process.count : len(runs) * (process.index + 1) // process.count]
    total = sum(int(met[start:end].sum()) for start, end in mine.tolist()) if process.count > 1 else int(met.sum())
    with progress_bar(f"{question.verb} {question.name.partition(' ')[0]}", total, "row", options.progress) as shown:

        def done(rows: int) -> None:
            shown(rows)
            beat(rows)

        found = scan(reader, met, mine, question.judge, workers, done)
    return np.concatenate([np.empty(0, question.dtype), *found])
