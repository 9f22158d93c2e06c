"""Orders for `flat_map`: a fixed number of consecutive positions in place of each."""

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from loadax.plan.order import VerbOrder
from loadax.protocols import Hits, Integers, Visits


@final
@dataclass(frozen=True)
class FlatMapped(VerbOrder):
    """Position p is part `p % fan_out` of the parent's position `p // fan_out`.

    Rows are those of a source with `fan_out` rows in place of each.

    Args:
        parent: Any order.
        fan_out: Number of parts.
        name: Name of the function that makes them, for `text`.
    """

    fan_out: int
    name: str

    @property
    def size(self) -> int:
        return self.parent.size * self.fan_out

    def visits(self, epochs: Integers, positions: Integers) -> Visits:
        inner, part = np.divmod(positions, self.fan_out)
        below = self.parent.visits(epochs, inner)
        return Visits(below.rows * self.fan_out + part, below.epochs)

    def inverse(
        self, rows: Integers, epochs: Integers, window: tuple[int, int]
    ) -> Hits:
        inner, part = np.divmod(rows, self.fan_out)
        below = self.parent.inverse(
            inner,
            epochs,
            (window[0] // self.fan_out, (window[1] - 1) // self.fan_out + 1),
        )
        return Hits(below.asked, below.positions * self.fan_out + part[below.asked])

    def _described(self) -> tuple[list[Any], str]:
        return [
            "flat_map",
            self.fan_out,
        ], f"flat_map({self.name}, fan_out={self.fan_out})"
