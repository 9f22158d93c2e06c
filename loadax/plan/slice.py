"""Slices of an order."""

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from loadax.plan.order import VerbOrder, no_hits
from loadax.protocols import Hits, Integers, LaneAssignment, Visits


@final
@dataclass(frozen=True)
class Sliced(VerbOrder):
    """Every `step`-th position from `start` on, `size` of them."""

    start: int
    step: int
    size: int

    @property
    def row_range(self) -> range | None:
        rows = self.parent.row_range
        if rows is None:
            return None
        start = rows.start + self.start * rows.step
        step = self.step * rows.step
        return range(start, start + self.size * step, step)

    @property
    def runs(self) -> Integers | None:
        start = self.start
        step = self.step
        parent = self.parent
        # two that reverse the rows have the runs of what they reverse
        while isinstance(parent, Sliced):
            start = parent.start + start * parent.step
            step = step * parent.step
            parent = parent.parent
        starts = parent.runs
        if starts is None or step < 0:
            return None
        # at or after each start
        first = np.unique(np.maximum(-(-(starts - start) // step), 0))
        return first[first < self.size]

    def visits(self, epochs: Integers, positions: Integers) -> Visits:
        return self.parent.visits(epochs, self.start + positions * self.step)

    def inverse(
        self, rows: Integers, epochs: Integers, window: tuple[int, int]
    ) -> Hits:
        if window[0] >= window[1]:
            return no_hits()
        ends = (
            self.start + window[0] * self.step,
            self.start + (window[1] - 1) * self.step,
        )
        below = self.parent.inverse(rows, epochs, (max(min(ends), 0), max(ends) + 1))
        positions, remainders = np.divmod(below.positions - self.start, self.step)
        chosen = (remainders == 0) & (positions >= 0) & (positions < self.size)
        return Hits(below.asked[chosen], positions[chosen])

    def lane_assignments(
        self, epoch: int, start: int, stop: int
    ) -> list[LaneAssignment]:
        if self.step != 1:
            return []
        assignments = self.parent.lane_assignments(
            epoch, start + self.start, stop + self.start
        )
        return [
            LaneAssignment(assignment.start - self.start, assignment.lanes)
            for assignment in assignments
        ]

    def _described(self) -> tuple[list[Any], str]:
        stop = self.start + self.size
        if self.step == 1:
            cut = f"[{self.start}:{stop}]"
        else:
            cut = f"[{self.start}::{self.step}][:{self.size}]"
        return ["slice", self.start, self.step, self.size], cut
