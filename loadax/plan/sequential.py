"""The rows of a source in their stored order."""

from dataclasses import dataclass, field
from typing import Any, final

from loadax.core.formatting import count_text
from loadax.plan.order import BaseOrder
from loadax.protocols import Integers


@final
@dataclass(frozen=True)
class Sequential(BaseOrder):
    """Position p is row p, in every epoch.

    Args:
        size: Number of rows.
        own_epochs: Whether the source itself returns other rows in every epoch.
        groups: First rows of groups that windows don't leave, such as files, int64[n] from 0; None: one group.
    """

    size: int
    own_epochs: bool = False
    groups: Integers | None = field(default=None, compare=False)
    parts = ()
    parent = None

    @property
    def varies(self) -> bool:
        return self.own_epochs

    @property
    def changing_rows(self) -> str | None:
        if not self.own_epochs:
            return None
        return (
            "the Grain dataset shuffles or maps at random, so row 5 is another "
            "record in every epoch; pass the Grain dataset without that step"
        )

    @property
    def row_range(self) -> range | None:
        if self.own_epochs:
            return None
        return range(self.size)

    @property
    def runs(self) -> Integers | None:
        if self.groups is None:
            return super().runs
        return self.groups

    def describe(self) -> list[Any]:
        return [["own epochs" if self.own_epochs else "rows", self.size]]

    def text(self) -> list[str]:
        return [
            count_text(self.size, "row")
            + ", in the source's own order of each epoch" * self.own_epochs
        ]
