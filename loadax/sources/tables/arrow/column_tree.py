"""ColumnTree: columns of Arrow record batches as one tree, whose rows are read at any place."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, final

import numpy as np

from loadax.core.buffers import Allocate, aligned_bytes, aligned_columns
from loadax.core.spec import leaf_arrays, spec_of, stack
from loadax.core.tree import flatten, map_leaves
from loadax.protocols import Array, Boxes, Integers, LeafArrays, Outputs, Tree
from loadax.sources.base import Traits, asked_for
from loadax.sources.tables.arrow.columns import (
    BatchRows,
    Column,
    Lists,
    Numbers,
    Objects,
    joined,
    rows_by_batch,
)

_KINDS = Numbers, Lists, Objects


@final
class ColumnTree:
    """Columns of the same record batches. Rows are not checked: callers pass rows in `[0, length)`.

    Args:
        tree: Column, or pytree of columns.
        sizes: Number of rows of each record batch.

    Attributes:
        specs: Spec of each column, in leaf order; None for a column whose rows may differ in shape.
        is_ragged: Whether the rows of a column may differ in shape.
        is_numeric: Whether every row of a column has the same shape and dtype, so that `fill` writes rows into place.
        reads_parts: Whether rows are flat lists of numbers, so that `parts` can read parts of them.
    """

    def __init__(self, tree: Tree, sizes: Sequence[int]):
        found, self.structure = flatten(
            tree, is_leaf=lambda node: isinstance(node, _KINDS)
        )
        self.columns: list[Column] = found
        self.sizes = sizes
        ends = np.cumsum([0, *sizes])
        self.starts = ends[:-1]
        self._length = int(ends[-1])
        self.specs = [column.spec for column in self.columns]
        self.is_ragged = None in self.specs
        self.is_numeric = all(isinstance(column, Numbers) for column in self.columns)
        self.reads_parts = all(
            isinstance(column, Lists) and not column.inner.shape
            for column in self.columns
        )

    def __len__(self) -> int:
        return self._length

    def keep(self, chosen: Tree) -> "ColumnTree":
        """Some of the columns, in place of their indices in a tree."""
        return ColumnTree(map_leaves(self.columns.__getitem__, chosen), self.sizes)

    def join(self, others: Sequence["ColumnTree"]) -> "ColumnTree":
        """The rows of this tree, and then those of others with the same columns."""
        trees = (self, *others)
        columns = map(joined, zip(*(tree.columns for tree in trees), strict=True))
        return ColumnTree(
            self.structure.build(columns),
            [size for tree in trees for size in tree.sizes],
        )

    @cached_property
    def spec(self) -> Tree | None:
        """Spec of one row; None if the rows of a column may differ in shape: lists of any length, images."""
        if self.is_ragged:
            return None
        return self.structure.build(self.specs)

    @property
    def traits(self) -> Traits:
        """Traits of a source of these rows, but for the meaning of its numbers."""
        return Traits(
            reads_examples=self.is_ragged,
            reads_columns=self.is_numeric,
            reads_parts=self.reads_parts,
            owns_memory=True,
            # rows are built as objects
            runs_python=any(isinstance(column, Objects) for column in self.columns),
        )

    def read(
        self,
        rows: Integers,
        labels: Integers | None = None,
        allocate: Allocate = aligned_bytes,
    ) -> Tree:
        """Reads rows, stacked.

        Args:
            rows: int64[n].
            labels: Number of each row in messages; None: `rows`.
            allocate: Allocates uint8[n] for numbers.

        Raises:
            LeafError: When rows differ in shape; names the first that differs.
        """
        if not len(rows) and self._length and self.is_ragged:
            return map_leaves(lambda leaf: leaf[:0], self.read(np.zeros(1, np.int64)))
        by_batch = rows_by_batch(self.starts, rows)
        if self.is_numeric:
            leaves: list[Any] = aligned_columns(
                [spec for spec in self.specs if spec is not None], len(rows), allocate
            )
            for column, leaf in zip(self.columns, leaves, strict=True):
                assert isinstance(column, Numbers)
                column.fill(by_batch, None, leaf)
            return self.structure.build(leaves)
        leaves = [column.read(by_batch, len(rows)) for column in self.columns]
        if not self._length:  # no row tells the type of the objects
            leaves = [
                np.empty(0, object) if leaf is None else leaf for leaf in leaves
            ]
        if any(leaf is None for leaf in leaves):
            examples = self._examples(by_batch, len(rows))
            return stack(
                examples,
                spec_of(examples[0]),
                (rows if labels is None else labels).tolist(),
            )
        return self.structure.build(leaves)

    def fill(self, rows: Integers, boxes: Boxes, out: Outputs) -> None:
        """Writes rows to memory, of numeric columns alone; see `loadax.protocols.Source.read_into`."""
        by_batch = rows_by_batch(self.starts, rows)
        for column, box, destination in asked_for(self.columns, boxes, out):
            assert isinstance(column, Numbers)
            column.fill(by_batch, box, destination)

    def examples(self, rows: Integers) -> list[Tree]:
        """Reads rows one by one, in memory that nothing else references."""
        return self._examples(rows_by_batch(self.starts, rows), len(rows))

    def lengths(self, rows: Integers) -> Integers | None:
        """Entries of the lists at `rows`, if all columns are flat lists of equal lengths; else None."""
        if not self.reads_parts:
            return None
        by_batch = rows_by_batch(self.starts, rows)
        first, *others = (
            column.lengths(by_batch, len(rows))
            for column in self.columns
            if isinstance(column, Lists)
        )
        if all((other == first).all() for other in others):
            return first
        return None

    def parts(
        self,
        rows: Integers,
        starts: Integers,
        lengths: Integers,
        wanted: Sequence[bool],
    ) -> LeafArrays:
        """Reads parts of flat lists, concatenated, an array for each wanted column."""
        by_batch = rows_by_batch(self.starts, rows)
        return [
            column.read_parts(by_batch, starts, lengths)
            if want and isinstance(column, Lists)
            else None
            for column, want in zip(self.columns, wanted, strict=True)
        ]

    def sample(self, rows: Integers) -> Iterator[Array]:
        """Yields the values of rows as arrays, to hash them."""
        by_batch = rows_by_batch(self.starts, rows)
        for column in self.columns:
            values = column.read(by_batch, len(rows))
            if values is None:
                yield from leaf_arrays(column.examples(by_batch, len(rows)))
            else:
                yield values

    def _examples(self, by_batch: Sequence[BatchRows], count: int) -> list[Tree]:
        return self.structure.build_all(
            [column.examples(by_batch, count) for column in self.columns], count
        )


def sample_rows(length: int, total_bytes: int, most: int) -> Integers:
    """Evenly spaced rows of a table, of about `most` bytes, including the first and the last."""
    row_bytes = max(1, total_bytes // max(1, length))
    return np.unique(
        np.linspace(0, length - 1, max(2, min(length, most // row_bytes))).astype(
            np.int64
        )
    )
