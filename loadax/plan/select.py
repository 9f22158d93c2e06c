"""Lists of positions, in any order, with repeats."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np

from loadax.errors import ArgumentError
from loadax.plan.order import check_fixed_rows, equal_pairs, no_hits
from loadax.protocols import Hits, Integers, LaneAssignment, NarrowRule, Order, Visits


@final
@dataclass(frozen=True, eq=False)
class Selected:
    """The listed positions of the parent. After a shuffle, another subset in each epoch.

    Args:
        parent: Any order.
        positions: Positions of the parent, int64[size]. Memory: 8 bytes each, and 16 more once `inverse` was called.
        digest: Hash of the list, for `describe`.
    """

    parent: Order
    positions: Integers
    digest: str
    parts = ()
    changing_rows = row_range = shuffle = schedule = None

    @property
    def size(self) -> int:
        return len(self.positions)

    @property
    def varies(self) -> bool:
        return self.parent.varies

    @cached_property
    def _by_position(self) -> tuple[Integers, Integers]:
        """The list in ascending order, and where in the list each entry stands."""
        sorter = np.argsort(self.positions, kind="stable")
        return self.positions[sorter], sorter

    def visits(self, epochs: Integers, positions: Integers) -> Visits:
        return self.parent.visits(epochs, self.positions[positions])

    def inverse(self, rows: Integers, epochs: Integers, window: tuple[int, int]) -> Hits:
        listed = self.positions[slice(*window)]
        if not len(listed):
            return no_hits()
        below = self.parent.inverse(rows, epochs, (int(listed.min()), int(listed.max()) + 1))
        ascending, sorter = self._by_position
        listed_at, met = equal_pairs(ascending, below.positions)
        return Hits(below.asked[met], sorter[listed_at])

    def narrow(self, verb: str, rule: NarrowRule, first_row: int = 0) -> Order:
        if self.varies:
            check_fixed_rows(self, f"{verb}()")
            raise ArgumentError(
                f"{verb}() after select() of a shuffle: the selection has other rows in every epoch, "
                f"so the length of the result would change; call {verb}() first, or select before you shuffle"
            )
        return rule(self, first_row)

    def lane_assignments(self, epoch: int, start: int, stop: int) -> list[LaneAssignment]:  # noqa: ARG002
        return []

    def describe(self) -> list[Any]:
        return [*self.parent.describe(), ["select", self.digest, self.size]]

    def text(self) -> list[str]:
        return [*self.parent.text(), f"select({self.size:,} rows)"]
