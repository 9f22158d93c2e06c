"""Orders: rules that turn positions of a dataset into visits of its source's rows.

Every verb of a dataset wraps the order before it, and turns an (epoch, position) of the new dataset into one of the
old. So a chain of verbs is a chain of small arithmetic steps: any position of any epoch is computed at once, nothing is
stored or replayed, and every host that asks gets the same answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np

from loadax import seeds
from loadax.errors import ArgumentError
from loadax.protocols import Integers, LaneAssignment, Order, Visits


@final
@dataclass(frozen=True)
class Sequential:
    """The rows of a source as they lie: position p is row p, in every epoch."""

    size: int
    varies = False
    parent = None
    parts = ()
    by_step = False

    def visits(self, epochs: Integers, positions: Integers) -> Visits:
        return Visits(positions, epochs)

    def deals(self, epoch: int, start: int, stop: int) -> list[LaneAssignment]:  # noqa: ARG002
        return []

    def describe(self) -> list[Any]:
        return [["rows", self.size]]


@final
@dataclass(frozen=True)
class OwnEpochs:
    """The rows of a source that has other rows in every epoch, as that has them.

    Row 5 of one epoch is not row 5 of the next.
    """

    size: int
    varies = True
    parent = None
    parts = ()
    by_step = False

    def visits(self, epochs: Integers, positions: Integers) -> Visits:
        return Visits(positions, epochs)

    def deals(self, epoch: int, start: int, stop: int) -> list[LaneAssignment]:  # noqa: ARG002
        return []

    def describe(self) -> list[Any]:
        return [["own epochs", self.size]]


@final
@dataclass(frozen=True)
class Shuffled:
    """A uniform shuffle of all positions, another one each epoch."""

    parent: Order
    seed: int
    varies = True
    parts = ()
    by_step = False

    @property
    def size(self) -> int:
        return self.parent.size

    def visits(self, epochs: Integers, positions: Integers) -> Visits:
        if len(positions) == 0:
            return self.parent.visits(epochs, positions)
        # Nearly every call stays within one epoch, and one key for all is much faster than a key for each.
        first = int(epochs[0])
        key = seeds.derive(self.seed, "shuffle", first if (epochs == first).all() else epochs)
        return self.parent.visits(epochs, seeds.permute(positions, self.size, key))

    def deals(self, epoch: int, start: int, stop: int) -> list[LaneAssignment]:  # noqa: ARG002
        return []

    def describe(self) -> list[Any]:
        return [*self.parent.describe(), ["shuffle", self.seed]]


@final
@dataclass(frozen=True)
class Sliced:
    """Every `step`-th position from `start` on, `size` of them. After a shuffle that is another subset each epoch."""

    parent: Order
    start: int
    step: int
    size: int
    parts = ()
    by_step = False

    @property
    def varies(self) -> bool:
        return self.parent.varies

    def visits(self, epochs: Integers, positions: Integers) -> Visits:
        return self.parent.visits(epochs, self.start + positions * self.step)

    def deals(self, epoch: int, start: int, stop: int) -> list[LaneAssignment]:
        if self.step != 1:
            return []
        dealt = self.parent.deals(epoch, start + self.start, stop + self.start)
        return [LaneAssignment(deal.start - self.start, deal.lanes) for deal in dealt]

    def describe(self) -> list[Any]:
        return [*self.parent.describe(), ["slice", self.start, self.step, self.size]]


@final
@dataclass(frozen=True)
class Repeated:
    """`times` epochs of the dataset before it make one epoch, each in its own order."""

    parent: Order
    times: int
    parts = ()
    by_step = False

    @property
    def size(self) -> int:
        return self.parent.size * self.times

    @property
    def varies(self) -> bool:
        return self.parent.varies

    def visits(self, epochs: Integers, positions: Integers) -> Visits:
        size = max(self.parent.size, 1)
        return self.parent.visits(epochs * self.times + positions // size, positions % size)

    def deals(self, epoch: int, start: int, stop: int) -> list[LaneAssignment]:
        size = max(self.parent.size, 1)
        found = []
        for turn in range(start // size, -(-stop // size)):
            low, high = max(start - turn * size, 0), min(stop - turn * size, size)
            dealt = self.parent.deals(epoch * self.times + turn, low, high)
            for deal in dealt:
                # A slice below may begin inside a stretch: here the stretch begins with the turn, in the middle of the
                # lanes.
                shift = max(0, -deal.start)
                found.append(
                    LaneAssignment(deal.start + shift + turn * size, np.roll(deal.lanes, -(shift % len(deal.lanes))))
                )
        return found

    def describe(self) -> list[Any]:
        return [*self.parent.describe(), ["repeat", self.times]]


@final
@dataclass(frozen=True)
class Concatenated:
    """One dataset behind another.

    Rows are those of one id space: part i's rows come after all rows of the sources before it.

    Args:
        parts: the orders of the parts.
        rows: how many rows the source of each part has (more than its order has positions, when that was sliced).
    """

    parts: tuple[Order, ...]
    rows: tuple[int, ...]
    parent = None
    by_step = False

    @cached_property
    def size(self) -> int:
        return sum(part.size for part in self.parts)

    @property
    def varies(self) -> bool:
        return any(part.varies for part in self.parts)

    def visits(self, epochs: Integers, positions: Integers) -> Visits:
        ends = np.cumsum([part.size for part in self.parts])
        owner = np.searchsorted(ends, positions, side="right")
        rows, inner = np.empty_like(positions), np.empty_like(positions)
        first_row = 0
        for index, part in enumerate(self.parts):
            mine = np.flatnonzero(owner == index)
            if len(mine):
                found = part.visits(epochs[mine], positions[mine] - (int(ends[index]) - part.size))
                rows[mine], inner[mine] = found.rows + first_row, found.epochs
            first_row += self.rows[index]
        return Visits(rows, inner)

    def deals(self, epoch: int, start: int, stop: int) -> list[LaneAssignment]:  # noqa: ARG002
        return []

    def describe(self) -> list[Any]:
        return [["concat", [[rows, part.describe()] for rows, part in zip(self.rows, self.parts, strict=True)]]]


@final
@dataclass(frozen=True, eq=False)
class Subset:
    """The positions of a list, in its order: what a rule that looks at rows left over.

    Args:
        parent: an order that is the same in every epoch.
        positions: int64[size], ascending positions of the parent.
        rule: the rule, as JSON, for `describe`.
    """

    parent: Order
    positions: Integers
    rule: tuple[Any, ...]
    varies = False
    parts = ()
    by_step = False

    @property
    def size(self) -> int:
        return len(self.positions)

    def visits(self, epochs: Integers, positions: Integers) -> Visits:
        return self.parent.visits(epochs, self.positions[positions])

    def deals(self, epoch: int, start: int, stop: int) -> list[LaneAssignment]:  # noqa: ARG002
        return []

    def describe(self) -> list[Any]:
        return [*self.parent.describe(), [*self.rule, self.size]]


@final
@dataclass(frozen=True, eq=False)
class Excluding:
    """All positions but those of a short list.

    Args:
        parent: an order that is the same in every epoch.
        missing: int64[n], ascending positions of the parent.
        rule: the rule, as JSON, for `describe`.
    """

    parent: Order
    missing: Integers
    rule: tuple[Any, ...]
    varies = False
    parts = ()
    by_step = False

    @property
    def size(self) -> int:
        return self.parent.size - len(self.missing)

    @cached_property
    def _begins(self) -> Integers:
        """The positions here from which on one more of the parent's is left out."""
        return self.missing - np.arange(len(self.missing))

    def visits(self, epochs: Integers, positions: Integers) -> Visits:
        return self.parent.visits(epochs, positions + np.searchsorted(self._begins, positions, side="right"))

    def deals(self, epoch: int, start: int, stop: int) -> list[LaneAssignment]:  # noqa: ARG002
        return []

    def describe(self) -> list[Any]:
        return [*self.parent.describe(), [*self.rule, self.size]]


def depth(order: Order) -> int:
    """How many verbs stand one upon another. Excluding recursion, since that is what it is to limit."""
    level, found = [order], 0
    while level:
        found += 1
        level = [below for each in level for below in orders_below(each)]
    return found


def check_fixed_rows(order: Order, what: str) -> None:
    """That a row is the same record in every epoch.

    Raises:
        ArgumentError: when the source has other rows in every epoch; names `what` needs them.
    """
    if any(isinstance(each, OwnEpochs) for each in depth_first(order)):
        raise ArgumentError(
            f"{what} is about rows, but the Grain dataset shuffles or maps at random, "
            "so row 5 is another record in every epoch; hand over the Grain dataset before it does, "
            f"and shuffle and map with loadax behind {what}: .shuffle(seed).map(fn, rng=True)"
        )


def depth_first(order: Order) -> Sequence[Order]:
    """An order and all that it stands on."""
    return [order, *(found for each in orders_below(order) for found in depth_first(each))]


def orders_below(order: Order) -> Sequence[Order]:
    """The orders that one stands on."""
    return order.parts if order.parent is None else (order.parent,)
