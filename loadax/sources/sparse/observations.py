"""Columns of the table `obs` of AnnData, of which categories become codes."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from loadax.core.formatting import count_text, some
from loadax.errors import ArgumentError, LeafTypeError, SourceError
from loadax.protocols import Array
from loadax.sources.frame_columns import column_array
from loadax.sources.library import comes_from


def read_observations(
    table: Any, names: Sequence[str], nulls: int | None
) -> tuple[dict[str, Array], dict[str, dict[str, Any]]]:
    """Reads columns of a table.

    Args:
        table: Data frame, or group of AnnData's; None: there is none.
        names: Names of the columns.
        nulls: Code of missing categories; None: they are an error.

    Returns:
        The columns by name, and names of their categories as `Traits.attributes`.

    Raises:
        ArgumentError: When a column is not there.
        SourceError: When one has nulls.
        LeafTypeError: When one is not numeric.
    """
    columns: dict[str, Array] = {}
    attributes: dict[str, dict[str, Any]] = {}
    for name in names:
        if table is None or not isinstance(name, str) or name not in table:
            known = "none" if table is None else some(map(repr, table), 10)
            raise ArgumentError(
                f"obs has no column {name!r}, but {known}; or pass a dict of arrays"
            )
        column, categories = _read_column(name, table[name])
        if categories is not None:
            attributes[name] = {"classes": [str(each) for each in categories]}
            missing = column < 0
            count = np.count_nonzero(missing)
            if count and nulls is None:
                raise SourceError(
                    f"obs[{name!r}] has no category in {count_text(int(count), 'row')}; "
                    "pass nulls=-1, or another code for these"
                )
            if nulls is not None:
                column = np.where(missing, np.int32(nulls), column.astype(np.int32))
        columns[name] = column
    return columns, attributes


def _read_column(name: str, column: Any) -> tuple[Array, Any]:
    """Values of a column, or codes and their categories."""
    if comes_from(column, "pandas", "Series"):
        if hasattr(column, "cat"):
            return np.array(column.cat.codes), column.cat.categories
        return column_array(column, f"obs[{name!r}]"), None
    kind = column.attrs.get("encoding-type")
    if kind == "categorical":
        categories = column["categories"]
        if hasattr(categories, "asstr") and categories.dtype.kind == "O":
            categories = categories.asstr()
        return column["codes"][...], categories[...]
    dtype = getattr(column, "dtype", None)
    if getattr(dtype, "kind", "O") not in "biuf":
        raise LeafTypeError(
            f"obs[{name!r}] is {kind or dtype}, which is not numeric; leave it out, or "
            f"make it a category: data.obs[{name!r}] = "
            f"data.obs[{name!r}].astype('category')"
        )
    return column[...], None
