"""Types that differ in Arrow's notes alone, such as string and large_string, as one."""

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from loadax.errors import SourceError
from loadax.sources.tables.arrow.column_layout import is_list, is_list_view
from loadax.sources.tables.arrow.leaves import is_category, is_text

_BYTES = (pa.binary(), pa.large_binary(), pa.binary_view())


def unified_schema(
    schemas: Iterable[tuple[str, Any]],
    names: Sequence[str],
    chosen: bool,
    remedy: str,
) -> Any:
    """The schema of columns, as which those of all files are read.

    Args:
        schemas: Location and schema of each file.
        names: Names of the columns.
        chosen: Whether the user chose them, so that files may have others.
        remedy: What to do about columns of two types.

    Raises:
        SourceError: When a file lacks a column, has others, or has one of another type; names it.
    """
    (first, schema), *others = schemas
    wanted = set(names)
    # those of one name too, which are refused
    fields = [field for field in schema if field.name in wanted]
    known = {field.name: field.type for field in fields}
    for location, other in others:
        types = {field.name: field.type for field in other}
        for name in names:
            if name not in types:
                raise SourceError(
                    f"{location}: there is no column {name!r}, which {first} has; "
                    "pass files of one schema, or "
                    f"columns={[each for each in names if each in types]!r}"
                )
            kind = unified(known[name], types[name])
            if kind is None:
                raise SourceError(
                    f"{location}: column {name!r} contains {types[name]}, and "
                    f"{known[name]} in {first}; pass files of one schema, or {remedy}"
                )
            known[name] = kind
        if chosen:
            extra = None
        else:
            extra = next((name for name in types if name not in known), None)
        if extra is not None:
            raise SourceError(
                f"{location}: there is a column {extra!r}, which {first} has not; "
                f"pass files of one schema, or columns={list(names)!r} to leave it "
                "out"
            )
    if others:
        return pa.schema(
            [pa.field(field.name, known[field.name]) for field in fields]
        )
    return pa.schema(fields)


def unified(first: Any, other: Any) -> Any | None:  # noqa: PLR0911 - a table of types
    """The type as which columns of both types are read; None if they differ in leaves or dtypes."""
    types = pa.types
    if first == other or types.is_null(other):
        return first
    if types.is_null(first):
        return other
    if is_text(first) and is_text(other):
        return pa.large_string()
    if first in _BYTES and other in _BYTES:
        return pa.large_binary()
    if types.is_timestamp(first) and types.is_timestamp(other):
        # In all time zones the same ints are the same instants; without one they are no instants.
        if first.unit == other.unit and bool(first.tz) == bool(other.tz):
            return first
        return None
    if is_category(first) and is_category(other):
        return pa.dictionary(pa.int32(), pa.large_string())
    if types.is_struct(first) and types.is_struct(other):
        return _struct(first, other)
    if types.is_map(first) and types.is_map(other):
        key = unified(first.key_type, other.key_type)
        item = unified(first.item_type, other.item_type)
        if key is None or item is None:
            return None
        return pa.map_(key, item)
    if (types.is_dictionary(first) or types.is_dictionary(other)) and not (
        is_category(first) or is_category(other)
    ):
        return unified(
            *(
                kind.value_type if types.is_dictionary(kind) else kind
                for kind in (first, other)
            )
        )
    extended = isinstance(first, pa.BaseExtensionType) or isinstance(
        other, pa.BaseExtensionType
    )
    if not extended and all(
        is_list(kind) or is_list_view(kind) for kind in (first, other)
    ):
        inner = unified(first.value_type, other.value_type)
        if inner is None:
            return None
        return pa.large_list(inner)
    return None


def _struct(first: Any, other: Any) -> Any | None:
    names = [field.name for field in first]
    if sorted(names) != sorted(field.name for field in other) or len(
        set(names)
    ) < len(names):
        return None
    members = [unified(field.type, other.field(field.name).type) for field in first]
    if None in members:
        return None
    return pa.struct(list(zip(names, members, strict=True)))
