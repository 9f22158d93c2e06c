"""How Arrow stores the rows of a column: shapes, dtypes, and the memory of numbers as NumPy's."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from loadax.errors import SourceError
from loadax.protocols import Array, ArraySpec, Integers


def by_type(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function of a type that keeps its results; not those of users' types, which need not be hashable."""
    kept = lru_cache(maxsize=1024)(function)
    return lambda kind: (
        function(kind) if isinstance(kind, pa.BaseExtensionType) else kept(kind)
    )


def count_nulls(array: Any) -> int:
    """The nulls of an array of numbers or lists of them, at any depth; of any other array those at the top."""
    nulls = int(array.null_count)
    values = storage(array)
    if is_list(values.type) and layout(values.type)[1] is not None:
        nulls += count_nulls(values.flatten())
    return nulls


def check_shape(array: Any, spec: ArraySpec) -> None:
    """Refuses arrays of another shape than their type says, which Arrow does not check."""
    wrong = wrong_size(array, spec)
    if wrong is not None:
        dimension, size = wrong
        raise SourceError(
            f"dimension {dimension} of an array of {spec.dtype}{list(spec.shape)} is "
            f"{size}, not {spec.shape[dimension]}; write the dataset with the shape "
            "that its rows have"
        )


def wrong_size(array: Any, spec: ArraySpec) -> tuple[int, int] | None:
    """The first dimension in which an entry has another size than its type says, and that size; None: no entry has."""
    for dimension, expected in enumerate(spec.shape):
        array = storage(array)
        if not is_list(array.type):  # tensors are stored flat
            return None
        if not pa.types.is_fixed_size_list(array.type):
            sizes = np.diff(offsets_of(array))
            if len(wrong := sizes[sizes != expected]):
                return dimension, int(wrong[0])
        array = entries_of(array)
    return None


def storage(array: Any) -> Any:
    """An array of an extension type as what it is stored as."""
    if isinstance(array, pa.ExtensionArray):
        return array.storage
    return array


def is_list(kind: Any) -> bool:
    """Whether a type is one of lists, of a fixed length or not."""
    return (
        pa.types.is_list(kind)
        or pa.types.is_large_list(kind)
        or pa.types.is_fixed_size_list(kind)
    )


def is_list_view(kind: Any) -> bool:
    """Whether a type is one of lists with a length beside each offset."""
    return pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind)


def list_of(inner: Any, kind: Any) -> Any:
    """The type of lists of other entries that is like a type of lists, or of views of them."""
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(inner, kind.list_size)
    if pa.types.is_list(kind):
        return pa.list_(inner)
    return pa.large_list(inner)


def list_array(array: Any, values: Any, mask: Any = None) -> Any:
    """Lists of the lengths of those of an array, or of views of them; lists of null are empty, or null by the mask."""
    lengths = pc.list_value_length(array).fill_null(0).to_numpy().astype(np.int64)
    return pa.LargeListArray.from_arrays(
        arrow_ints(np.concatenate([[0], np.cumsum(lengths)])), values, mask=mask
    )


def view(values: Any, dtype: np.dtype[Any]) -> Array | None:
    """The memory of an array of numbers as NumPy's; None where they are stored in another form."""
    if not plain_bytes(values.type, dtype):
        return None
    buffer = values.buffers()[1]
    if buffer is None or not len(values):
        return np.empty(0, dtype)
    return np.frombuffer(buffer, dtype, len(values), values.offset * dtype.itemsize)


def arrow_ints(values: Integers) -> Any:
    """The memory of ints as Arrow's; `pyarrow.array` imports pandas."""
    values = np.ascontiguousarray(values, np.int64)
    return pa.Array.from_buffers(
        pa.int64(), len(values), [None, pa.py_buffer(values)]
    )


def offsets_of(array: Any) -> Integers:
    """Where the lists of an array begin and end, as int64; `to_numpy` imports pandas."""
    offsets = view(array.offsets, np.dtype(f"i{array.offsets.type.bit_width // 8}"))
    assert offsets is not None
    return offsets.astype(np.int64, copy=False)


def plain_bytes(kind: Any, dtype: np.dtype[Any]) -> bool:
    """Whether Arrow stores numbers as NumPy does: booleans are bits, and days of a date are few."""
    return kind.bit_width == 8 * dtype.itemsize


@by_type
def layout(kind: Any) -> tuple[tuple[int | None, ...], np.dtype[Any] | None]:
    """The shape of one row, None where lengths differ, and the dtype of its numbers, None where it has none."""
    if isinstance(kind, pa.BaseExtensionType):
        shape, dtype = layout(kind.storage_type)
        return tuple(getattr(kind, "shape", shape)), dtype
    if is_list(kind):
        shape, dtype = layout(kind.value_type)
        return (getattr(kind, "list_size", None), *shape), dtype
    return (), number_dtype(kind)


def value_type(kind: Any) -> Any:
    """The type of the innermost entries of lists."""
    while isinstance(kind, pa.BaseExtensionType) or is_list(kind):
        if isinstance(kind, pa.BaseExtensionType):
            kind = kind.storage_type
        else:
            kind = kind.value_type
    return kind


def number_dtype(kind: Any) -> np.dtype[Any] | None:
    """The dtype of a type of numbers or times; None for another one."""
    types = pa.types
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        return np.dtype(kind.to_pandas_dtype())
    if types.is_timestamp(kind) or types.is_duration(kind):
        return np.dtype(
            f"{'datetime64' if types.is_timestamp(kind) else 'timedelta64'}[{kind.unit}]"
        )
    if types.is_date(kind):
        return np.dtype(
            "datetime64[D]" if types.is_date32(kind) else "datetime64[ms]"
        )
    return None


def innermost(array: Any) -> Any:
    """The entries of an array of lists, of its own rows alone."""
    array = storage(array)
    while is_list(array.type):
        array = storage(entries_of(array))
    return array


def entries_of(array: Any) -> Any:
    """The entries of an array of lists, one level down."""
    if pa.types.is_fixed_size_list(array.type):  # whose rows of null take room
        size = array.type.list_size
        return array.values.slice(array.offset * size, len(array) * size)
    return array.flatten()


def without_views(array: Any) -> Any:
    """Texts and bytes in a form that Arrow can take rows of: it can't of views of them."""
    if array.type == pa.string_view():
        return array.cast(pa.large_string())
    if array.type == pa.binary_view():
        return array.cast(pa.large_binary())
    return array
