"""Converts columns of data frames to arrays of their own dtypes, without Arrow.

A frame is never converted whole: NumPy would make one array of a common dtype, in which large integers are rounded.
Each column is converted by its own library after a check of its type, so that nulls and objects never become numbers.
"""

import sys
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadax.core.formatting import count_text
from loadax.errors import LeafTypeError, SourceError
from loadax.sources.library import comes_from

_NUMBERS = "biufcmM"  # kinds of dtypes; dates are for maps, JAX refuses them later


class _Column(NamedTuple):
    """A column: its type, number of nulls, and conversion to an array (None: impossible)."""

    dtype: Any
    nulls: int
    convert: Callable[[], Any] | None


def is_frame(data: Any) -> bool:
    """Whether something is a data frame of pandas, polars or Arrow."""
    return any(comes_from(data, module, *names) for module, names in _FRAMES.items())


def is_column(data: Any) -> bool:
    """Whether something is a single column of pandas, polars or Arrow."""
    return any(comes_from(data, module, *names) for module, names in _COLUMNS.items())


_FRAMES = {
    "pandas": ("DataFrame",),
    "polars": ("DataFrame",),
    "pyarrow": ("Table", "RecordBatch"),
}
_COLUMNS = {
    "pandas": ("Series", "Index"),
    "polars": ("Series",),
    "pyarrow": ("Array", "ChunkedArray"),
}


def plain_columns(frame: Any) -> dict[Any, NDArray[Any]] | None:
    """Converts a frame to a dict of its columns, without a pandas index; None if a column takes Arrow to read.

    Raises:
        SourceError: When there is no column, or two have the same name.
    """
    names = list(frame.columns if hasattr(frame, "dtypes") else frame.schema.names)
    if not names:
        raise SourceError(
            f"the {type(frame).__name__} has no columns; pass one with at least one "
            "column"
        )
    name, count = Counter(names).most_common(1)[0]
    if count > 1:
        raise SourceError(
            f"{count_text(count, 'column')} of the {type(frame).__name__} are "
            f"called {name!r}; give each its own name"
        )
    if comes_from(frame, "pyarrow", *_FRAMES["pyarrow"]):
        return None
    columns = {name: _look(frame[name]) for name in names}
    if any(
        column.convert is None or column.nulls or not _is_number(column.dtype)
        for column in columns.values()
    ):
        return None
    return {
        name: np.asarray(column.convert())
        for name, column in columns.items()
        if column.convert is not None
    }


def _is_number(dtype: Any) -> bool:
    """Whether a dtype of pandas or polars is one of numbers, not of times."""
    if isinstance(dtype, np.dtype):
        return dtype.kind in "biufc"
    return hasattr(dtype, "is_temporal") and not dtype.is_temporal()


def column_array(column: Any, name: str) -> NDArray[Any]:
    """Converts a single column to an array.

    Args:
        column: Column for which `is_column` is true.
        name: Name for messages.

    Raises:
        SourceError: When it has nulls; names it.
        LeafTypeError: When it is not numeric; names it.
    """
    info = _look(column)
    if info.convert is None:
        raise LeafTypeError(
            f"{name} is a column of {info.dtype}, which is not numeric; leave it "
            "out, or encode it as numbers"
        )
    if info.nulls:
        raise SourceError(
            f"{name} is a column with {info.nulls} nulls, which an array of "
            f"{info.dtype} can't hold; fill them first"
        )
    return np.asarray(info.convert())


def _look(column: Any) -> _Column:
    if comes_from(column, "pandas", *_COLUMNS["pandas"]):
        return _of_pandas(column)
    if comes_from(column, "polars", "Series"):
        return _of_polars(column)
    return _of_arrow(column)


def _of_pandas(column: Any) -> _Column:
    if isinstance(column.dtype, np.dtype):
        # NaN is a number here: values of NumPy's own dtypes are kept.
        return _Column(
            column.dtype,
            0,
            column.to_numpy if column.dtype.kind in _NUMBERS else None,
        )
    numbers = getattr(column.dtype, "numpy_dtype", None)  # nullable and Arrow dtypes
    if numbers is None or numbers.kind not in _NUMBERS:
        return _Column(column.dtype, 0, None)
    return _Column(
        column.dtype, int(column.isna().sum()), lambda: column.to_numpy(dtype=numbers)
    )


def _of_polars(column: Any) -> _Column:
    polars = sys.modules["polars"]
    odd = column.dtype == polars.Decimal or str(column.dtype).endswith("Int128")
    numeric = (
        column.dtype.is_numeric() and not odd
    ) or column.dtype == polars.Boolean
    good = numeric or (column.dtype.is_temporal() and column.dtype != polars.Time)
    return _Column(
        column.dtype, column.null_count(), column.to_numpy if good else None
    )


def _of_arrow(column: Any) -> _Column:
    types = sys.modules["pyarrow"].types
    good = types.is_primitive(column.type) and not types.is_time(column.type)
    if hasattr(column, "combine_chunks"):
        whole = column.combine_chunks()
    else:
        whole = column
    convert = (lambda: whole.to_numpy(zero_copy_only=False)) if good else None
    return _Column(column.type, column.null_count, convert)
