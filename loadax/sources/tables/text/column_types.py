"""`dtypes=`: dtypes of columns of text files, whose types are otherwise inferred."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from loadax.core.arguments import dtype as checked_dtype, shown
from loadax.errors import ArgumentError
from loadax.sources.tables.arrow.column_layout import is_list


def arrow_types(dtypes: Any, text: bool) -> dict[str, Any]:
    """Arrow types by column.

    Args:
        dtypes: Dict of dtypes by column, or None.
        text: Whether `str` may be one of them.

    Raises:
        ArgumentError: When it is not a dict of names and dtypes of numbers, bools or text.
    """
    if dtypes is None:
        return {}
    if not isinstance(dtypes, Mapping):
        raise ArgumentError(
            f"dtypes={shown(dtypes)}: pass a dict such as {{'x': 'float32'}}"
        )
    types = {}
    for name, value in dtypes.items():
        dtype = checked_dtype(f"dtypes[{name!r}]", value)
        if dtype.kind not in ("biufU" if text else "biuf") or dtype == np.float16:
            raise ArgumentError(
                f"dtypes[{name!r}]={shown(value)}: pass a dtype of numbers or bools, "
                f"such as 'float32'{', or str' if text else ''}; a map can cast to "
                "others"
            )
        if dtype.kind == "U":
            types[name] = pa.string()
        else:
            types[name] = pa.from_numpy_dtype(dtype)
    return types


def with_types(schema: Any, types: Mapping[str, Any], names: Sequence[str]) -> Any:
    """Fields of a schema with other types; in a list that of its entries.

    Raises:
        ArgumentError: When a column does not exist.
    """
    check_columns(types, schema.names)
    known = {name: schema.field(name).type for name in names}
    return pa.schema(
        [
            (name, _innermost(kind, types.get(name, kind)))
            for name, kind in known.items()
        ]
    )


def check_columns(types: Mapping[str, Any], names: Sequence[str]) -> None:
    """Raises an error for the type of a column that does not exist."""
    for name in types:
        if name not in names:
            raise ArgumentError(
                f"dtypes: there is no column {name!r}; there are {list(names)}",
                argument="dtypes",
            )


def _innermost(kind: Any, other: Any) -> Any:
    if is_list(kind) and kind != other:
        return pa.list_(_innermost(kind.value_type, other))
    return other
