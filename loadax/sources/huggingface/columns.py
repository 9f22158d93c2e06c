"""Columns of Arrow record batches, read at any rows into NumPy's memory.

Rows are looked up record batch by record batch: Arrow's own `take` on a chunked column of lists or texts first joins
all of its chunks, which reads the whole file and overflows offsets beyond 2 GiB. Numbers lie in memory as NumPy has
them, and are gathered from there without any step between.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from loadax.errors import SourceError
from loadax.protocols import ArraySpec, Columns, Integers


class Run(NamedTuple):
    """Rows that are read of one record batch.

    Args:
        batch: Which record batch.
        places: Index of these rows among all that are read together.
        rows: int64[n], within the record batch.
    """

    batch: int
    places: slice | Integers
    rows: Integers


def runs_of(starts: Integers, rows: Integers) -> list[Run]:
    """Rows by record batch.

    Args:
        starts: The first row of each record batch, ascending from 0.
        rows: int64[n], in any order.
    """
    if not len(rows):
        return []
    which = np.searchsorted(starts, rows, side="right") - 1
    first = int(which[0])
    if (which == first).all():
        return [Run(first, slice(None), rows - starts[first])]
    order = np.argsort(which, kind="stable")
    ends = np.flatnonzero(np.diff(which[order], append=-1)) + 1
    begins = [0, *ends[:-1].tolist()]
    runs = []
    for begin, end in zip(begins, ends.tolist(), strict=True):
        places = order[begin:end]
        batch = int(which[places[0]])
        runs.append(Run(batch, places, rows[places] - starts[batch]))
    return runs


class Column(Protocol):
    """One column of all record batches."""

    @property
    def spec(self) -> ArraySpec | None:
        """Of one row; None where rows need not be alike."""
        ...

    def read(self, runs: Sequence[Run], count: int) -> NDArray[Any] | None:
        """`count` rows as an array, rows first; None where they are not alike."""
        ...

    def examples(self, runs: Sequence[Run], count: int) -> list[Any]:
        """`count` rows one by one, in memory that nobody else holds."""
        ...


@final
class Numbers:
    """Numbers, or arrays of them that all have one shape.

    Args:
        spec: Of one row.
        arrays: One a record batch.
    """

    def __init__(self, spec: ArraySpec, arrays: Sequence[Any]):
        self.spec = spec
        self._arrays = arrays
        self._views: list[NDArray[Any] | None] = [None] * len(arrays)

    def read(self, runs: Sequence[Run], count: int) -> NDArray[Any]:
        out = np.empty((count, *self.spec.shape), self.spec.dtype)
        self.fill(runs, None, out)
        return out

    def fill(self, runs: Sequence[Run], columns: Columns | None, out: NDArray[Any]) -> None:
        """Writes rows to `out`: all of each (None), or a column box of it."""
        for batch, places, rows in runs:
            part = self._views[batch]
            if part is None:
                part, rows = self._open(batch, rows)  # noqa: PLW2901
            if columns is None and isinstance(places, slice) and out.flags.c_contiguous:
                # Any mode but "raise" writes to `out` itself; that the rows are there was checked.
                np.take(part, rows, axis=0, out=out, mode="clip")
            else:
                box: Any = () if columns is None else tuple(slice(*each) for each in columns)
                out[places] = part[(rows, *box)]

    def examples(self, runs: Sequence[Run], count: int) -> list[Any]:
        return list(self.read(runs, count))

    def _open(self, batch: int, rows: Integers) -> tuple[NDArray[Any], Integers]:
        """The numbers of a record batch, or of some of its rows alone, and the index of the rows in them."""
        array = self._arrays[batch]
        values = view(_innermost(array), self.spec.dtype)
        size = int(np.prod(self.spec.shape, dtype=np.int64))
        if values is not None and len(values) == len(array) * size and _wrong_size(array, self.spec) is None:
            self._views[batch] = values.reshape(len(array), *self.spec.shape)
            return values.reshape(len(array), *self.spec.shape), rows
        # Bits and days become bytes and dates, and rows of null that nobody reads have no place among lists.
        wanted = array.take(pa.array(rows))
        _check_shape(wanted, self.spec)
        taken = _innermost(wanted).to_numpy(zero_copy_only=False)
        return taken.astype(self.spec.dtype, copy=False).reshape(len(rows), *self.spec.shape), np.arange(len(rows))


@final
class Lists:
    """Lists of any length: of numbers, or of arrays of one shape.

    Args:
        inner: Of one entry.
        arrays: One a record batch.
    """

    spec = None

    def __init__(self, inner: ArraySpec, arrays: Sequence[Any]):
        self.inner = inner
        self._arrays = arrays
        self._views: list[tuple[Integers, NDArray[Any]] | None] = [None] * len(arrays)

    def read(self, runs: Sequence[Run], count: int) -> NDArray[Any] | None:
        lengths = self.lengths(runs, count)
        length = int(lengths[0]) if count else 0
        if (lengths != length).any():
            return None
        return self.parts(runs, np.zeros(count, np.int64), lengths).reshape(count, length, *self.inner.shape)

    def examples(self, runs: Sequence[Run], count: int) -> list[Any]:
        lengths = self.lengths(runs, count)
        joined = self.parts(runs, np.zeros(count, np.int64), lengths)
        ends = np.cumsum(lengths).tolist()
        return [joined[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]

    def lengths(self, runs: Sequence[Run], count: int) -> Integers:
        """Entries of each row, as int64[count]."""
        found = np.empty(count, np.int64)
        for batch, places, rows in runs:
            offsets = self._open(batch)[0]
            found[places] = offsets[rows + 1] - offsets[rows]
        return found

    def parts(self, runs: Sequence[Run], starts: Integers, lengths: Integers) -> NDArray[Any]:
        """`lengths[i]` entries of row i from entry `starts[i]` on, one row's part behind another."""
        ends = np.cumsum(lengths)
        out = np.empty((int(ends[-1]) if len(ends) else 0, *self.inner.shape), self.inner.dtype)
        for batch, places, rows in runs:
            offsets, values = self._open(batch)
            begins, sizes = offsets[rows] + starts[places], lengths[places]
            contiguous = (begins[1:] == (begins + sizes)[:-1]).all()
            if contiguous and isinstance(places, slice):
                out[...] = values[begins[0] : begins[0] + len(out)]
            else:
                # Of each entry its index within its own part, and from there where it is and where it goes.
                within = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
                out[np.repeat((ends - lengths)[places], sizes) + within] = values[np.repeat(begins, sizes) + within]
        return out

    def _open(self, batch: int) -> tuple[Integers, NDArray[Any]]:
        """Where the lists of a record batch begin and end, and all of their entries."""
        opened = self._views[batch]
        if opened is None:
            array = storage(self._arrays[batch])
            _check_shape(array.values, self.inner)
            values = view(_innermost(array.values), self.inner.dtype)
            assert values is not None
            offsets = array.offsets.to_numpy().astype(np.int64)
            opened = self._views[batch] = offsets, values.reshape(-1, *self.inner.shape)
        return opened


