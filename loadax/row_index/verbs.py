"""Verbs on orders that keep lists of rows: `filter`, `exclude`, `select`, `sample`, `split_by`."""

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadax import seeds
from loadax.core.arguments import function as checked_function, index_key, shown
from loadax.core.formatting import count_text, name_of
from loadax.errors import ArgumentError, LeafTypeError, RowIndexError
from loadax.plan.sample import Sampled, integer_weights
from loadax.plan.select import Selected
from loadax.plan.slice import Sliced
from loadax.plan.split import again, below as hashes_below, drawn_counts, given_counts, run_counts
from loadax.plan.subset import keep_rows, keep_runs, leave_out_rows, met_rows, rows_in_order
from loadax.protocols import Integers, Order
from loadax.reader import Reader
from loadax.row_index.build import Options, Question, answers
from loadax.row_index.groups import by_leaf, words_of_function
from loadax.row_index.scan import Run, results
from loadax.sources.io.index_folder import Entry, check_digest, digest_values


def keep(
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
    known_as = None if key is None else ["key", key]
    question = Question("filter", name, partial(_kept, function, name), np.int64, known_as, function, _check_kept)
    rows, digest = answers(question, reader, met, options)
    if not len(rows):
        remedy = remedy if met.any() else "filter a dataset with rows"
        raise ArgumentError(f"filter {name} keeps none of {count_text(int(met.sum()), 'row')}; {remedy}")
    return keep_rows(order, rows, ("filter", digest))


def leave_out(order: Order, num_rows: int, rows: Any) -> Order:
    """Drops the rows of a list.

    Raises:
        ArgumentError: When it is not a list of row numbers, or contains all rows.
        RowIndexError: When a row is out of range.
    """
    listed = _integers(_listed(rows, "rows"), "rows")
    wrong = listed[(listed < 0) | (listed >= num_rows)]
    if len(wrong):
        raise RowIndexError(f"exclude(): row {wrong[0]} is out of range; pass rows from 0 on, below {num_rows}")
    listed = np.unique(listed)
    left = leave_out_rows(order, listed, ("exclude", digest_values(listed)))
    if not left.size:
        raise ArgumentError(f"exclude() leaves none of {order.size} rows; pass fewer than all")
    return left


def select(order: Order, rows: Any, name: str) -> Sliced | Selected:
    """The listed positions of an order, in every epoch.

    Args:
        order: Any order.
        rows: Positions; negative ones count from the end. Or a mask of bools.
        name: Name of the argument, for messages.

    Raises:
        ArgumentError: When it is neither.
        RowIndexError: When a position is out of range.
    """
    if isinstance(rows, range):  # evenly spaced: no list is kept
        ends = rows[:1].start, rows[-1:].start
        _check_positions(np.array(ends[: len(rows)], object), order.size, name)
        if len(rows) == 0:
            return Sliced(order, 0, 1, 0)
        if (ends[0] < 0) == (ends[1] < 0):
            return Sliced(order, ends[0] % order.size, rows.step, len(rows))
    if isinstance(rows, set | frozenset):
        raise ArgumentError(f"{name}={rows!r:.80} is a set, which has no order; pass sorted({name})")
    listed = _listed(rows, name)
    if listed.dtype.kind == "b":
        if len(listed) != order.size:
            what = f"{name} is a mask of {len(listed)} bools, and the dataset has {order.size} rows"
            raise ArgumentError(f"{what}; pass one for each row, or a list of positions", argument=name)
        listed = np.flatnonzero(listed)
    given = _integers(listed, name)
    _check_positions(listed, order.size, name)
    positions = np.where(given < 0, given + order.size, given)
    return Selected(order, positions, ("select", digest_values(positions)))


def sample(order: Order, weights: Any, size: int, seed: int) -> Order:
    """Draws positions of an order with replacement, in proportion to weights.

    Args:
        order: Order to draw from.
        weights: A weight for each position.
        size: Number of draws in an epoch.
        seed: Seed of the draws.

    Raises:
        ArgumentError: When the order changes every epoch, or the weights can't be used; names the position.
    """
    if order.varies:
        raise ArgumentError(
            "sample() weighs positions, which have other rows in every epoch here; sample before mixing or shuffling"
        )
    if not order.size:
        raise ArgumentError("sample() of a dataset without rows has nothing to draw; pass one with rows")
    try:
        given = np.asarray(weights)
    except ValueError:  # ragged
        given = np.asarray(None)
    if given.ndim != 1 or given.dtype.kind not in "biuf":
        raise ArgumentError(f"weights={shown(weights)}: pass a flat list of numbers, one a row")
    if len(given) != order.size:
        raise ArgumentError(f"weights has {len(given)} entries; pass {order.size}, one a row", argument="weights")
    wrong = np.flatnonzero(~(np.isfinite(given) & (given >= 0)))
    if len(wrong):
        raise ArgumentError(f"weights[{wrong[0]}]={given[wrong[0]]}: pass finite numbers from 0")
    if not given.any():
        raise ArgumentError("weights are all zero; give at least one row a positive weight", argument="weights")
    ends = np.cumsum(integer_weights(given))
    return Sampled(order, ends, size, seed, digest_values(ends))


def split_groups(
    order: Order, reader: Reader, key: Any, fraction: Any, seed: int, options: Options, gap: int | None = None
) -> list[Order]:
    """Splits into orders that share no group: about `fraction` of the groups, and the rest, or parts by counts.

    Args:
        order: Order to split.
        reader: Reader of the rows.
        key: Name of a leaf, or a function of an example.
        fraction: Share of the groups in the first of two parts, counts of groups, or a number of equal parts.
        seed: Seed of the draws of groups.
        options: Options of the pass over all keys.
        gap: Number of groups between the parts, which are runs of groups; None: groups are drawn.

    Raises:
        ArgumentError: When `key` is not the name of a leaf of integers or text, or a part would be empty.
        LeafTypeError: When a row's key is neither; names the row.
    """
    met = met_rows(order, "split_by", reader.num_rows)
    if isinstance(key, str):
        path, judge = by_leaf(reader.spec, key)
        question = Question("split_by", key, judge, np.uint64, ["leaf", path], None, _check_words)
    elif callable(key):
        checked_function("key", key, "the name of a leaf, or a function of one example", "example")
        words_of = partial(words_of_function, key)
        question = Question("split_by", name_of(key), words_of, np.uint64, None, key, _check_words)
    else:
        raise ArgumentError(f"key={key!r}: pass the name of a leaf, or a function of one example")
    words, _ = answers(question, reader, met, options)
    rows = np.flatnonzero(met)
    if gap is not None:
        return _group_runs(order, rows, words, fraction, gap)
    hash_key = (seed, "split_by", *again(order, "split_by"))
    counts = given_counts(fraction)
    if counts is not None:
        return _group_counts(order, rows, words, counts, hash_key)
    first = hashes_below(seeds.derive(*hash_key, words), fraction)

    def side(chosen: NDArray[np.bool_], name: bool) -> Order:
        selected = rows[chosen]
        return keep_rows(order, selected, ("split_by", fraction, seed, name, digest_values(selected)))

    return [side(first, True), side(~first, False)]


def _group_counts(
    order: Order, rows: Integers, words: NDArray[np.uint64], given: list[int] | int, hash_key: tuple[Any, ...]
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
        parts.append(keep_rows(order, selected, rule, arguments))
    return parts


def _group_runs(order: Order, rows: Integers, words: NDArray[np.uint64], fraction: Any, gap: int) -> list[Order]:
    """Splits into runs of groups, which are in the order of their first positions.

    Args:
        order: Order to split.
        rows: Its rows, ascending.
        words: Hash of the group of each row.
        fraction: Share of the groups in the first of two parts, counts, or a number of equal parts.
        gap: Number of groups between two parts.
    """
    ordered = rows_in_order(order, "split_by")
    _, firsts, group = np.unique(words[np.searchsorted(rows, ordered)], return_index=True, return_inverse=True)
    turn = np.empty_like(firsts)
    turn[np.argsort(firsts)] = np.arange(len(firsts))
    counts, halves = run_counts(fraction, len(firsts), gap, "group"), given_counts(fraction) is None
    given = fraction if halves else counts
    parts: list[Order] = []
    start = 0
    for index, count in enumerate(counts):
        selected = np.unique(ordered[(turn[group] >= start) & (turn[group] < start + count)])
        name = index == 0 if halves else index  # states of halves have bools
        parts.append(keep_runs(order, selected, ("split_by", given, "contiguous", gap, name, digest_values(selected))))
        start += count + gap
    return parts


def _kept(function: Callable[..., Any], name: str, run: Run) -> Integers:
    """The rows of a run for which a function returns True."""
    outcomes = results(run, function, f"filter {name}")
    return np.array([row for row, answer in outcomes if _truth(answer, name, row)], np.int64)


def _check_kept(entry: Entry, met: NDArray[np.bool_]) -> None:
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
    if getattr(answer, "shape", None) == () and getattr(answer, "dtype", None) == np.bool:
        return bool(answer)
    hint = "; did you forget to return?" if answer is None else ", such as bool(…)"
    raise LeafTypeError(f"filter {name} returned {answer!r:.80} for row {row}; return True or False{hint}")


def _check_positions(listed: NDArray[Any], size: int, name: str) -> None:
    wrong = listed[(listed < -size) | (listed >= size)]
    if len(wrong):
        what = f"position {wrong[0]} is out of range for a dataset of length {size}"
        raise RowIndexError(f"{name}: {what}; pass positions from 0 on, or from -1 backwards")


def _listed(rows: Any, name: str) -> NDArray[Any]:
    """The rows of a list, unchecked."""
    if isinstance(rows, str | os.PathLike):
        remedy = "pass the numbers in it: numpy.load(path), or numpy.loadtxt(path, int) of a text file"
        raise ArgumentError(f"{name}={shown(os.fspath(rows))} is a path; {remedy}")
    try:
        listed = np.asarray(rows if hasattr(rows, "__array__") else list(rows))
    except (TypeError, ValueError):
        raise ArgumentError(f"{name}={rows!r:.80}: pass a list or an array of row numbers") from None
    if listed.ndim != 1:
        what = f"{name} has {listed.ndim} dimensions: {listed.dtype}{list(listed.shape)}"
        raise ArgumentError(f"{what}; pass a flat list, such as {name}.reshape(-1)", argument=name)
    return listed


def _integers(listed: NDArray[Any], name: str) -> Integers:
    if listed.dtype.kind == "b":
        raise ArgumentError(f"{name} is a mask of True and False; pass row numbers: numpy.flatnonzero(mask)")
    if listed.size and listed.dtype.kind not in "iu":
        raise ArgumentError(f"{name} contains {listed.dtype}; pass row numbers, as integers")
    return listed.astype(np.int64)
