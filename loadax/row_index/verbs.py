"""Verbs on orders that ask a function of every row: `filter`, `split_by`."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadax.core.arguments import function as checked_function, index_key, shown
from loadax.core.digest import digest_values
from loadax.core.formatting import count_text, name_of
from loadax.errors import ArgumentError, LeafTypeError
from loadax.kept.index_folder import Entry, check_digest
from loadax.plan.split import again, group_parts
from loadax.plan.subset import met_rows, only_rows, only_spans, rows_in_order
from loadax.protocols import Integers, Order
from loadax.reader import Reader
from loadax.row_index.build import Options, Question, answers
from loadax.row_index.groups import by_leaf, words_of_function
from loadax.row_index.scan import RowSpan, results


def filter_rows(
    order: Order,
    reader: Reader,
    function: Callable[..., Any],
    key: str | None,
    options: Options,
    remedy: str = "check its result for one: fn(ds[0])",
) -> Order:
    """Keeps the rows for which a function returns True.

    Args:
        order: Order of the rows.
        reader: Reader of the rows.
        function: Function of one example.
        key: Identifier of the function; None: its fingerprint.
        options: Options of the evaluation.
        remedy: End of the error when none of some rows are kept.

    Raises:
        ArgumentError: When no row is kept, or there is a key, but no index.
        LeafTypeError: When the function does not return a bool; names the row.
    """
    name = name_of(function)
    index_key(key, options.index, "fn changes")

    met = met_rows(order, "filter", reader.num_rows)
    if key is None:
        known_as = None
    else:
        known_as = ["key", key]
    question = Question(
        "filter",
        name,
        partial(_accepted, function, name),
        np.int64,
        known_as,
        function,
        _check_accepted,
    )
    rows, digest = answers(question, reader, met, options)
    if not len(rows):
        if not met.any():
            remedy = "filter a dataset with rows"
        raise ArgumentError(
            f"filter {name} keeps none of {count_text(int(met.sum()), 'row')}; "
            f"{remedy}"
        )
    return only_rows(order, rows, ("filter", digest))


def split_groups(
    order: Order,
    reader: Reader,
    key: Any,
    fraction: Any,
    seed: int,
    options: Options,
    gap: int | None = None,
) -> list[Order]:
    """Splits into orders that share no group: about `fraction` of the groups, and the rest, or parts by counts.

    Args:
        order: Order to split.
        reader: Reader of the rows.
        key: Name of a leaf, or a function of an example.
        fraction: Share of the groups in the first of two parts, counts of groups, or a number of equal parts.
        seed: Seed of the draws of groups.
        options: Options of the pass over all keys.
        gap: Number of groups between the parts, which are spans of groups; None: groups are drawn.

    Raises:
        ArgumentError: When `key` is not the name of a leaf of integers or text, or a part would be empty.
        LeafTypeError: When a row's key is neither; names the row.
    """
    met = met_rows(order, "split_by", reader.num_rows)
    if isinstance(key, str):
        path, judge = by_leaf(reader.spec, key)
        question = Question(
            "split_by", key, judge, np.uint64, ["leaf", path], None, _check_words
        )
    elif callable(key):
        checked_function(
            "key", key, "the name of a leaf, or a function of one example", "example"
        )
        words_of = partial(words_of_function, key)
        question = Question(
            "split_by", name_of(key), words_of, np.uint64, None, key, _check_words
        )
    else:
        raise ArgumentError(
            f"key={key!r}: pass the name of a leaf, or a function of one example"
        )
    words, _ = answers(question, reader, met, options)
    rows = np.flatnonzero(met)
    if gap is not None:
        ordered = rows_in_order(order, "split_by")
        words = words[np.searchsorted(rows, ordered)]
        rows = ordered
    hash_key = (seed, "split_by", *again(order, "split_by"))
    share, part_of = group_parts(words, fraction, hash_key, gap)
    parts: list[Order] = []
    for index in range(len(share) if isinstance(share, list) else 2):
        selected = rows[part_of == index]
        name: int = index
        arguments = f"{shown(share)} groups, seed={seed}, part {index}"
        if not isinstance(share, list):
            name = index == 0  # states of halves have bools
            arguments = ""
        if gap is None:
            rule = ("split_by", share, seed, name, digest_values(selected))
            parts.append(only_rows(order, selected, rule, arguments))
        else:
            selected = np.unique(selected)
            digest = digest_values(selected)
            spans = ("split_by", share, "contiguous", gap, name, digest)
            parts.append(only_spans(order, selected, spans))
    return parts


def _accepted(function: Callable[..., Any], name: str, span: RowSpan) -> Integers:
    """The rows of a span for which a function returns True."""
    outcomes = results(span, function, f"filter {name}")
    return np.array(
        [row for row, answer in outcomes if _truth(answer, name, row)], np.int64
    )


def _check_accepted(entry: Entry, met: NDArray[np.bool_]) -> None:
    """Checks the rows of an index of `filter`."""
    rows = check_digest(entry, "answers", np.int64, None, 0, len(met) - 1)
    if (np.diff(rows) <= 0).any() or not met[rows].all():
        raise ValueError("its rows don't ascend, or are not rows of this dataset")


def _check_words(entry: Entry, met: NDArray[np.bool_]) -> None:
    """Checks the hashes of an index of `split_by`: one for each row."""
    check_digest(entry, "answers", np.uint64, int(met.sum()))


def _truth(answer: Any, name: str, row: int) -> bool:
    if isinstance(answer, bool):
        return answer
    if (
        getattr(answer, "shape", None) == ()
        and getattr(answer, "dtype", None) == np.bool
    ):
        return bool(answer)
    if answer is None:
        hint = "; did you forget to return?"
    else:
        hint = ", such as bool(…)"
    raise LeafTypeError(
        f"filter {name} returned {answer!r:.80} for row {row}; return True or "
        f"False{hint}"
    )