@final
class Objects:
    """What NumPy has no numbers for: texts, bytes, images, lists of lists.

    Args:
        spec: Of one row; None where the objects may become arrays, of any shape.
        arrays: One a record batch.
        decode: Makes a row of what Arrow gives for one.
    """

    def __init__(self, spec: ArraySpec | None, arrays: Sequence[Any], decode: Callable[[Any], Any] | None):
        self.spec = spec
        self.decode = decode
        self._arrays = arrays

    def read(self, runs: Sequence[Run], count: int) -> NDArray[Any] | None:
        if self.spec is None:
            return None
        out = np.empty(count, object)
        for row, example in enumerate(self.examples(runs, count)):
            out[row] = example
        return out

    def examples(self, runs: Sequence[Run], count: int) -> list[Any]:
        found = [None] * count
        for batch, places, rows in runs:
            taken = self._arrays[batch].take(pa.array(rows)).to_pylist()
            indices = range(count) if isinstance(places, slice) else places.tolist()
            for index, value in zip(indices, taken, strict=True):
                found[index] = value if self.decode is None or value is None else self.decode(value)
        return found


def column_of(arrays: Sequence[Any], kind: Any, decode: Callable[[Any], Any] | None) -> Column:
    """The column of these arrays, one a record batch.

    Args:
        arrays: Of one type.
        kind: That type.
        decode: Makes a row of what Arrow gives for one; None: it is what Arrow gives.
    """
    shape, dtype = layout(kind)
    if decode is not None:
        return Objects(None, arrays, decode)
    if dtype is None:
        return Objects(None if shape else ArraySpec((), np.dtype(object)), arrays, None)
    known = tuple(size for size in shape if size is not None)
    if known == shape:
        return Numbers(ArraySpec(known, dtype), arrays)
    if known == shape[1:] and _plain_bytes(_value_type(kind), dtype):
        return Lists(ArraySpec(known, dtype), arrays)
    return Objects(None, arrays, (lambda row: np.asarray(row, dtype)) if len(shape) == 1 else None)


