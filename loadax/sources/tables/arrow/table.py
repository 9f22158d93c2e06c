"""TableSource: rows of an Arrow table in memory or memory-mapped."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, final

from loadax.core.buffers import BufferPool
from loadax.protocols import Array, Boxes, Integers, LeafArrays, Tree, Visits
from loadax.sources.base import Attributes, BaseSource
from loadax.sources.checks import check_rows
from loadax.sources.tables.arrow.call import Call
from loadax.sources.tables.arrow.column_tree import ColumnTree, sample_rows
from loadax.sources.tables.arrow.table_leaves import TableLeaves

_FEW_ROWS = 1 << 16  # rows of a batch; in smaller ones, rows of a batch cost more to find than to copy
_IDLE_BYTES = 64 << 20  # idle memory of the buffers for batches
_COMBINED_BYTES = 4 << 30  # largest table that is copied for that


# Function of rows: the rows of the columns that they are.
RowMap: TypeAlias = Callable[[Integers], Integers]


@final
class TableSource(BaseSource):
    """Rows of Arrow record batches, in memory or memory-mapped: dicts of columns.

    Args:
        tree: The columns.
        text: Kind of the table, and types of the columns, for messages.
        attributes: What the numbers of leaves mean.
        opened: Function that opens the table, and its arguments: the source pickles as these.
        held: Function of a number of bytes: arrays in memory to hash.
        addresses: Files that the table was read from.
        mapping: Rows of the columns, and number of rows; None: all rows of the columns, in their order.
    """

    addresses: Sequence[str] = ()

    def __init__(
        self,
        tree: ColumnTree,
        text: str,
        attributes: Attributes,
        opened: tuple[Callable[..., "TableSource"], tuple[Any, ...]],
        held: Callable[[int], Iterator[Array]],
        addresses: Sequence[str],
        mapping: tuple[RowMap, int] | None = None,
    ):
        self._tree, self._text, self._opened, self._held = tree, text, opened, held
        self._map: RowMap | None
        self._map, self._length = mapping or (None, len(tree))
        self.addresses = list(addresses)
        self.traits = tree.traits._replace(attributes=attributes)
        self._buffers = BufferPool(_IDLE_BYTES)  # new pages of memory take as long as the rows

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        return self._text

    @property
    def spec(self) -> Tree | None:
        """None if the rows of a column may differ in shape: lists of any length, images."""
        return self._tree.spec

    def read(self, rows: Integers) -> Tree:
        """Reads the rows, stacked; lists and images must be alike."""
        return self._tree.read(self._rows(rows), rows, self._buffers.lease)

    def read_into(self, rows: Integers, boxes: Boxes, out: Sequence[Array | None]) -> None:
        if self.traits.reads_columns:
            self._tree.fill(self._rows(rows), boxes, out)
        else:
            super().read_into(rows, boxes, out)

    def read_examples(self, visits: Visits) -> list[Tree]:
        return self._tree.examples(self._rows(visits.rows))

    def keep_leaves(self, leaves: Mapping[str, int]) -> "TableSource":
        tree, mapping = self._tree.keep(leaves), self._map and (self._map, self._length)
        opened = TableSource.keep_leaves, (self, leaves)
        return TableSource(tree, self._text, {}, opened, self._held, self.addresses, mapping)

    def lengths(self, rows: Integers) -> Integers | None:
        return self._tree.lengths(self._rows(rows))

    def read_parts(self, rows: Integers, starts: Integers, lengths: Integers, wanted: Sequence[bool]) -> LeafArrays:
        return self._tree.parts(self._rows(rows), starts, lengths, wanted)

    def held(self, most: int) -> Iterator[Array]:
        return self._held(most)

    def __reduce__(self) -> Any:
        return self._opened

    def _rows(self, rows: Integers) -> Integers:
        """Rows of the columns."""
        rows = check_rows(rows, self._length)
        return rows if self._map is None else self._map(rows)


def open_table(
    table: Any, nulls: Any, call: Call, addresses: Sequence[str], where: Callable[[int], str] | None, classes: Any
) -> TableSource:
    """The source of a table in memory.

    Args:
        table: `pyarrow.Table` of the columns to read.
        nulls: What nulls become; see `Nulls`.
        call: The call that opens the table, for messages.
        addresses: Files that the table was read from.
        where: The name of a row for messages; None: its number.
        classes: Names of categories by column that the user states; see `stated_classes`.
    """
    opened = open_table, (table, nulls, call, addresses, None, classes)
    nbytes = table.nbytes
    table = table if nbytes > _COMBINED_BYTES else _with_large_batches(table)
    leaves = TableLeaves(table.schema, call, nulls, classes, lambda _: [table])
    tree = leaves.columns(table, where)

    def held(most: int) -> Iterator[Array]:
        yield from leaves.stated_names
        if len(tree):
            yield from tree.sample(sample_rows(len(tree), nbytes, most))

    return TableSource(tree, f"Arrow columns ({leaves})", leaves.attributes, opened, held, addresses)


def _with_large_batches(table: Any) -> Any:
    """A table of many small record batches as one of few."""
    batches = max(1, max((column.num_chunks for column in table.columns), default=1))
    return table.combine_chunks() if batches > 1 and table.num_rows < batches * _FEW_ROWS else table
