"""Leaves of a table: the array that each Arrow type becomes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from loadax.core.tree import flatten
from loadax.errors import LeafTypeError, SourceError
from loadax.protocols import Tree
from loadax.sources.arrow.call import Call, refuse_repeated
from loadax.sources.arrow.columns import Column, column_of
from loadax.sources.arrow.layout import is_list
from loadax.sources.arrow.nulls import Nulls


@final
@dataclass(frozen=True)
class Leaf:
    """One leaf of the examples of a table.

    Args:
        names: Name of the column, and of the member of each struct below it.
        stored: Arrow type of the table's column.
        type: Arrow type that it is read as.
        classes: Names of the categories that its ints number; None for any other type.
    """

    names: tuple[str, ...]
    stored: Any
    type: Any
    classes: tuple[str, ...] | None = None

    @cached_property
    def path(self) -> str:
        """The names joined by dots."""
        return ".".join(self.names)

    @property
    def is_temporal(self) -> bool:
        """Whether its ints count units of time: those of the stored type."""
        return bool(pa.types.is_temporal(_scalar_type(self.stored)))

    @cached_property
    def _form(self) -> tuple[Any, np.dtype[Any] | None]:
        """The type with bytes for bits, and the dtype of its numbers where that is another one."""
        is_bool = pa.types.is_boolean(_scalar_type(self.type))
        return bytes_for_bits(self.type), np.dtype(bool) if is_bool else None

    def array_of(self, batch: Any) -> Any:
        """The array of a record batch, as `type`, with its nulls; null where a struct above it is."""
        array = batch.column(batch.schema.get_field_index(self.names[0]))
        for name in self.names[1:]:
            array = array.flatten()[array.type.get_field_index(name)]
        return self.plain(array)

    def column(self, arrays: Sequence[Any]) -> Column:
        """The column of arrays of `type` without nulls, one for each record batch."""
        stored, dtype = self._form
        converted = arrays if stored == self.type else [array.cast(stored) for array in arrays]
        return column_of(converted, stored, None, dtype)

    def plain(self, array: Any) -> Any:
        """An array as `type`, with its nulls."""
        kind = array.type
        if kind == self.type:
            return array
        if pa.types.is_dictionary(kind) and self.classes is not None:
            names = array.dictionary.cast(pa.large_string())
            return pc.index_in(names, pa.array(self.classes, names.type)).take(array.indices)
        if pa.types.is_run_end_encoded(kind) or pa.types.is_dictionary(kind):
            runs = pa.types.is_run_end_encoded(kind)
            return self.plain(pc.run_end_decode(array) if runs else array.dictionary_decode())
        if isinstance(kind, pa.FixedShapeTensorType):
            return _nested(array.storage, kind.shape)
        if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
            array = _without_views(array)
        return array if array.type == self.type else array.cast(self.type)


def _without_views(array: Any) -> Any:
    """Lists with offsets; pyarrow's own cast of list views makes arrays that are not valid."""
    lengths = pc.list_value_length(array).fill_null(0).to_numpy().astype(np.int64)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]))
    mask = array.is_null() if array.null_count else None
    return pa.LargeListArray.from_arrays(offsets, array.flatten(), mask=mask)


def leaves_of(schema: Any, call: Call, classes: Mapping[str, Sequence[str]]) -> Tree:
    """The leaves of a table's columns: a dict by column; a struct is a dict of its members.

    Args:
        schema: Arrow schema of the columns.
        call: The call that opens the table, for messages.
        classes: Categories of each leaf of dictionary type, by path.

    Raises:
        SourceError: When there is no column, or two leaves have one name.
        LeafTypeError: When a type has no array; names the column, and says what to write.
    """
    if not len(schema):
        raise SourceError("the table has no columns; pass one with at least one column")
    tree = _members(list(schema), (), call, classes)
    columns: dict[str, str] = {}
    for leaf in leaves_in(tree):
        # Nulls, categories and the columns of Parquet files are found by path.
        if leaf.path in columns:
            both = " and ".join(map(repr, dict.fromkeys((columns[leaf.path], leaf.names[0]))))
            raise SourceError(
                f"two leaves of {both} are called {leaf.path!r}; give each its own name{call.without(leaf.names[0])}"
            )
        columns[leaf.path] = leaf.names[0]
    return tree


def leaves_in(tree: Tree) -> list[Leaf]:
    """The leaves of a tree of them, in leaf order."""
    leaves: list[Leaf] = flatten(tree, is_leaf=lambda node: isinstance(node, Leaf))[0]
    return leaves


def _members(fields: Sequence[Any], above: tuple[str, ...], call: Call, classes: Mapping[str, Sequence[str]]) -> Tree:
    refuse_repeated([field.name for field in fields], ".".join(above))
    return {field.name: _leaf(field.type, (*above, field.name), call, classes) for field in fields}


