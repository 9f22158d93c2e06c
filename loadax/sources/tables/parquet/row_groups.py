"""RowGroups: decodes row groups of Parquet files."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import final

import numpy as np

from loadax.files.remote_ranges import Wanted
from loadax.protocols import Boxes, Integers, Outputs, Tree
from loadax.sources.base import BaseSource, Traits
from loadax.sources.checks import check_rows, read_columns
from loadax.sources.tables.arrow.column_tree import ColumnTree
from loadax.sources.tables.arrow.columns import Numbers, rows_by_batch
from loadax.sources.tables.arrow.leaves import TableLeaf
from loadax.sources.tables.arrow.table_leaves import TableLeaves
from loadax.sources.tables.parquet.parquet_files import ParquetFiles, RowGroup


@final
class RowGroups(BaseSource):
    """Rows of Parquet files: decodes the row groups of the rows on every read; `ChunkCache` keeps numbers.

    Args:
        files: The files.
        leaves: Leaves to read.
    """

    traits = Traits(owns_memory=True, reads_columns=True)

    def __init__(self, files: ParquetFiles, leaves: TableLeaves):
        self.files = files
        self.leaves = leaves
        rows = files.groups["rows"]
        self.starts = np.cumsum(rows) - rows
        self._length = int(rows.sum())

    @property
    def spec(self) -> Tree | None:
        return self.leaves.empty.spec

    @property
    def chunks(self) -> Integers | range:
        """First rows of the row groups, as a range where all but the last have the same number of rows."""
        if len(self.starts) > 1:
            step = int(self.starts[1])
        else:
            step = max(1, self._length)
        even = range(0, self._length, step)
        if np.array_equal(self.starts, even):
            return even
        return self.starts

    read = read_columns

    def read_into(self, rows: Integers, boxes: Boxes, out: Outputs) -> None:
        """Decodes the wanted columns of each row group once; of numbers alone."""
        rows = check_rows(rows, self._length)
        wanted = [
            index
            for index, box in enumerate(boxes)
            if box is not None and out[index] is not None
        ]
        if not wanted:
            return
        by_batch = rows_by_batch(self.starts, rows)
        decoded = self.decode(
            [each.batch for each in by_batch],
            [self.leaves.leaves[index] for index in wanted],
        )
        remaining = iter(by_batch)
        for groups, tree in decoded:
            first = 0
            for group, each in zip(groups, remaining):  # noqa: B905 - the rest is of later groups
                joined = each.joined(first)
                first += group.rows
                for index, column in zip(wanted, tree.columns, strict=True):
                    box = boxes[index]
                    destination = out[index]
                    assert isinstance(column, Numbers)
                    assert destination is not None
                    column.fill([joined], box, destination)

    def decode(
        self, indices: Sequence[int], leaves: Sequence[TableLeaf] | None = None
    ) -> Iterator[tuple[Sequence[RowGroup], ColumnTree]]:
        """Decodes leaves (None: all) of row groups, one or several small ones after the other, joined.

        Raises:
            SourceError: When a file is damaged, or there are nulls without a value; names the file and the row.
        """
        names = [
            leaf.names for leaf in (self.leaves.leaves if leaves is None else leaves)
        ]
        for groups, table in self.files.read(
            list(map(self.files.group, indices)), names
        ):
            # Only texts of more than 2 GiB are decoded to several chunks.
            yield (
                groups,
                self.leaves.columns(
                    table.combine_chunks(), partial(self._row_text, groups), leaves
                ),
            )

    def wanted_of(self, indices: Sequence[int]) -> Wanted:
        """What decoding row groups will request of remote files."""
        names = [leaf.names for leaf in self.leaves.leaves]
        return self.files.wanted(list(map(self.files.group, indices)), names)

    def _row_text(self, groups: Sequence[RowGroup], row: int) -> str:
        """Name of a row of these row groups, joined."""
        which = int(
            np.searchsorted(
                ends := np.cumsum([group.rows for group in groups]), row, side="right"
            )
        )
        group = groups[which]
        return (
            f"row {group.first_row + group.rows - int(ends[which]) + row} of "
            f"{self.files.location(group)}"
        )

    def decode_one(self, index: int) -> ColumnTree:
        """Decodes a row group."""
        # all of it: a reader left in the middle is closed
        ((_, tree),) = self.decode([index])
        return tree

    def size(self, index: int) -> int:
        """Bytes of a decoded row group."""
        return int(self.files.groups["size"][index])

    def group_of(self, row: int) -> tuple[RowGroup, int]:
        """The row group of a row, and the row of its file."""
        index = int(np.searchsorted(self.starts, row, side="right")) - 1
        group = self.files.group(index)
        return group, group.first_row + row - int(self.starts[index])