def count_nulls(array: Any) -> int:
    """The nulls of an array of numbers or lists of them, at any depth; of any other array those at the top."""
    nulls = int(array.null_count)
    values = storage(array)
    if is_list(values.type) and layout(values.type)[1] is not None:
        nulls += count_nulls(values.flatten())
    return nulls


def _check_shape(array: Any, spec: ArraySpec) -> None:
    """Refuses arrays of another shape than their type says, which Arrow does not check."""
    wrong = _wrong_size(array, spec)
    if wrong is not None:
        dimension, size = wrong
        raise SourceError(
            f"an array of {spec.dtype}{list(spec.shape)} has {size} entries in dimension {dimension}, "
            f"not {spec.shape[dimension]}; write the dataset with the shape that its rows have"
        )


def _wrong_size(array: Any, spec: ArraySpec) -> tuple[int, int] | None:
    """The first dimension in which an entry has another size than its type says, and that size; None: no entry has."""
    for dimension, expected in enumerate(spec.shape):
        array = storage(array)
        if not pa.types.is_fixed_size_list(array.type):
            sizes = np.diff(array.offsets.to_numpy())
            if len(wrong := sizes[sizes != expected]):
                return dimension, int(wrong[0])
        array = _entries(array)
    return None


def storage(array: Any) -> Any:
    """An array of an extension type as what it is stored as."""
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def is_list(kind: Any) -> bool:
    """Whether a type is one of lists, of a fixed length or not."""
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def view(values: Any, dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """The memory of an array of numbers as NumPy's; None where they are stored in another form."""
    if not _plain_bytes(values.type, dtype):
        return None
    buffer = values.buffers()[1]
    if buffer is None or not len(values):
        return np.empty(0, dtype)
    return np.frombuffer(buffer, dtype, len(values), values.offset * dtype.itemsize)


def _plain_bytes(kind: Any, dtype: np.dtype[Any]) -> bool:
    """Whether Arrow stores numbers as NumPy does: booleans are bits, and days of a date are few."""
    return kind.bit_width == 8 * dtype.itemsize


def layout(kind: Any) -> tuple[tuple[int | None, ...], np.dtype[Any] | None]:
    """The shape of one row, None where lengths differ, and the dtype of its numbers, None where it has none."""
    if isinstance(kind, pa.BaseExtensionType):
        shape, dtype = layout(kind.storage_type)
        return tuple(getattr(kind, "shape", shape)), dtype
    if is_list(kind):
        shape, dtype = layout(kind.value_type)
        return (getattr(kind, "list_size", None), *shape), dtype
    return (), _number(kind)


def _value_type(kind: Any) -> Any:
    while isinstance(kind, pa.BaseExtensionType) or is_list(kind):
        kind = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind.value_type
    return kind


def _number(kind: Any) -> np.dtype[Any] | None:
    types = pa.types
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        return np.dtype(kind.to_pandas_dtype())
    if types.is_timestamp(kind) or types.is_duration(kind):
        return np.dtype(f"{'datetime64' if types.is_timestamp(kind) else 'timedelta64'}[{kind.unit}]")
    if types.is_date(kind):
        return np.dtype("datetime64[D]" if types.is_date32(kind) else "datetime64[ms]")
    return None


def _innermost(array: Any) -> Any:
    """The entries of an array of lists, of its own rows alone."""
    array = storage(array)
    while is_list(array.type):
        array = storage(_entries(array))
    return array


def _entries(array: Any) -> Any:
    """The entries of an array of lists, one level down."""
    if pa.types.is_fixed_size_list(array.type):  # whose rows of null take room
        size = array.type.list_size
        return array.values.slice(array.offset * size, len(array) * size)
    return array.flatten()
