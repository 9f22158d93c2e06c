"""Orders side by side, for `zip`: row p is position p of each."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from loadax.core.arguments import MOST_POSITIONS
from loadax.core.formatting import count_text
from loadax.errors import ArgumentError
from loadax.plan.order import BaseOrder, parts_text
from loadax.protocols import Integers, Order


@final
@dataclass(frozen=True)
class Zipped(BaseOrder):
    """Row p is position p of every part, in the same epoch; the source maps it to the rows of the parts.

    Args:
        parts: Orders of the parts, all of equal size.
        names: Path of each part in an example.
    """

    parts: tuple[Order, ...]
    names: tuple[str, ...]
    parent = None
    repeats = False  # a row is a position

    @property
    def size(self) -> int:
        return self.parts[0].size

    @property
    def changing_rows(self) -> str | None:
        if not self.varies:
            return None
        return (
            "the order of zipped datasets changes with the epoch, so row 5 is "
            "another record in every epoch; zip the datasets before they are "
            "shuffled or mixed"
        )

    @property
    def row_range(self) -> range | None:
        if self.varies:
            return None
        return range(self.size)

    @property
    def runs(self) -> Integers | None:
        """Runs between the seams of all parts that form runs."""
        single = super().runs
        seams = [starts for part in self.parts if (starts := part.runs) is not None]
        if single is None:
            return None
        return np.unique(np.concatenate([single, *seams]))

    def describe(self) -> list[Any]:
        return [
            [
                "zip",
                [
                    [name, part.describe()]
                    for name, part in zip(self.names, self.parts, strict=True)
                ],
            ]
        ]

    def text(self) -> list[str]:
        return [f"zip: {parts_text(zip(self.names, self.parts, strict=True))}"]


def zip_orders(parts: Sequence[Order], names: Sequence[str]) -> Zipped:
    """Orders of equal size side by side.

    Args:
        parts: The orders.
        names: Path of each in an example.

    Raises:
        ArgumentError: When sizes differ, or one is endless.
    """
    size = parts[0].size
    for name, part in zip(names, parts, strict=True):
        if part.size >= MOST_POSITIONS:
            raise ArgumentError(
                f"zip() needs datasets that end, and {name} never does; cut it: "
                "ds.subset_per_epoch(range(n))"
            )
        if part.size != size:
            raise ArgumentError(
                f"zip() needs datasets of one length: {names[0]} has "
                f"{count_text(size, 'row')}, and {name} has {part.size}; cut the "
                f"longer one: ds[:{min(part.size, size)}]"
            )
    return Zipped(tuple(parts), tuple(names))
