"""What can be written: rows at positions, with a name for what they are."""

from typing import Any, Protocol

from loadax.protocols import Integers, Tree


class Rows(Protocol):
    """What `write_zarr` needs of a dataset.

    `describe()` tells data from other data, so that a store that was begun is never finished with rows of something
    else.
    """

    @property
    def spec(self) -> Tree:
        """A tree of `ArraySpec`s, of one example."""
        ...

    def __len__(self) -> int:
        """How many rows there are."""
        ...

    def read(self, positions: Integers) -> Tree:
        """The examples at `positions` (int64[n]): a tree of arrays, rows first. Called by several threads at once."""
        ...

    def describe(self) -> Any:
        """What decides the rows, as JSON: two that describe alike are alike."""
        ...
