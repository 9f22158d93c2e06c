"""Opens tables in memory: anything with Arrow's C stream or array interface."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from loadax.core.formatting import type_text
from loadax.errors import ArgumentError, LeafTypeError, SourceError
from loadax.sources.library import comes_from
from loadax.sources.tables.arrow.call import Call, column_names
from loadax.sources.tables.arrow.table import TableSource, open_table


def open_arrow(
    data: Any, columns: Sequence[str] | str | None = None, nulls: Any = None, classes: Any = None
) -> TableSource:
    """The source of a table in memory; see `loadax.from_arrow`.

    Raises:
        ArgumentError: When it is no table, or an argument can't be used.
        SourceError: When a column has nulls; names the first row.
        LeafTypeError: When a column has a type that no array has.
    """
    table = as_table(data)
    if not table.num_columns:
        raise SourceError(f"the {type(data).__name__} has no columns; pass one with at least one column")
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
    if isinstance(data, pa.StructArray | pa.ChunkedArray) and pa.types.is_struct(data.type):
        # Not by the interface, which has no place for rows of null.
        return pa.table(data.flatten(), [field.name for field in data.type])
    if comes_from(data, "duckdb", "DuckDBPyConnection"):
        raise ArgumentError("the data is a connection of DuckDB; pass a query: connection.sql('SELECT …')")
    if not hasattr(data, "__arrow_c_stream__") and not hasattr(data, "__arrow_c_array__"):
        instead = "a table of them: pyarrow.table(data)" if isinstance(data, dict) else "loadax.as_dataset(data)"
        raise ArgumentError(
            f"the data is {type_text(data)}, without Arrow's C stream interface (__arrow_c_stream__); pass a table of "
            f"pyarrow, polars, pandas or DuckDB, or use {instead}"
        )
    if comes_from(data, "polars", "DataFrame"):
        for column, dtype in data.schema.items():
            # polars exports the addresses of objects; names of members and categories are in quotes.
            if odd := re.search("Object|U?Int128", re.sub("'[^']*'", "", str(dtype))):
                raise LeafTypeError(
                    f"column {column!r} of the DataFrame contains {odd[0].replace('Object', 'Python objects')}, which "
                    f"no array holds; cast or drop it, as in data.drop({column!r})"
                )
    try:
        return _of_pandas(data) if comes_from(data, "pandas", "DataFrame") else pa.table(data)
    except (pa.ArrowException, OverflowError, TypeError) as error:
        if "non-struct" in str(error):
            raise ArgumentError(
                f"the data is {type_text(data)}, a single column; name it: "
                "loadax.from_arrow(pyarrow.table({'x': data}))"
            ) from error
        raise ArgumentError(
            f"the {type(data).__name__} can't be exported to Arrow: {error}; cast or drop that column"
        ) from error


def _of_pandas(frame: Any) -> Any:
    """The columns of a frame, without its index. NaN in a column of NumPy's floats stays NaN."""
    table = pa.Table.from_pandas(frame, preserve_index=False)
    kinds = [dtype.kind if isinstance(dtype, np.dtype) else "" for dtype in frame.dtypes]
    pairs = zip(table.columns, kinds, strict=True)
    columns = [column.fill_null(np.nan) if kind == "f" and column.null_count else column for column, kind in pairs]
    return pa.Table.from_arrays(columns, schema=table.schema)
