"""The first columns of another source."""

from typing import Any, final

import numpy as np

from loadax.protocols import ArraySpec, Integers, Source, Tree, Wrap
from loadax.specs import flatten_spec
from loadax.trees import flatten


@final
class CroppedSource:
    """The rows of a source, of whose leaves only the columns that `spec` leaves are there: in every dimension the first so many.

    Args:
        source: of the rows.
        spec: of one row, no leaf larger than the source's.
    """

    def __init__(self, source: Source, spec: Tree):
        self._source = source
        self.spec = spec
        self._specs, self._structure = flatten_spec(spec)
        self.fresh = getattr(source, "fresh", False)
        self.chunks = getattr(source, "chunks", None)
        self.concurrent_reads = int(getattr(source, "concurrent_reads", 1))
        # Column boxes count from the first column, so they are the same in both.
        self.read_into = getattr(source, "read_into", None)

    def __len__(self) -> int:
        return len(self._source)

    def __repr__(self) -> str:
        return f"the first columns of {self._source!r}"

    def read(self, rows: Integers) -> Tree:
        """The first columns of the examples at `rows`."""
        leaves = flatten(self._source.read(rows))[0]
        return self._structure.build(first_columns(leaf, each) for leaf, each in zip(leaves, self._specs, strict=True))

    def over(self, wrap: Wrap) -> "CroppedSource":
        """The same over `wrap(source)`."""
        further = getattr(self._source, "over", None)
        return CroppedSource(further(wrap) if further is not None else wrap(self._source, 1.0), self.spec)


def first_columns(leaf: Any, spec: ArraySpec) -> Any:
    """The columns of rows that a spec leaves."""
    return np.asarray(leaf)[(slice(None), *(slice(extent) for extent in spec.shape))]
