"""Leaves of a table: the array that each Arrow type becomes."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from loadax.core.arguments import entries, shown
from loadax.core.tree import Structure, flatten
from loadax.errors import ArgumentError, LeafTypeError, SourceError
from loadax.protocols import Tree
from loadax.sources.arrow.call import Call, refuse_repeated
from loadax.sources.arrow.columns import Column, column_of
from loadax.sources.arrow.layout import by_type, is_list, is_list_view, list_of
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

    @cached_property
    def _form(self) -> tuple[Any, np.dtype[Any] | None]:
        """The type with bytes for bits, and the dtype of its numbers where that is another one."""
        is_bool = pa.types.is_boolean(_scalar_type(self.type))
        return bytes_for_bits(self.type), np.dtype(bool) if is_bool else None

    def array(self, table: Any) -> Any:
        """Its array, or chunked array, of a record batch or table, with the nulls of structs above it."""
        array = table.column(table.schema.get_field_index(self.names[0]))
        for name in self.names[1:]:
            if pa.types.is_struct(array.type):  # else it has nothing but nulls
                array = pc.struct_field(array, array.type.get_field_index(name))
        return array

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
        if self.classes is not None and not pa.types.is_null(kind):
            coded = pa.types.is_dictionary(kind)
            names = (array.dictionary if coded else array).cast(pa.large_string())
            numbers = pc.index_in(names, pa.array(self.classes, names.type))
            return numbers.take(array.indices) if coded else numbers
        if pa.types.is_run_end_encoded(kind) or pa.types.is_dictionary(kind):
            runs = pa.types.is_run_end_encoded(kind)
            return self.plain(pc.run_end_decode(array) if runs else array.dictionary_decode())
        if is_list_view(kind):
            array = _without_views(array)
        return array if array.type == self.type else array.cast(self.type)


def _without_views(array: Any) -> Any:
    """Lists with offsets; pyarrow's own cast of list views makes arrays that are not valid."""
    lengths = pc.list_value_length(array).fill_null(0).to_numpy().astype(np.int64)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]))
    mask = array.is_null() if array.null_count else None
    return pa.LargeListArray.from_arrays(offsets, array.flatten(), mask=mask)


def leaves_of(
    schema: Any,
    call: Call,
    stated: Mapping[str, Sequence[str]],
    tables: Callable[[Sequence[str]], Iterable[Any]] = lambda _: (),
) -> tuple[list[Leaf], Structure]:
    """The leaves of a table's columns, in leaf order, and their tree: a dict by column; a struct is a dict of members.

    Args:
        schema: Arrow schema of the columns.
        call: The call that opens the table, for messages.
        stated: Names of categories by path that the user stated; texts become categories too.
        tables: Function of names of columns: tables with some of them, whose dictionaries name the other categories.

    Raises:
        ArgumentError: When categories are stated for something else.
        SourceError: When there is no column, or two leaves have one name.
        LeafTypeError: When a type has no array; names the column, and says what to write.
    """
    if not len(schema):
        raise SourceError("the table has no columns; pass one with at least one column")
    leaves: list[Leaf]
    tree = _members(list(schema), (), call, stated)
    leaves, structure = flatten(tree, is_leaf=lambda node: isinstance(node, Leaf))
    columns: dict[str, str] = {}
    for leaf in leaves:
        # Nulls and categories are found by path.
        if leaf.path in columns:
            both = " and ".join(map(repr, dict.fromkeys((columns[leaf.path], leaf.names[0]))))
            raise SourceError(
                f"two leaves of {both} are called {leaf.path!r}; give each its own name{call.without(leaf.names[0])}"
            )
        columns[leaf.path] = leaf.names[0]
    for path in stated:
        if path not in columns:
            raise ArgumentError(f"classes: there is no column {path!r}; there are {list(columns)}", argument="classes")
    return _with_categories(leaves, tables), structure


def _with_categories(leaves: list[Leaf], tables: Callable[[Sequence[str]], Iterable[Any]]) -> list[Leaf]:
    """The leaves with the names of categories that are not stated, in the order in which record batches have them."""
    unnamed = [leaf for leaf in leaves if is_category(leaf.stored) and not leaf.stated]
    if not unnamed:
        return leaves
    names: dict[str, dict[str, None]] = {leaf.path: {} for leaf in unnamed}
    for table in tables(list(dict.fromkeys(leaf.names[0] for leaf in unnamed))):
        for leaf in unnamed:
            for chunk in leaf.array(table).chunks if leaf.names[0] in table.column_names else ():
                if is_category(chunk.type):  # and not of nothing but nulls
                    names[leaf.path].update(dict.fromkeys(chunk.dictionary.drop_null().to_pylist()))
    return [replace(leaf, classes=tuple(names[leaf.path])) if leaf.path in names else leaf for leaf in leaves]


