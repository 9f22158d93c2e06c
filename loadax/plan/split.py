"""Splits by row: a row's side follows from its number and the seed alone, so it never changes when rows are appended."""

from typing import Any

import numpy as np

from loadax import seeds
from loadax.errors import ArgumentError
from loadax.plan.blocks import BlockShuffled
from loadax.plan.order import Concatenated, Kept, Repeated, Shuffled
from loadax.protocols import Integers, Order

_CHUNK = 1 << 20  # rows that are hashed at a time: bounds the scratch memory, not the result


def split(order: Order, fraction: float, seed: int) -> tuple[Order, Order]:
    """Two orders that share no row: about `fraction` of the rows, and the rest.

    The split looks at rows, so it goes below shuffles and repeats: `shuffle` then `split` is `split` then `shuffle`.

    Raises:
        ArgumentError: when which rows there are depends on the epoch (a slice of a shuffle).
    """
    # A second split with the same seed must not ask the same question again, to which all rows that are left have one answer.
    depth = _splits(order)
    key = (seed, "split", depth) if depth else (seed, "split")
    rule = ("split", fraction, seed)
    return _side(order, fraction, key, 0, (*rule, True)), _side(order, fraction, key, 0, (*rule, False))


def _side(order: Order, fraction: float, key: tuple[Any, ...], first_row: int, rule: tuple[Any, ...]) -> Order:
    def below(parent: Order) -> Order:
        return _side(parent, fraction, key, first_row, rule)

    match order:
        case Shuffled(parent=parent):
            return Shuffled(below(parent), order.seed)
        case BlockShuffled(parent=parent):
            return BlockShuffled(below(parent), order.seed, order.block, order.window, order.most_lanes)
        case Repeated(parent=parent):
            return Repeated(below(parent), order.times)
        case Concatenated(parts=parts, rows=rows):
            firsts = np.cumsum([first_row, *rows])
            return Concatenated(tuple(_side(p, fraction, key, int(f), rule) for p, f in zip(parts, firsts, strict=False)), rows)
        case _ if order.varies:
            raise ArgumentError(
                "split() after a slice of a shuffle: which rows are there changes every epoch, and with them the split's "
                "length; split first, or slice before you shuffle"
            )
    return Kept(order, _kept_positions(order, fraction, key, first_row, rule[-1]), rule)


def _splits(order: Order) -> int:
    below = [order.parent] if hasattr(order, "parent") else list(getattr(order, "parts", ()))
    return isinstance(order, Kept) + max(map(_splits, below), default=0)


def _kept_positions(order: Order, fraction: float, key: tuple[Any, ...], first_row: int, inside: bool) -> Integers:
    threshold = np.uint64(min(round(fraction * 2**64), 2**64 - 1))
    found: list[Integers] = []
    for start in range(0, order.size, _CHUNK):
        positions = np.arange(start, min(start + _CHUNK, order.size), dtype=np.int64)
        rows = order.visits(np.zeros_like(positions), positions).rows + first_row
        hashes = np.asarray(seeds.derive(*key, rows))
        found.append(positions[(hashes < threshold) == inside])
    return np.concatenate(found) if found else np.empty(0, np.int64)
