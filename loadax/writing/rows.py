"""Rows: protocol of the data that `write_zarr` writes."""

from typing import Any, Protocol

from loadax.protocols import Integers, Tree
from loadax.sources.base import Attributes


class Rows(Protocol):
    """Rows at positions, with an identity, so that a store is never resumed with different data."""

    @property
    def spec(self) -> Tree:
        """Tree of `ArraySpec`s of one example."""
        ...

    @property
    def attributes(self) -> Attributes:
        """What the numbers of leaves mean."""
        ...

    def __len__(self) -> int: ...

    def read(self, positions: Integers) -> Tree:
        """Reads the examples at `positions` (int64[n]) as a tree of arrays, rows first; called concurrently."""
        ...

    def describe(self) -> Any:
        """Everything that determines the rows, as JSON: equal descriptions mean equal rows."""
        ...
