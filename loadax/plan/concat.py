"""Concatenation of orders."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, final

import numpy as np

from loadax.plan.order import BaseOrder, join_hits, parts_text
from loadax.protocols import Hits, Integers, NarrowRule, Order, Visits


@final
@dataclass(frozen=True)
class Concatenated(BaseOrder):
    """Several orders, one after another. The rows of part i come after all rows of the sources before it.

    Args:
        parts: Orders of the parts.
        rows: Number of rows of each part's source. An order that was sliced has fewer positions.
    """

    parts: tuple[Order, ...]
    rows: tuple[int, ...]
    parent = None

    @cached_property
    def size(self) -> int:
        return sum(part.size for part in self.parts)

    @property
    def varies(self) -> bool:
        return any(part.varies for part in self.parts)

    @property
    def runs(self) -> Integers | None:
        runs, begin = [], 0
        for part in self.parts:
            starts = part.runs
            if starts is None:
                return None
            runs.append(starts + begin)
            begin += part.size
        return np.concatenate(runs)

    def visits(self, epochs: Integers, positions: Integers) -> Visits:
        ends = np.cumsum([part.size for part in self.parts])
        owner = np.searchsorted(ends, positions, side="right")
        rows, inner = np.empty_like(positions), np.empty_like(positions)
        first_row = 0
        for index, part in enumerate(self.parts):
            owned = np.flatnonzero(owner == index)
            if len(owned):
                visits = part.visits(epochs[owned], positions[owned] - (int(ends[index]) - part.size))
                rows[owned], inner[owned] = visits.rows + first_row, visits.epochs
            first_row += self.rows[index]
        return Visits(rows, inner)

    def inverse(self, rows: Integers, epochs: Integers, window: tuple[int, int]) -> Hits:
        hits, first_row, start = [], 0, 0
        for part, count in zip(self.parts, self.rows, strict=True):
            asked = np.flatnonzero((rows >= first_row) & (rows < first_row + count))
            inner = max(window[0] - start, 0), min(window[1] - start, part.size)
            if len(asked) and inner[0] < inner[1]:
                below = part.inverse(rows[asked] - first_row, epochs[asked], inner)
                hits.append(Hits(asked[below.asked], start + below.positions))
            first_row, start = first_row + count, start + part.size
        return join_hits(hits)

    def narrow(self, verb: str, rule: NarrowRule, first_row: int = 0) -> Order:
        first_rows = np.cumsum([first_row, *self.rows[:-1]]).tolist()
        parts = (part.narrow(verb, rule, first) for part, first in zip(self.parts, first_rows, strict=True))
        return replace(self, parts=tuple(parts))

    def describe(self) -> list[Any]:
        return [["concat", [[rows, part.describe()] for rows, part in zip(self.rows, self.parts, strict=True)]]]

    def text(self) -> list[str]:
        return [f"concat: {parts_text((str(index), part) for index, part in enumerate(self.parts))}"]
