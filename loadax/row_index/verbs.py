"""Verbs on orders that ask a function of every row: `filter`, `split_by`."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadax import seeds
from loadax.core.arguments import function as checked_function, index_key, shown
from loadax.core.digest import digest_values
from loadax.core.formatting import count_text, name_of
from loadax.errors import ArgumentError, LeafTypeError
from loadax.kept.index_folder import Entry, check_digest
from loadax.plan.split import (
    again,
    below as hashes_below,
    drawn_counts,
    given_counts,
    span_counts,
)
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
        return _group_spans(order, rows, words, fraction, gap)
    hash_key = (seed, "split_by", *again(order, "split_by"))
    counts = given_counts(fraction)
    if counts is not None:
        return _group_counts(order, rows, words, counts, hash_key)
    first = hashes_below(seeds.derive(*hash_key, words), fraction)

    def side(chosen: NDArray[np.bool_], name: bool) -> Order:
        selected = rows[chosen]
        return only_rows(
            order,
            selected,
            ("split_by", fraction, seed, name, digest_values(selected)),
        )

    return [side(first, True), side(~first, False)]


def _group_counts(
    order: Order,
    rows: Integers,
    words: NDArray[np.uint64],
    given: list[int] | int,
    hash_key: tuple[Any, ...],
) -> list[Order]:
    """Splits into parts of exactly some counts of groups: those with the lowest hashes are the first part.

    Args:
        order: Order to split.
        rows: Its rows, ascending.
        words: Hash of the group of each row.
        given: Number of groups of each part, or a number of equal parts.
        hash_key: Seed of the hashes, and what else they are derived from.
    """
    named, group = np.unique(words, return_inverse=True)
    counts = drawn_counts(given, len(named), "group")
    part_of = np.empty(len(named), np.int64)
    ranking = np.argsort(np.asarray(seeds.derive(*hash_key, named)), kind="stable")
    part_of[ranking] = np.repeat(np.arange(len(counts)), counts)
    parts: list[Order] = []
    for index in range(len(counts)):
        selected = rows[part_of[group] == index]
        arguments = f"{shown(counts)} groups, seed={hash_key[0]}, part {index}"
        rule = ("split_by", counts, hash_key[0], index, digest_values(selected))
        parts.append(only_rows(order, selected, rule, arguments))
    return parts


def _group_spans(
    order: Order, rows: Integers, words: NDArray[np.uint64], fraction: Any, gap: int
) -> list[Order]:
    """Splits into spans of groups, which are in the order of their first positions.

    Args:
        order: Order to split.
        rows: Its rows, ascending.
        words: Hash of the group of each row.
        fraction: Share of the groups in the first of two parts, counts, or a number of equal parts.
        gap: Number of groups between two parts.
    """
    ordered = rows_in_order(order, "split_by")
    _, firsts, group = np.unique(
        words[np.searchsorted(rows, ordered)], return_index=True, return_inverse=True
    )
    turn = np.empty_like(firsts)
    turn[np.argsort(firsts)] = np.arange(len(firsts))
    counts = span_counts(fraction, len(firsts), gap, "group")
    halves = given_counts(fraction) is None
    if halves:
        given = fraction
    else:
        given = counts
    parts: list[Order] = []
    start = 0
    for index, count in enumerate(counts):
        selected = np.unique(
            ordered[(turn[group] >= start) & (turn[group] < start + count)]
        )
        name = index == 0 if halves else index  # states of halves have bools
        parts.append(
            only_spans(
                order,
                selected,
                ("split_by", given, "contiguous", gap, name, digest_values(selected)),
            )
        )
        start += count + gap
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
