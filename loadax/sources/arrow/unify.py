"""Types that differ in Arrow's notes alone, such as string and large_string, as one."""

from typing import Any

import pyarrow as pa

from loadax.sources.arrow.layout import is_list
from loadax.sources.arrow.leaves import is_category, is_text

_BYTES = (pa.binary(), pa.large_binary(), pa.binary_view())


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
        return first if first.unit == other.unit and bool(first.tz) == bool(other.tz) else None
    if is_category(first) and is_category(other):
        return pa.dictionary(pa.int32(), pa.large_string())
    if types.is_struct(first) and types.is_struct(other):
        return _struct(first, other)
    if types.is_map(first) and types.is_map(other):
        key, item = unified(first.key_type, other.key_type), unified(first.item_type, other.item_type)
        return None if key is None or item is None else pa.map_(key, item)
    if (types.is_dictionary(first) or types.is_dictionary(other)) and not (is_category(first) or is_category(other)):
        return unified(_values(first), _values(other))
    if _is_list(first) and _is_list(other):
        inner = unified(first.value_type, other.value_type)
        return None if inner is None else pa.large_list(inner)
    return None


def _values(kind: Any) -> Any:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _struct(first: Any, other: Any) -> Any | None:
    names = [field.name for field in first]
    if sorted(names) != sorted(field.name for field in other) or len(set(names)) < len(names):
        return None
    members = [unified(field.type, other.field(field.name).type) for field in first]
    return None if None in members else pa.struct(list(zip(names, members, strict=True)))


def _is_list(kind: Any) -> bool:
    views = pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind)
    return views or (is_list(kind) and not isinstance(kind, pa.BaseExtensionType))