def _leaf(kind: Any, names: tuple[str, ...], call: Call, classes: Mapping[str, Sequence[str]]) -> Any:
    if pa.types.is_struct(kind):
        return _members(list(kind), names, call, classes)
    target = plain_type(kind)
    if target is None:
        raise LeafTypeError(_refusal(kind, names, call))
    path = ".".join(names)
    return Leaf(names, kind, target, tuple(classes[path]) if is_category(kind) else None)


def is_category(kind: Any) -> bool:
    """Whether a type is a dictionary of texts, whose rows become ints."""
    return bool(pa.types.is_dictionary(kind)) and is_text(kind.value_type)


def is_text(kind: Any) -> bool:
    """Whether a type is one of texts."""
    types = pa.types
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def plain_type(kind: Any) -> Any | None:  # noqa: PLR0911 - a table of types
    """The Arrow type that a type is read as; None: it has no array.

    Times become ints of their width, categories their numbers, and views of texts become texts.
    """
    types = pa.types
    if is_category(kind):
        return pa.int32()
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    if isinstance(kind, pa.FixedShapeTensorType):
        return None if kind.permutation not in (None, sorted(kind.permutation)) else _nested_type(kind)
    if types.is_decimal(kind) or types.is_union(kind) or types.is_interval(kind) or types.is_null(kind):
        return None
    if types.is_temporal(kind):
        return pa.int32() if types.is_date32(kind) or types.is_time32(kind) else pa.int64()
    if types.is_string_view(kind):
        return pa.large_string()
    if types.is_binary_view(kind):
        return pa.large_binary()
    views = types.is_list_view(kind) or types.is_large_list_view(kind)
    if views or (is_list(kind) and not isinstance(kind, pa.BaseExtensionType)):
        inner = kind.value_type
        inner = inner if types.is_dictionary(inner) or types.is_run_end_encoded(inner) else plain_type(inner)
        if inner is None or (inner == kind.value_type and not views):
            return None if inner is None else kind
        if types.is_fixed_size_list(kind):
            return pa.list_(inner, kind.list_size)
        return pa.list_(inner) if types.is_list(kind) else pa.large_list(inner)
    return kind


def _nested_type(tensor: Any) -> Any:
    kind = tensor.value_type
    for extent in reversed(tensor.shape):
        kind = pa.list_(kind, extent)
    return kind


def bytes_for_bits(kind: Any) -> Any:
    """The type with a byte in place of each bit of bools."""
    if pa.types.is_boolean(kind):
        return pa.uint8()
    if isinstance(kind, pa.BaseExtensionType) or not is_list(kind):
        return kind
    inner = bytes_for_bits(kind.value_type)
    if inner == kind.value_type:
        return kind
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(inner, kind.list_size)
    return pa.list_(inner) if pa.types.is_list(kind) else pa.large_list(inner)


def _scalar_type(kind: Any) -> Any:
    """The type of the innermost entries of lists."""
    while not isinstance(kind, pa.BaseExtensionType) and (
        is_list(kind) or pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind)
    ):
        kind = kind.value_type
    return kind


def _nested(array: Any, shape: Sequence[int]) -> Any:
    """Lists of all numbers of a row as lists of lists, of a shape."""
    size = array.type.list_size
    values = array.values.slice(array.offset * size, len(array) * size)
    for extent in reversed(shape[1:]):
        values = pa.FixedSizeListArray.from_arrays(values, extent)
    return pa.FixedSizeListArray.from_arrays(values, shape[0], mask=array.is_null() if array.null_count else None)


def columns_of(
    leaves: Sequence[Leaf], batches: Sequence[Any], nulls: Nulls, where: Callable[[int], str] | None = None
) -> list[Column]:
    """The columns of record batches, one for each leaf.

    Args:
        leaves: Leaves to read.
        batches: Record batches, which have their columns.
        nulls: What nulls become.
        where: The name of a row for messages, by its index among those of the batches; None: its number.

    Raises:
        SourceError: When there are nulls, and no value for them; names every such column and its first row.
    """
    arrays = {leaf.path: [leaf.array_of(batch) for batch in batches] for leaf in leaves}
    filled = nulls.fill(arrays, where)
    return [leaf.column(filled[leaf.path]) for leaf in leaves]


def _refusal(kind: Any, names: tuple[str, ...], call: Call) -> str:
    path = ".".join(names)
    leave_out = call.without(names[0])
    if pa.types.is_null(kind):
        remedy = "give it values"
        if call.has_dtypes and len(names) == 1:
            remedy = f"state it, as in dtypes={{{path!r}: 'float64'}}"
        return f"column {path!r} has nothing but nulls, so it has no dtype; {remedy}{leave_out}"
    remedy = "write it as another type"
    if pa.types.is_decimal(kind) and len(names) == 1:
        remedy = f"cast it to numbers: {call.cast(path)}"
    return f"column {path!r} contains {kind}, which an array can't hold; {remedy}{leave_out}"
