"""Several epochs of an order as one."""

from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from loadax.plan.order import VerbOrder
from loadax.protocols import Hits, Integers, LaneAssignment, NarrowRule, Order, Visits


@final
@dataclass(frozen=True)
class Repeated(VerbOrder):
    """An epoch of `times` epochs of the parent, each in its own order."""

    times: int

    @property
    def size(self) -> int:
        return self.parent.size * self.times

    @property
    def repeats(self) -> bool:
        return self.times > 1 or self.parent.repeats

    def visits(self, epochs: Integers, positions: Integers) -> Visits:
        size = max(self.parent.size, 1)
        return self.parent.visits(
            epochs * self.times + positions // size, positions % size
        )

    def inverse(
        self, rows: Integers, epochs: Integers, window: tuple[int, int]
    ) -> Hits:
        size = max(self.parent.size, 1)
        turns = np.arange(window[0] // size, (window[1] - 1) // size + 1)
        # A window within one turn is narrowed to it; a window over several may cover all of each.
        if len(turns) == 1:
            inner = (
                window[0] - int(turns[0]) * size,
                window[1] - int(turns[0]) * size,
            )
        else:
            inner = (0, size)
        asked, turn = (
            grid.ravel()
            for grid in np.meshgrid(np.arange(len(rows)), turns, indexing="ij")
        )
        below = self.parent.inverse(
            rows[asked], epochs[asked] * self.times + turn, inner
        )
        return Hits(asked[below.asked], turn[below.asked] * size + below.positions)

    def narrow(self, verb: str, rule: NarrowRule, first_row: int = 0) -> Order:
        return replace(self, parent=self.parent.narrow(verb, rule, first_row))

    def lane_assignments(
        self, epoch: int, start: int, stop: int
    ) -> list[LaneAssignment]:
        size = max(self.parent.size, 1)
        assignments = []
        for turn in range(start // size, -(-stop // size)):
            low = max(start - turn * size, 0)
            high = min(stop - turn * size, size)
            for first, lanes in self.parent.lane_assignments(
                epoch * self.times + turn, low, high
            ):
                # If a slice below begins inside a run of positions, the run begins with the turn here, in the middle of
                # its lanes.
                shift = max(0, -first)
                assignments.append(
                    LaneAssignment(
                        first + shift + turn * size,
                        np.roll(lanes, -(shift % len(lanes))),
                    )
                )
        return assignments

    def _described(self) -> tuple[list[Any], str]:
        return ["repeat", self.times], f"repeat({self.times})"
