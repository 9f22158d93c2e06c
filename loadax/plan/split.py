"""Random splits: a row's side depends on the row and the seed alone, so appended rows never change it."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadax import seeds
from loadax.plan.order import orders_below
from loadax.plan.subset import Subset, rows_of
from loadax.protocols import Integers, Order


def split(order: Order, fraction: float, seed: int) -> tuple[Order, Order]:
    """Splits an order into about `fraction` of its rows, and the rest.

    The split applies to rows, below shuffles and repeats: `shuffle` then `split` equals `split` then `shuffle`.

    Raises:
        ArgumentError: When the rows depend on the epoch (a slice of a shuffle).
    """
    key = (seed, "split", *again(order, "split"))
    rule = ("split", fraction, seed)

    def side(first: bool) -> Order:
        arguments = f"{fraction}, seed={seed}, {'first' if first else 'second'} part"

        def leave(fixed: Order, first_row: int) -> Order:
            return Subset(fixed, _kept_positions(fixed, fraction, key, first_row, first), (*rule, first), arguments)

        return order.narrow("split", leave)

    return side(True), side(False)


def again(order: Order, verb: str) -> tuple[int, ...]:
    """Suffix of a split's key: the number of splits of this kind in the order, if there are any.

    Without it, a second split with the same seed would put all remaining rows on one side.
    """
    depth = _depth(order, verb)
    return (depth,) if depth else ()


def below(hashes: NDArray[np.uint64], fraction: float) -> NDArray[np.bool_]:
    """Whether each hash is in the first `fraction` of the range of uint64."""
    return hashes < np.uint64(min(round(fraction * 2**64), 2**64 - 1))


def _depth(order: Order, verb: str) -> int:
    *_, (name, *_) = order.describe()
    return (name == verb) + max((_depth(below, verb) for below in orders_below(order)), default=0)


def _kept_positions(order: Order, fraction: float, key: tuple[Any, ...], first_row: int, first: bool) -> Integers:
    chosen = [
        positions[below(np.asarray(seeds.derive(*key, rows)), fraction) == first]
        for positions, rows in rows_of(order, first_row)
    ]
    return np.concatenate(chosen) if chosen else np.empty(0, np.int64)
