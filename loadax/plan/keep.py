"""Keep-lists: verbs that look at rows, and so go below shuffles and repeats."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadax.errors import ArgumentError
from loadax.plan.blocks import BlockShuffled
from loadax.plan.mix import Mixed
from loadax.plan.order import Concatenated, Excluding, Repeated, Sequential, Shuffled, Subset, check_fixed_rows
from loadax.protocols import Integers, Order

Leave = Callable[[Order, int], Order]
"""What is left of an order that is the same in every epoch.

Also gets the number of its source's first row in the whole id space.
"""

_CHUNK = 1 << 20  # rows that are looked at a time: bounds the scratch memory, not the result


def narrow(order: Order, verb: str, leave: Leave, first_row: int = 0) -> Order:
    """`leave` applied below all shuffles and repeats.

    `shuffle`, then a verb that looks at rows, is that verb, then `shuffle`.

    Raises:
        ArgumentError: when which rows there are depends on the epoch (a slice of a shuffle), or behind `mix`.
    """
    match order:
        case Shuffled() | BlockShuffled() | Repeated():
            return replace(order, parent=narrow(order.parent, verb, leave, first_row))
        case Concatenated(parts=parts, rows=rows):
            firsts = np.cumsum([first_row, *rows]).tolist()
            return Concatenated(
                tuple(narrow(part, verb, leave, first) for part, first in zip(parts, firsts, strict=False)), rows
            )
        case Mixed():
            raise ArgumentError(
                f"{verb}() behind mix() would break its proportions; call it on the datasets before they are mixed: "
                f"mix({{name: ds.{verb}(…)}}, …)"
            )
        case _ if order.varies:
            check_fixed_rows(order, f"{verb}()")
            raise ArgumentError(
                f"{verb}() after a slice of a shuffle: which rows are there changes every epoch, "
                f"and with them the result's length; {verb} first, or slice before you shuffle"
            )
    return leave(order, first_row)


def keep_rows(order: Order, verb: str, rows: Integers, rule: tuple[Any, ...]) -> Order:
    """An order of those of its rows alone that are in the ascending list `rows`; memory: 8 bytes for each of them."""
    return narrow(order, verb, lambda fixed, first: Subset(fixed, _positions(fixed, first, rows), rule))


def leave_out_rows(order: Order, verb: str, rows: Integers, rule: tuple[Any, ...]) -> Order:
    """An order without those of its rows that are in the ascending list `rows`; memory: 8 bytes for each of those."""
    return narrow(order, verb, lambda fixed, first: Excluding(fixed, _positions(fixed, first, rows), rule))


def met_rows(order: Order, verb: str, num_rows: int) -> NDArray[np.bool_]:
    """For every row of the source, whether the order ever meets it."""
    met = np.zeros(num_rows, bool)

    def look(fixed: Order, first_row: int) -> Order:
        if isinstance(fixed, Sequential):
            met[first_row : first_row + fixed.size] = True
        else:
            for _, rows in rows_of(fixed, first_row):
                met[rows] = True
        return fixed

    narrow(order, verb, look)
    return met


def rows_of(order: Order, first_row: int) -> Iterator[tuple[Integers, Integers]]:
    """All positions of an order that is the same in every epoch, and their rows, some at a time."""
    for start in range(0, order.size, _CHUNK):
        positions = np.arange(start, min(start + _CHUNK, order.size), dtype=np.int64)
        yield positions, order.visits(np.zeros_like(positions), positions).rows + first_row


def _positions(order: Order, first_row: int, rows: Integers) -> Integers:
    """Which positions of a fixed order hold a row of the ascending list."""
    if isinstance(order, Sequential):
        low, high = np.searchsorted(rows, [first_row, first_row + order.size])
        # Without an offset, the slice of a mapped file stays mapped and takes no memory.
        return rows[low:high] - first_row if first_row else rows[low:high]
    found = [
        positions[rows[np.minimum(np.searchsorted(rows, here), len(rows) - 1)] == here]
        for positions, here in rows_of(order, first_row)
        if len(rows)
    ]
    return np.concatenate(found) if found else np.empty(0, np.int64)
