"""Nulls of a table: refused with the row of the first, or replaced by a value."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from loadax.core.arguments import shown
from loadax.errors import ArgumentError, SourceError
from loadax.sources.tables.arrow.call import Call
from loadax.sources.tables.arrow.column_layout import (
    count_nulls,
    is_list,
    layout,
    list_array,
    storage,
    value_type,
)

_NOTHING = object()


@final
class Nulls:
    """Values in place of nulls: `nulls=`.

    Args:
        given: Value for every column, or a dict of them by column (members of structs: "column.member"); None: a null
            is an error.
        columns: Column of each leaf, by path.
        call: The call that opens the table, for messages.

    Raises:
        ArgumentError: When the dict names a column that does not exist.
    """

    def __init__(self, given: Any, columns: Mapping[str, str], call: Call):
        self._given = given
        self._columns = columns
        self._call = call
        if isinstance(given, Mapping):
            for name in given:
                if name not in self._columns:
                    raise ArgumentError(
                        f"nulls={shown(given)}: there is no column {name!r}; there "
                        f"are {list(self._columns)}"
                    )

    def fill(
        self,
        arrays: Mapping[str, Sequence[Any]],
        where: Callable[[int], str] | None = None,
    ) -> dict[str, Any]:
        """The arrays with values in place of their nulls.

        Args:
            arrays: Arrays of each leaf by path, one for each record batch; of plain types, see `leaves.plain_type`.
            where: The name of a row for messages, by its index among those of the arrays; None: its number.

        Raises:
            SourceError: When there are nulls, and no value for them; names every such column and its first row.
            ArgumentError: When a value has another type than its column.
        """
        name = where or "row {}".format
        counts = {
            path: sum(map(nulls_of, batches)) for path, batches in arrays.items()
        }
        refused = {
            path: arrays[path]
            for path, count in counts.items()
            if count and not self.accepts(path)
        }
        if refused:
            rows = {
                path: name(first_null(batches)) for path, batches in refused.items()
            }
            found = (
                Found(path, refused[path][0].type, counts[path], row)
                for path, row in rows.items()
            )
            raise SourceError(self.refusal(found))
        return {
            path: [_filled(array, self._value(path), path) for array in batches]
            if counts[path]
            else list(batches)
            for path, batches in arrays.items()
        }

    def _value(self, path: str) -> Any:
        if isinstance(self._given, Mapping):
            return self._given.get(path, _NOTHING)
        if self._given is None:
            return _NOTHING
        return self._given

    def accepts(self, path: str) -> bool:
        """Whether there is a value for the nulls of a leaf."""
        return self._value(path) is not _NOTHING

    def refusal(self, found: Iterable["Found"]) -> str:
        """The message for nulls without a value."""
        if isinstance(self._given, Mapping):
            values = dict(self._given)
        else:
            values = {}
        texts = []
        columns: dict[str, None] = {}
        for path, kind, number, where in found:
            texts.append(
                f"column {path!r} has "
                f"{'a null' if number == 1 else f'{number} nulls, the first'} in "
                f"{where}"
            )
            values[path] = _example(kind)
            columns[self._columns[path]] = None
        return (
            f"{' and '.join(texts)}, which an array can't hold; say what nulls "
            f"become: {self._call.code(nulls=values)}{self._call.without(*columns)}"
        )


class Found(NamedTuple):
    """Nulls of a leaf.

    Args:
        path: Path of the leaf.
        type: Arrow type that it is read as.
        number: Number of nulls.
        where: Row of the first one, as text.
    """

    path: str
    type: Any
    number: int
    where: str


def nulls_of(array: Any) -> int:
    """Nulls of an array that has no place for them: those of the rows, and inside of lists of numbers."""
    if layout(array.type)[1] is not None:
        return count_nulls(array)
    return int(array.null_count)


def first_null(batches: Sequence[Any]) -> int:
    """The first row that is null, or whose lists contain one."""
    before = 0
    for array in batches:
        if nulls_of(array):
            return before + _first_null_of(array)
        before += len(array)
    raise AssertionError(batches)


def _first_null_of(array: Any) -> int:
    array = storage(array)
    if array.null_count:
        return int(pc.index(array.is_null(), True).as_py())
    return int(pc.list_parent_indices(array)[_first_null_of(array.flatten())].as_py())


def _example(kind: Any) -> Any:
    """A value that nulls of a type may become."""
    types = pa.types
    if layout(kind)[1] is not None:
        kind = value_type(kind)
    if types.is_string(kind) or types.is_large_string(kind):
        return ""
    if types.is_binary(kind) or types.is_large_binary(kind):
        return b""
    if types.is_fixed_size_binary(kind):
        return bytes(kind.byte_width)
    if types.is_boolean(kind):
        return False
    # No valid category, label or token.
    if types.is_nested(kind):
        return []
    if types.is_signed_integer(kind):
        return -1
    return 0


def _filled(array: Any, value: Any, path: str) -> Any:
    """The array without nulls. A list that is null becomes an empty one, or one of the value if its length is fixed."""
    if isinstance(array.type, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(
            array.type, _filled(array.storage, value, path)
        )
    kind = array.type
    if not is_list(kind) or layout(kind)[1] is None:
        if array.null_count:
            return array.fill_null(_scalar(value, kind, path))
        return array
    if pa.types.is_fixed_size_list(kind):
        size = kind.list_size
        values = array.values.slice(array.offset * size, len(array) * size)
        if array.null_count:
            present = np.repeat(array.is_valid().to_numpy(zero_copy_only=False), size)
            values = pc.if_else(
                pa.array(present), values, pa.scalar(None, values.type)
            )
        return pa.FixedSizeListArray.from_arrays(_filled(values, value, path), size)
    return list_array(array, _filled(array.flatten(), value, path))


def _scalar(value: Any, kind: Any, path: str) -> Any:
    try:
        scalar = pa.scalar(value, kind)
        same = scalar.as_py() == value or value != value  # noqa: PLR0124 - NaN
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        scalar = None
        same = False
    if not same:
        raise ArgumentError(
            f"nulls: column {path!r} contains {kind}, and {shown(value)} is not one; "
            f"pass a value of that type, such as nulls={{{path!r}: "
            f"{_example(kind)!r}}}",
            argument="nulls",
        )
    return scalar