def stated_classes(given: Any) -> dict[str, tuple[str, ...]]:
    """The names of categories by column that the user states: `classes=`.

    Raises:
        ArgumentError: When they are no dict of lists of different texts.
    """
    if given is None:
        return {}
    example = "pass a dict of the names by column, such as classes={'label': ['cat', 'dog']}"
    if not isinstance(given, Mapping):
        raise ArgumentError(f"classes={shown(given)}: {example}", argument="classes")
    classes = {}
    for path, names in given.items():
        listed = classes[path] = tuple(entries(f"classes[{path!r}]", names, "names of categories"))
        if not listed or len(set(listed)) < len(listed) or not all(isinstance(name, str) for name in listed):
            raise ArgumentError(
                f"classes[{path!r}]={shown(names)} are no different texts; {example}", argument="classes"
            )
    return classes


def _members(fields: Sequence[Any], above: tuple[str, ...], call: Call, stated: Mapping[str, Sequence[str]]) -> Tree:
    refuse_repeated([field.name for field in fields], ".".join(above))
    return {field.name: _leaf(field.type, (*above, field.name), call, stated) for field in fields}


def _leaf(kind: Any, names: tuple[str, ...], call: Call, stated: Mapping[str, Sequence[str]]) -> Any:
    if pa.types.is_struct(kind):
        return _members(list(kind), names, call, stated)
    path = ".".join(names)
    if path in stated:
        if not is_category(kind) and not is_text(kind):
            raise ArgumentError(
                f"classes: column {path!r} contains {kind}, not categories or texts; leave it out there",
                argument="classes",
            )
        return Leaf(names, kind, pa.int32(), tuple(stated[path]), stated=True)
    target = plain_type(kind)
    if target is None:
        raise LeafTypeError(_refusal(kind, names, call))
    return Leaf(names, kind, target)


@by_type
def is_category(kind: Any) -> bool:
    """Whether a type is a dictionary of texts, whose rows become ints."""
    return bool(pa.types.is_dictionary(kind)) and is_text(kind.value_type)


def is_text(kind: Any) -> bool:
    """Whether a type is one of texts."""
    types = pa.types
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


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
    if isinstance(kind, pa.FixedShapeTensorType) and kind.permutation not in (None, sorted(kind.permutation)):
        return None
    if types.is_decimal(kind) or types.is_union(kind) or types.is_interval(kind) or types.is_null(kind):
        return None
    if types.is_temporal(kind):
        return pa.int32() if types.is_date32(kind) or types.is_time32(kind) else pa.int64()
    if types.is_string_view(kind):
        return pa.large_string()
    if types.is_binary_view(kind):
        return pa.large_binary()
    views = is_list_view(kind)
    if views or (is_list(kind) and not isinstance(kind, pa.BaseExtensionType)):
        inner = kind.value_type
        inner = inner if types.is_dictionary(inner) or types.is_run_end_encoded(inner) else plain_type(inner)
        if inner is None or (inner == kind.value_type and not views):
            return None if inner is None else kind
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
    return kind if inner == kind.value_type else list_of(inner, kind)


@by_type
def _scalar_type(kind: Any) -> Any:
    """The type of the innermost entries of lists."""
    while not isinstance(kind, pa.BaseExtensionType) and (is_list(kind) or is_list_view(kind)):
        kind = kind.value_type
    return kind


def arrays_of(
    leaves: Sequence[Leaf], batch: Any, where: Callable[[int], str] = "row {}".format, first: int = 0
) -> Iterator[Any]:
    """Yields the array of each leaf of a record batch, as its `type`, with its nulls and those of structs above it.

    Args:
        leaves: The leaves.
        batch: A record batch.
        where: The name of a row for messages.
        first: The batch's first row.

    Raises:
        SourceError: When there is a category that the user has not stated; names it and its row.
    """
    for leaf in leaves:
        array = leaf.array(batch)
        plain = leaf.plain(array)
        if leaf.stated and plain.null_count > array.null_count:
            for row in np.flatnonzero(plain.is_null().to_numpy(zero_copy_only=False)).tolist():
                if (name := array[row].as_py()) is not None:
                    raise SourceError(
                        f"{where(first + row)}: column {leaf.path!r} has the category {name!r}, which is not in "
                        f"classes[{leaf.path!r}]; add it there, or correct that row"
                    )
        yield plain


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
    name, first = where or "row {}".format, 0
    arrays: dict[str, list[Any]] = {leaf.path: [] for leaf in leaves}
    for batch in batches:
        for leaf, array in zip(leaves, arrays_of(leaves, batch, name, first), strict=True):
            arrays[leaf.path].append(array)
        first += len(batch)
    filled = nulls.fill(arrays, where)
    return [leaf.column(filled[leaf.path]) for leaf in leaves]


def _refusal(kind: Any, names: tuple[str, ...], call: Call) -> str:
    path, leave_out = ".".join(names), call.without(names[0])
    if pa.types.is_null(kind):
        typed = call.has_dtypes and len(names) == 1
        remedy = f"state it, as in dtypes={{{path!r}: 'float64'}}" if typed else "give it values"
        return f"column {path!r} has nothing but nulls, so it has no dtype; {remedy}{leave_out}"
    return f"column {path!r} contains {kind}, which an array can't hold; cast it to numbers with pyarrow{leave_out}"
