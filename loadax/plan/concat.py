"""Concatenation of orders."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, final

import numpy as np

from loadax.plan.order import join_hits, parts_text
from loadax.plan.part_orders import OrderOfParts, by_part
from loadax.protocols import Hits, Integers, NarrowRule, Order, Visits


@final
@dataclass(frozen=True)
class Concatenated(OrderOfParts):
    """Several orders, one after another. The rows of part i come after all rows of the sources before it.

    Args:
        parts: Orders of the parts.
        rows: Number of rows of each part's source. An order that was sliced has fewer positions.
    """

    @cached_property
    def size(self) -> int:
        return sum(part.size for part in self.parts)

    @cached_property
    def _ends(self) -> Integers:
        """Position after the last one of each part."""
        return np.cumsum(self._below.sizes)

    @property
    def runs(self) -> Integers | None:
        spans = []
        begin = 0
        for part in self.parts:
            starts = part.runs
            if starts is None:
                return None
            spans.append(starts + begin)
            begin += part.size
        return np.concatenate(spans)

    def visits(self, epochs: Integers, positions: Integers) -> Visits:
        part = np.searchsorted(self._ends, positions, side="right")
        return self._below.visits(
            part, epochs, positions - (self._ends[part] - self._below.sizes[part])
        )

    def inverse(
        self, rows: Integers, epochs: Integers, window: tuple[int, int]
    ) -> Hits:
        hits = []
        part = np.searchsorted(self._below.row_ends, rows, side="right")
        for index, asked in by_part(
            part, np.flatnonzero((rows >= 0) & (part < len(self.parts)))
        ):
            size = self.parts[index].size
            start = int(self._ends[index]) - size
            inner = max(window[0] - start, 0), min(window[1] - start, size)
            if inner[0] < inner[1]:
                own_rows = rows[asked] - self._below.first_rows[index]
                below = self.parts[index].inverse(own_rows, epochs[asked], inner)
                hits.append(Hits(asked[below.asked], start + below.positions))
        return join_hits(hits)

    def narrow(self, verb: str, rule: NarrowRule, first_row: int = 0) -> Order:
        first_rows = np.cumsum([first_row, *self.rows[:-1]]).tolist()
        parts = (
            part.narrow(verb, rule, first)
            for part, first in zip(self.parts, first_rows, strict=True)
        )
        return replace(self, parts=tuple(parts))

    def describe(self) -> list[Any]:
        return [
            [
                "concat",
                [
                    [rows, part.describe()]
                    for rows, part in zip(self.rows, self.parts, strict=True)
                ],
            ]
        ]

    def text(self) -> list[str]:
        return [
            (f"concat: {parts_text(zip(self.part_names, self.parts, strict=True))}")
        ]
