"""Leaves of a table: the array that each Arrow type becomes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from loadax.errors import ArgumentError, LeafTypeError
from loadax.protocols import Tree
from loadax.sources.tables.arrow.call import Call, refuse_repeated
from loadax.sources.tables.arrow.column_layout import (
    by_type,
    is_list,
    is_list_view,
    list_array,
    list_of,
)
from loadax.sources.tables.arrow.columns import Column, column_of


@final
@dataclass(frozen=True)
class TableLeaf:
    """One leaf of the examples of a table.

    Args:
        names: Name of the column, and of the member of each struct below it.
        stored: Arrow type of the table's column.
        type: Arrow type that it is read as.
        classes: Names of the categories that its ints number; None for any other type.
        stated: Whether the user stated these names, so that there may be others.
    """

    names: tuple[str, ...]
    stored: Any
    type: Any
    classes: tuple[str, ...] | None = None
    stated: bool = False

    @cached_property
    def path(self) -> str:
        """The names joined by dots."""
        return ".".join(self.names)

    @property
    def is_temporal(self) -> bool:
        """Whether its ints count units of time: those of the stored type."""
        return bool(pa.types.is_temporal(_scalar_type(self.stored)))

    def array(self, table: Any) -> Any:
        """Its array, or chunked array, of a record batch or table, with the nulls of structs above it."""
        array = table.column(table.schema.get_field_index(self.names[0]))
        for name in self.names[1:]:
            if pa.types.is_struct(array.type):  # else it has nothing but nulls
                array = pc.struct_field(array, array.type.get_field_index(name))
        return array

    def column(self, arrays: Sequence[Any]) -> Column:
        """The column of arrays of `type` without nulls, one for each record batch."""
        stored = bytes_for_bits(self.type)
        if pa.types.is_boolean(_scalar_type(self.type)):
            dtype = np.dtype(bool)
        else:
            dtype = None
        if stored == self.type:
            converted = arrays
        else:
            converted = [array.cast(stored) for array in arrays]
        return column_of(converted, stored, None, dtype)

    def plain(self, array: Any) -> Any:
        """An array as `type`, with its nulls."""
        kind = array.type
        if kind == self.type:
            return array
        if self.classes is not None and not pa.types.is_null(kind):
            coded = pa.types.is_dictionary(kind)
            names = (array.dictionary if coded else array).cast(pa.large_string())
            numbers = pc.index_in(names, pa.array(self.classes, names.type))
            if coded:
                return numbers.take(array.indices)
            return numbers
        if pa.types.is_run_end_encoded(kind) or pa.types.is_dictionary(kind):
            runs = pa.types.is_run_end_encoded(kind)
            return self.plain(
                pc.run_end_decode(array) if runs else array.dictionary_decode()
            )
        if is_list_view(kind):
            # pyarrow's own cast of list views makes arrays that are not valid.
            array = list_array(
                array, array.flatten(), array.is_null() if array.null_count else None
            )
        if array.type == self.type:
            return array
        return array.cast(self.type)


def members_of(
    fields: Sequence[Any],
    above: tuple[str, ...],
    call: Call,
    stated: Mapping[str, Sequence[str]],
) -> Tree:
    """The leaves of columns, or of members of the struct `above`, by name; a struct is a dict of its members."""
    refuse_repeated([field.name for field in fields], ".".join(above))
    return {
        field.name: _leaf(field.type, (*above, field.name), call, stated)
        for field in fields
    }


def _leaf(
    kind: Any, names: tuple[str, ...], call: Call, stated: Mapping[str, Sequence[str]]
) -> Any:
    if pa.types.is_struct(kind):
        return members_of(list(kind), names, call, stated)
    path = ".".join(names)
    if path in stated:
        if not is_category(kind) and not is_text(kind):
            raise ArgumentError(
                f"classes: column {path!r} contains {kind}, not categories or texts; "
                "leave it out there",
                argument="classes",
            )
        return TableLeaf(names, kind, pa.int32(), tuple(stated[path]), stated=True)
    target = plain_type(kind)
    if target is None:
        raise LeafTypeError(_refusal(kind, names, call))
    return TableLeaf(names, kind, target)


@by_type
def is_category(kind: Any) -> bool:
    """Whether a type is a dictionary of texts, whose rows become ints."""
    return bool(pa.types.is_dictionary(kind)) and is_text(kind.value_type)


def is_text(kind: Any) -> bool:
    """Whether a type is one of texts."""
    types = pa.types
    return bool(
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_string_view(kind)
    )


@by_type
def plain_type(kind: Any) -> Any | None:  # noqa: PLR0911 - a table of types
    """The Arrow type that a type is read as; None: it has no array.

    Times become ints of their width, categories their numbers, and views of texts become texts.
    """
    types = pa.types
    if is_category(kind):
        return pa.int32()
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    if isinstance(kind, pa.FixedShapeTensorType) and (
        kind.permutation or []
    ) != sorted(kind.permutation or []):
        return None
    if (
        types.is_decimal(kind)
        or types.is_union(kind)
        or types.is_interval(kind)
        or types.is_null(kind)
    ):
        return None
    if types.is_temporal(kind):
        if types.is_date32(kind) or types.is_time32(kind):
            return pa.int32()
        return pa.int64()
    if types.is_string_view(kind):
        return pa.large_string()
    if types.is_binary_view(kind):
        return pa.large_binary()
    views = is_list_view(kind)
    if views or (is_list(kind) and not isinstance(kind, pa.BaseExtensionType)):
        inner = kind.value_type
        if not (types.is_dictionary(inner) or types.is_run_end_encoded(inner)):
            inner = plain_type(inner)
        if inner is None or (inner == kind.value_type and not views):
            if inner is None:
                return None
            return kind
        return list_of(inner, kind)
    return kind


@by_type
def bytes_for_bits(kind: Any) -> Any:
    """The type with a byte in place of each bit of bools."""
    if pa.types.is_boolean(kind):
        return pa.uint8()
    if isinstance(kind, pa.BaseExtensionType) or not is_list(kind):
        return kind
    inner = bytes_for_bits(kind.value_type)
    if inner == kind.value_type:
        return kind
    return list_of(inner, kind)


@by_type
def _scalar_type(kind: Any) -> Any:
    """The type of the innermost entries of lists."""
    while not isinstance(kind, pa.BaseExtensionType) and (
        is_list(kind) or is_list_view(kind)
    ):
        kind = kind.value_type
    return kind


def _refusal(kind: Any, names: tuple[str, ...], call: Call) -> str:
    path = ".".join(names)
    leave_out = call.without(names[0])
    if pa.types.is_null(kind):
        typed = call.has_dtypes and len(names) == 1
        if typed:
            remedy = f"state it, as in dtypes={{{path!r}: 'float64'}}"
        else:
            remedy = "give it values"
        return (
            f"column {path!r} has nothing but nulls, so it has no dtype; "
            f"{remedy}{leave_out}"
        )
    cast = pa.types.is_decimal(kind) and len(names) == 1 and call.table is not None
    if cast:
        remedy = f"cast it to numbers: {call.cast(path)}"
    else:
        remedy = "write it as another type"
    return (
        f"column {path!r} contains {kind}, which an array can't hold; "
        f"{remedy}{leave_out}"
    )
