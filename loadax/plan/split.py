"""Splits: at random, by a hash of each row's number and the seed, or into spans of rows.

A split by fraction compares each hash with a threshold, so appended rows never change a row's side. A split by counts
sorts by the hashes, so appended rows move only a few others. Spans of rows are slices, which keep no list.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadax import seeds
from loadax.core.arguments import dimensions, integer, number, shown
from loadax.core.formatting import count_text
from loadax.core.warn import warn_user
from loadax.errors import ArgumentError
from loadax.plan.order import orders_below
from loadax.plan.slice import Sliced
from loadax.plan.subset import met_rows, only_rows, only_where
from loadax.protocols import Integers, Order

_FRACTION = "a number between 0 and 1, the fraction in the first part"
# What `Dataset.split` takes, for messages
SPLITS = (
    f"{_FRACTION}; a number of equal parts, 2 or more; or a list of counts, such as "
    "[800, 100, 100]"
)

_PERCENTAGES = range(50, 100, 5)


def checked_fraction(fraction: Any, remedy: str = _FRACTION) -> float:
    """The fraction of a split, between 0 and 1.

    Raises:
        ArgumentError: Otherwise; ends in `remedy`.
    """
    share = number("fraction", fraction, remedy)
    if not 0 < share < 1:
        raise ArgumentError(f"fraction={fraction!r}: pass {remedy}")
    return share


def counts_of(order: Order, num_rows: int, fraction: Any) -> list[int] | None:
    """Number of rows of each part of a split; None for a split by a fraction.

    Args:
        order: Order to split.
        num_rows: Number of rows of its source.
        fraction: A list of counts, a number of equal parts, or anything else.

    Raises:
        ArgumentError: When a count is not positive, or there are more parts than rows.
    """
    counts = given_counts(fraction)
    if not isinstance(counts, int):
        return counts
    return equal_counts(counts, int(met_rows(order, "split", num_rows).sum()), "row")


def given_counts(fraction: Any) -> list[int] | int | None:
    """The counts of a split, or its number of equal parts; None for a split by a fraction.

    Raises:
        ArgumentError: When a count is not positive, or there are less than two parts.
    """
    if dimensions(fraction) or (
        isinstance(fraction, Sequence) and not isinstance(fraction, str | bytes)
    ):
        if not len(fraction):
            raise ArgumentError(f"fraction={fraction!r}: pass {SPLITS}")
        remedy = (
            "a number, at least 1; for fractions, split twice: first with 0.8, and "
            "the rest with 0.5"
        )
        return [
            integer(f"fraction[{index}]", count, 1, remedy=remedy)
            for index, count in enumerate(fraction)
        ]
    if isinstance(fraction, bool) or not hasattr(fraction, "__index__"):
        return None
    return integer("fraction", fraction, 2, remedy=SPLITS)


def warn_of_percentage(fraction: Any) -> None:
    """Warns of a number of parts that is more likely meant as a percentage."""
    if isinstance(fraction, int) and fraction in _PERCENTAGES:
        warn_user(
            f"fraction={fraction} makes {count_text(fraction, 'part')} of equal "
            f"size; for {fraction} % in the first of two parts, pass "
            f"{fraction / 100}"
        )


def checked_group_split(
    fraction: Any, seed: int, contiguous: bool, gap: int
) -> tuple[Any, int | None]:
    """The fraction or counts of a split by groups, and the number of groups between its parts; None: they are drawn.

    Raises:
        ArgumentError: When a value can't be used, or two don't go together.
    """
    if given_counts(fraction) is None:
        fraction = checked_fraction(fraction, SPLITS)
    if contiguous and seed:
        raise ArgumentError(
            f"seed={seed}: a contiguous split draws nothing; leave seed= out"
        )
    if gap and not contiguous:
        raise ArgumentError(
            f"gap={gap} is for runs of groups; pass contiguous=True as well"
        )
    return fraction, gap if contiguous else None


def equal_counts(parts: int, total: int, unit: str) -> list[int]:
    """Number of rows, or groups, of each of some parts of equal size.

    Args:
        parts: Number of parts.
        total: Number of rows, or groups.
        unit: Name of one.

    Raises:
        ArgumentError: When there are more parts than rows.
    """
    if parts > total:
        if total > 1:
            remedy = f"pass at most {total}"
        else:
            remedy = "split a dataset of 2 or more"
        raise ArgumentError(
            f"fraction={parts}: {count_text(parts, 'part')} of "
            f"{count_text(total, unit)} would leave some empty; {remedy}"
        )
    least, larger = divmod(total, parts)
    return [least + 1] * larger + [least] * (parts - larger)


def drawn_counts(counts: list[int] | int, total: int, unit: str) -> list[int]:
    """Number of groups of each part of a split by counts.

    Args:
        counts: Number of groups of each part, or a number of equal parts.
        total: Number of groups.
        unit: Name of one.

    Raises:
        ArgumentError: When the counts don't add up, or there are more parts than groups.
    """
    if isinstance(counts, int):
        return equal_counts(counts, total, unit)
    if sum(counts) != total:
        raise ArgumentError(
            f"fraction={counts}: the counts add up to {sum(counts)}, and the dataset "
            f"has {count_text(total, unit)}; pass counts that add up to it"
        )
    return counts


def group_parts(
    words: NDArray[np.uint64], fraction: Any, key: tuple[Any, ...], gap: int | None
) -> tuple[Any, Integers]:
    """Which part of a split by groups each entry of a list is in.

    Args:
        words: Hash of the group of each entry.
        fraction: Share of the groups in the first of two parts, counts of groups, or a number of equal parts.
        key: Seed of the hashes by which groups are drawn, and what else they are derived from.
        gap: Number of groups between the parts, which are spans of groups in the order of their first entries; None:
            groups are drawn, those with the lowest hashes for the first part.

    Returns:
        The fraction, or the number of groups of each part; and the number of each entry's part, int64[entries]: -1 in
        gaps.

    Raises:
        ArgumentError: When a part would be empty, or counts and gaps don't add up.
    """
    counts = given_counts(fraction)
    if counts is None and gap is None:
        return fraction, np.where(below(seeds.derive(*key, words), fraction), 0, 1)
    named, firsts, groups = np.unique(words, return_index=True, return_inverse=True)
    if gap is not None:
        sizes = span_counts(fraction, len(named), gap, "group")
        ranking = np.argsort(firsts)
    else:
        sizes = drawn_counts(counts or [], len(named), "group")
        ranking = np.argsort(np.asarray(seeds.derive(*key, named)), kind="stable")
    parts = np.full(len(named), -1)
    begin = 0
    for part, size in enumerate(sizes):
        parts[ranking[begin : begin + size]] = part
        begin += size + (gap or 0)
    return fraction if counts is None else sizes, parts[groups]


def split(order: Order, fraction: float, seed: int) -> tuple[Order, Order]:
    """Splits an order into about `fraction` of its rows, and the rest.

    The split applies to rows, below shuffles and repeats: `shuffle` then `split` equals `split` then `shuffle`.

    Raises:
        ArgumentError: When the rows depend on the epoch (a slice of a shuffle).
    """
    key = (seed, "split", *again(order, "split"))

    def side(first: bool) -> Order:
        rule = ("split", fraction, seed, first)
        arguments = f"{fraction}, seed={seed}, {'first' if first else 'second'} part"
        return only_where(
            order,
            lambda rows: below(seeds.derive(*key, rows), fraction) == first,
            rule,
            arguments,
        )

    return side(True), side(False)


def split_counts(
    order: Order, num_rows: int, counts: Sequence[int], seed: int
) -> list[Order]:
    """Splits an order into parts of exactly `counts` rows: the rows with the lowest hashes are the first part.

    Args:
        order: Order to split.
        num_rows: Number of rows of its source.
        counts: Number of rows of each part.
        seed: Seed of the hashes, which are those of `split`.

    Raises:
        ArgumentError: When the rows depend on the epoch, or the counts don't add up to the number of rows.
    """
    rows = np.flatnonzero(met_rows(order, "split", num_rows))
    if sum(counts) != len(rows):
        if len(rows) < order.size:
            repeats = f" in {count_text(order.size, 'position')}"
        else:
            repeats = ""
        raise ArgumentError(
            f"fraction={list(counts)}: the counts add up to {sum(counts)}, and the "
            f"dataset has {count_text(len(rows), 'row')}{repeats}; pass counts that "
            "add up to it"
        )
    ranking = np.argsort(
        np.asarray(seeds.derive(seed, "split", *again(order, "split"), rows)),
        kind="stable",
    )
    parts = []
    start = 0
    for index, count in enumerate(counts):
        chosen = np.sort(rows[ranking[start : start + count]])
        arguments = f"{shown(list(counts))}, seed={seed}, part {index}"
        parts.append(
            only_rows(order, chosen, ("split", list(counts), seed, index), arguments)
        )
        start += count
    return parts


def split_spans(order: Order, fraction: Any, gap: int) -> list[Order]:
    """Splits an order into spans of consecutive positions below shuffles and repeats.

    Args:
        order: Order to split.
        fraction: Fraction of the rows in the first of two parts, counts, or a number of equal parts.
        gap: Number of rows between two parts that are in none.

    Raises:
        ArgumentError: When a part would be empty, counts and gaps don't add up, or the rows depend on the epoch.
    """
    parts = []
    start = 0
    for count in span_counts(fraction, fixed_size(order), gap):
        parts.append(_span(order, start, start + count))
        start += count + gap
    return parts


def fixed_size(order: Order) -> int:
    """Number of positions below shuffles and repeats.

    Raises:
        ArgumentError: When the rows depend on the epoch.
    """
    sizes = list[int]()

    def measure(fixed: Order, _: int) -> Order:
        sizes.append(fixed.size)
        return fixed

    order.narrow("split", measure)
    return sum(sizes)


def span_counts(fraction: Any, total: int, gap: int, unit: str = "row") -> list[int]:
    """Number of rows, or groups, of each part of a split into runs.

    Args:
        fraction: Fraction in the first of two parts, counts, or a number of equal parts.
        total: Number of rows, or groups.
        gap: Number of them between two parts.
        unit: Name of one.

    Raises:
        ArgumentError: When a part would be empty, or counts and gaps don't add up.
    """
    counts = given_counts(fraction)
    if isinstance(counts, list):
        left_out = gap * (len(counts) - 1)
        if sum(counts) + left_out != total:
            if gap:
                gaps = f" with gaps of {gap}, {sum(counts) + left_out} in all"
            else:
                gaps = ""
            raise ArgumentError(
                f"fraction={counts}: the counts add up to {sum(counts)}{gaps}, and "
                f"the dataset has {count_text(total, unit)}; pass counts that add up "
                "to it"
            )
        return counts
    if counts is None:
        share = checked_fraction(fraction, SPLITS)
    else:
        share = 0.0
    number = counts or 2
    left = total - gap * (number - 1)
    if left < number:
        parts = count_text(number, "part")
        empty = f"{parts} of {count_text(total, unit)} would leave some empty"
        raise ArgumentError(
            f"gap={gap}: {empty}; pass a smaller gap"
            if gap
            else f"fraction={fraction}: {empty}; split a dataset of "
            f"{count_text(number, unit)} or more"
        )
    if counts is not None:
        return equal_counts(counts, left, unit)
    first = min(max(round(share * left), 1), left - 1)
    return [first, left - first]


def _span(order: Order, start: int, stop: int) -> Order:
    """The positions from `start` to `stop`, counted below shuffles and over all parts."""
    before = 0

    def cut(fixed: Order, _: int) -> Order:
        nonlocal before
        low, high = (min(max(end - before, 0), fixed.size) for end in (start, stop))
        before += fixed.size
        if high - low == fixed.size:
            return fixed
        return Sliced(fixed, low, 1, high - low)

    return order.narrow("split", cut)


def again(order: Order, verb: str) -> tuple[int, ...]:
    """Suffix of a split's key: the number of splits of this kind in the order, if there are any.

    Without it, a second split with the same seed would put all remaining rows on one side.
    """
    depth = _depth(order, verb)
    if depth:
        return (depth,)
    return ()


def below(hashes: Any, fraction: float) -> NDArray[np.bool_]:
    """Whether each hash is in the first `fraction` of the range of uint64."""
    return np.asarray(hashes) < np.uint64(min(round(fraction * 2**64), 2**64 - 1))


def _depth(order: Order, verb: str) -> int:
    *_, (name, *_) = order.describe()
    return (name == verb) + max(
        (_depth(below, verb) for below in orders_below(order)), default=0
    )
