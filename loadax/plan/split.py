"""Splits by row: a row's side follows from its number and the seed alone, so appended rows never change it."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadax import seeds
from loadax.plan.order import orders_below
from loadax.plan.subset import Subset, rows_of
from loadax.protocols import Integers, Order


def split(order: Order, fraction: float, seed: int) -> tuple[Order, Order]:
    """Two orders that share no row: about `fraction` of the rows, and the rest.

    The split looks at rows, so it goes below shuffles and repeats: `shuffle` then `split` is `split` then `shuffle`.

    Raises:
        ArgumentError: when which rows there are depends on the epoch (a slice of a shuffle).
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
    """What is added to the key of a split: how many splits of this kind an order went through, if any.

    A second split with the same seed must not ask the same question again, to which all rows that are left have one
    answer.
    """
    depth = _depth(order, verb)
    return (depth,) if depth else ()


def below(hashes: NDArray[np.uint64], fraction: float) -> NDArray[np.bool_]:
    """Which hashes lie in the first `fraction` of all that there are."""
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
