"""Orders of several sources side by side, for `concat` and `mix`: visits of many parts in few calls."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import final

import numpy as np

from loadax import seeds
from loadax.plan.order import BaseOrder
from loadax.protocols import Integers, Order, Visits

# positions of a part below which a key for each position costs less than a call for the part
_FEW = 32


@dataclass(frozen=True)
class OrderOfParts(BaseOrder):
    """An order of several parts. The rows of part i come after all rows of the sources before it.

    Args:
        parts: Orders of the parts.
        rows: Number of rows of each part's source.
    """

    parts: tuple[Order, ...]
    rows: tuple[int, ...]
    parent = None

    @property
    def part_names(self) -> tuple[str, ...]:
        """Name of each part: its number, if none was given."""
        return tuple(map(str, range(len(self.parts))))

    @cached_property
    def _below(self) -> "PartOrders":
        return PartOrders(self.parts, self.rows)


@final
class PartOrders:
    """Orders of several sources. The rows of part i come after all rows of the sources before it.

    Args:
        orders: Orders of the parts.
        rows: Number of rows of each part's source.
    """

    def __init__(self, orders: Sequence[Order], rows: Sequence[int]):
        self._orders = orders
        self.sizes = np.array([order.size for order in orders], np.int64)
        self.row_ends = np.cumsum(np.array(rows, np.int64))
        self.first_rows = self.row_ends - np.array(rows, np.int64)
        ranges = [order.row_range for order in orders]
        keys = [_seed_of(order) for order in orders]
        self._even = np.array([rows is not None for rows in ranges])
        self._starts = np.array(
            [rows.start if rows else 0 for rows in ranges], np.int64
        )
        self._steps = np.array(
            [rows.step if rows else 1 for rows in ranges], np.int64
        )
        self._shuffled = np.array([seed is not None for seed in keys])
        self._seeds = np.array([seed or 0 for seed in keys], np.int64)

    def visits(self, part: Integers, epochs: Integers, positions: Integers) -> Visits:
        """Rows, counted over all parts, and epochs of the part's source, at positions of parts; all int64[n]."""
        rows = self._starts[part] + positions * self._steps[part]
        inner = epochs
        uneven = np.flatnonzero(~self._even[part])
        if len(uneven):
            inner = epochs.copy()
            groups = by_part(part, uneven)
            if len(uneven) < _FEW * len(groups):
                # One call for the shuffles of many parts: a call has a fixed cost.
                shuffled = uneven[self._shuffled[part[uneven]]]
                which = part[shuffled]
                keys = seeds.derive(self._seeds[which], "shuffle", epochs[shuffled])
                rows[shuffled] = seeds.permute(
                    positions[shuffled], self.sizes[which], keys
                )
                groups = [group for group in groups if not self._shuffled[group[0]]]
            for index, chosen in groups:
                rows[chosen], inner[chosen] = self._orders[index].visits(
                    epochs[chosen], positions[chosen]
                )
        return Visits(rows + self.first_rows[part], inner)


def by_part(part: Integers, chosen: Integers) -> list[tuple[int, Integers]]:
    """The indices `chosen` of each part, ascending, at a cost that depends on their number and not on that of parts."""
    ordered = chosen[np.argsort(part[chosen], kind="stable")]
    begins = np.flatnonzero(np.diff(part[ordered], prepend=-1))
    # Slices: `np.split` costs more for each.
    groups = [
        ordered[slice(*group)] for group in pairwise([*begins.tolist(), len(ordered)])
    ]
    return list(zip(part[ordered[begins]].tolist(), groups, strict=True))


def _seed_of(order: Order) -> int | None:
    """Seed of a full shuffle of a source; None for any other order."""
    shuffle = order.shuffle
    below = order.parent
    if (
        shuffle is None
        or shuffle.blocks is not None
        or below is None
        or below.row_range != range(below.size)
    ):
        return None
    if -(1 << 63) <= shuffle.seed < 1 << 63:
        return shuffle.seed
    return None
