"""TableSource: rows of an Arrow table in memory or memory-mapped, and tables of whatever has Arrow's C interface."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias, final

import numpy as np
import pyarrow as pa

from loadax.core.buffers import BufferPool
from loadax.core.formatting import type_text
from loadax.errors import ArgumentError, LeafTypeError, SourceError
from loadax.protocols import Array, Boxes, Integers, LeafArrays, Outputs, Tree, Visits
from loadax.sources.base import Attributes, BaseSource
from loadax.sources.checks import check_rows
from loadax.sources.library import comes_from
from loadax.sources.tables.arrow.call import Call, column_names
from loadax.sources.tables.arrow.column_tree import ColumnTree, sample_rows
from loadax.sources.tables.arrow.table_leaves import TableLeaves

# rows of a batch; in smaller ones, rows of a batch cost more to find than to copy
_FEW_ROWS = 1 << 16
_IDLE_BYTES = 64 << 20  # idle memory of the buffers for batches
COMBINED_BYTES = 4 << 30  # largest table that is copied for that


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
        self._tree = tree
        self._text = text
        self._opened = opened
        self._held = held
        self._map: RowMap | None
        self._map, self._length = mapping or (None, len(tree))
        self.addresses = list(addresses)
        self.structure = tree.structure
        self.traits = tree.traits._replace(attributes=attributes)
        # new pages of memory take as long as the rows
        self._buffers = BufferPool(_IDLE_BYTES)

    def __repr__(self) -> str:
        return self._text

    @property
    def spec(self) -> Tree | None:
        """None if the rows of a column may differ in shape: lists of any length, images."""
        return self._tree.spec

    def read(self, rows: Integers) -> Tree:
        """Reads the rows, stacked; lists and images must be alike."""
        return self._tree.read(self._rows(rows), rows, self._buffers.lease)

    def read_into(self, rows: Integers, boxes: Boxes, out: Outputs) -> None:
        if self.traits.reads_columns:
            self._tree.fill(self._rows(rows), boxes, out)
        else:
            super().read_into(rows, boxes, out)

    def read_examples(self, visits: Visits) -> list[Tree]:
        return self._tree.examples(self._rows(visits.rows))

    def keep_leaves(self, leaves: Tree) -> "TableSource":
        tree = self._tree.keep(leaves)
        mapping = self._map and (self._map, self._length)
        opened = TableSource.keep_leaves, (self, leaves)
        return TableSource(
            tree, self._text, {}, opened, self._held, self.addresses, mapping
        )

    def lengths(self, rows: Integers) -> Integers | None:
        return self._tree.lengths(self._rows(rows))

    def read_parts(
        self,
        rows: Integers,
        starts: Integers,
        lengths: Integers,
        wanted: Sequence[bool],
    ) -> LeafArrays:
        return self._tree.parts(self._rows(rows), starts, lengths, wanted)

    def held(self, most: int) -> Iterator[Array]:
        return self._held(most)

    def __reduce__(self) -> Any:
        return *self._opened, {"described": self.described, "traits": self.traits}

    def _rows(self, rows: Integers) -> Integers:
        """Rows of the columns."""
        rows = check_rows(rows, self._length)
        if self._map is None:
            return rows
        return self._map(rows)


def open_table(
    table: Any,
    nulls: Any,
    call: Call,
    addresses: Sequence[str],
    where: Callable[[int], str] | None,
    classes: Any,
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
    if not (nbytes > COMBINED_BYTES):
        table = _with_large_batches(table)
    leaves = TableLeaves(table.schema, call, nulls, classes, lambda _: [table])
    tree = leaves.columns(table, where)

    def held(most: int) -> Iterator[Array]:
        yield from leaves.stated_names
        if len(tree):
            yield from tree.sample(sample_rows(len(tree), nbytes, most))

    return TableSource(
        tree, f"Arrow columns ({leaves})", leaves.attributes, opened, held, addresses
    )


def _with_large_batches(table: Any) -> Any:
    """A table of many small record batches as one of few."""
    batches = max(1, max((column.num_chunks for column in table.columns), default=1))
    if batches > 1 and table.num_rows < batches * _FEW_ROWS:
        return table.combine_chunks()
    return table


def open_arrow(
    data: Any,
    columns: Sequence[str] | str | None = None,
    nulls: Any = None,
    classes: Any = None,
) -> TableSource:
    """The source of a table in memory; see `loadax.from_arrow`.

    Raises:
        ArgumentError: When it is no table, or an argument can't be used.
        SourceError: When a column has nulls; names the first row.
        LeafTypeError: When a column has a type that no array has.
    """
    table = as_table(data)
    if not table.num_columns:
        raise SourceError(
            f"the {type(data).__name__} has no columns; pass one with at least one "
            "column"
        )
    names = column_names(columns, table.column_names)
    if len(set(table.column_names)) == table.num_columns:
        table = table.select(names)
    call = Call("from_arrow", "data", "pyarrow.table(data)", tuple(names))
    return open_table(table, nulls, call, (), None, classes)


def as_table(data: Any) -> Any:
    """A `pyarrow.Table` of anything with Arrow's C stream or array interface, mostly without a copy.

    Raises:
        ArgumentError: When it has none, or is a single column.
    """
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatchReader):
        return data.read_all()
    if isinstance(data, pa.StructArray | pa.ChunkedArray) and pa.types.is_struct(
        data.type
    ):
        # Not by the interface, which has no place for rows of null.
        return pa.table(data.flatten(), [field.name for field in data.type])
    if comes_from(data, "duckdb", "DuckDBPyConnection"):
        raise ArgumentError(
            "the data is a connection of DuckDB; pass a query: "
            "connection.sql('SELECT …')"
        )
    if not hasattr(data, "__arrow_c_stream__") and not hasattr(
        data, "__arrow_c_array__"
    ):
        if isinstance(data, dict):
            instead = "a table of them: pyarrow.table(data)"
        else:
            instead = "loadax.as_dataset(data)"
        raise ArgumentError(
            f"the data is {type_text(data)}, without Arrow's C stream interface "
            "(__arrow_c_stream__); pass a table of pyarrow, polars, pandas or "
            f"DuckDB, or use {instead}"
        )
    if comes_from(data, "polars", "DataFrame"):
        for column, dtype in data.schema.items():
            # polars exports the addresses of objects; names of members and categories are in quotes.
            if odd := re.search("Object|U?Int128", re.sub("'[^']*'", "", str(dtype))):
                raise LeafTypeError(
                    f"column {column!r} of the DataFrame contains "
                    f"{odd[0].replace('Object', 'Python objects')}, which no array "
                    f"holds; cast or drop it, as in data.drop({column!r})"
                )
    try:
        if comes_from(data, "pandas", "DataFrame"):
            return _of_pandas(data)
        return pa.table(data)
    except (pa.ArrowException, OverflowError, TypeError) as error:
        if "non-struct" in str(error):
            raise ArgumentError(
                f"the data is {type_text(data)}, a single column; name it: "
                "loadax.from_arrow(pyarrow.table({'x': data}))"
            ) from error
        raise ArgumentError(
            f"the {type(data).__name__} can't be exported to Arrow: {error}; cast or "
            "drop that column"
        ) from error


def _of_pandas(frame: Any) -> Any:
    """The columns of a frame, without its index. NaN in a column of NumPy's floats stays NaN."""
    table = pa.Table.from_pandas(frame, preserve_index=False)
    kinds = [
        dtype.kind if isinstance(dtype, np.dtype) else "" for dtype in frame.dtypes
    ]
    pairs = zip(table.columns, kinds, strict=True)
    columns = [
        column.fill_null(np.nan) if kind == "f" and column.null_count else column
        for column, kind in pairs
    ]
    return pa.Table.from_arrays(columns, schema=table.schema)
