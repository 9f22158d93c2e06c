"""Columns of Arrow record batches, read at any rows into NumPy's memory.

Rows are looked up record batch by record batch: Arrow's own `take` on a chunked column of lists or texts first joins
all of its chunks, which reads the whole file and overflows offsets beyond 2 GiB. Arrow stores numbers as NumPy does, so
they are gathered from its memory directly.
"""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np

from loadax.core.array_parts import put_parts, take_parts
from loadax.core.spec import all_columns
from loadax.protocols import Array, ArraySpec, Columns, Integers
from loadax.sources.tables.arrow.column_layout import (
    arrow_ints,
    check_shape,
    innermost,
    layout,
    offsets_of,
    plain_bytes,
    storage,
    value_type,
    view,
    wrong_size,
)


class BatchRows(NamedTuple):
    """Rows to read of one record batch.

    Args:
        batch: Which record batch.
        places: Index of these rows among all that are read together.
        rows: int64[n], within the record batch.
        span: The same rows where they are consecutive; else None.
    """

    batch: int
    places: slice | Integers
    rows: Integers
    span: slice | None = None

    def joined(self, first: int) -> "BatchRows":
        """The same rows of the only record batch, which joins several: those of this one begin at row `first`."""
        span = self.span and slice(self.span.start + first, self.span.stop + first)
        return BatchRows(
            0, self.places, self.rows + first if first else self.rows, span
        )


def rows_by_batch(starts: Integers, rows: Integers) -> list[BatchRows]:
    """Rows by record batch.

    Args:
        starts: The first row of each record batch, ascending from 0.
        rows: int64[n], in any order.
    """
    if not len(rows):
        return []
    if len(starts) == 1:
        return [_batch_rows(0, slice(None), rows)]
    first, last = (np.searchsorted(starts, rows[[0, -1]], side="right") - 1).tolist()
    # as whole row groups are read
    if first <= last <= first + len(rows) and (rows[1:] >= rows[:-1]).all():
        cuts = [
            0,
            *np.searchsorted(rows, starts[first + 1 : last + 1]).tolist(),
            len(rows),
        ]
        spans = (
            (batch, low, high)
            for batch, (low, high) in enumerate(pairwise(cuts), first)
            if low < high
        )
        return [
            _batch_rows(batch, slice(low, high), rows[low:high] - starts[batch])
            for batch, low, high in spans
        ]
    which = np.searchsorted(starts, rows, side="right") - 1
    order = np.argsort(which, kind="stable")
    ends = np.flatnonzero(np.diff(which[order], append=-1)) + 1
    begins = [0, *ends[:-1].tolist()]
    by_batch = []
    for begin, end in zip(begins, ends.tolist(), strict=True):
        places: slice | Integers = order[begin:end]  # ascending
        batch = int(which[order[begin]])
        low = int(order[begin])
        high = int(order[end - 1]) + 1
        if high - low == end - begin:
            places = slice(low, high)
        by_batch.append(_batch_rows(batch, places, rows[places] - starts[batch]))
    return by_batch


def _batch_rows(batch: int, places: slice | Integers, rows: Integers) -> BatchRows:
    first = int(rows[0])
    last = int(rows[-1])
    consecutive = last - first + 1 == len(rows) and bool((rows[1:] > rows[:-1]).all())
    return BatchRows(
        batch, places, rows, slice(first, last + 1) if consecutive else None
    )


@final
@dataclass(eq=False)
class ColumnPart:
    """A column of one record batch, shared by joined columns.

    Args:
        array: Arrow array.
        view: Its memory as NumPy's; None: it was not viewed yet.
    """

    array: Any
    view: Any = None


@final
class Numbers:
    """Numbers, or arrays of them that all have one shape.

    Args:
        spec: Of one row.
        arrays: One a record batch.
    """

    def __init__(self, spec: ArraySpec, arrays: Sequence[Any]):
        self.spec = spec
        self.parts = list(map(ColumnPart, arrays))

    def read(self, by_batch: Sequence[BatchRows], count: int) -> Array:
        out = np.empty((count, *self.spec.shape), self.spec.dtype)
        self.fill(by_batch, None, out)
        return out

    def fill(
        self, by_batch: Sequence[BatchRows], columns: Columns | None, out: Array
    ) -> None:
        """Writes rows to `out`: all of each (None), or a column box of it."""
        whole = columns is None or columns == all_columns(self.spec.shape)
        box: Any
        if columns is None or whole:
            box = ()
        else:
            box = tuple(slice(*each) for each in columns)
        taken = whole and out.dtype == self.spec.dtype and out.flags.c_contiguous
        for batch, places, rows, span in by_batch:
            values = self.parts[batch].view
            if values is None:
                values, rows, span = self._open(self.parts[batch], rows, span)  # noqa: PLW2901
            if span is not None:
                out[places] = values[(span, *box)]
            elif taken and isinstance(places, slice):
                # Any mode but "raise" writes to `out` itself, "wrap" the fastest; that the rows exist was checked.
                values.take(rows, axis=0, out=out[places], mode="wrap")
            else:
                out[places] = values[(rows, *box)]

    def examples(self, by_batch: Sequence[BatchRows], count: int) -> list[Any]:
        return list(self.read(by_batch, count))

    def _open(
        self, part: ColumnPart, rows: Integers, span: slice | None
    ) -> tuple[Array, Integers, slice | None]:
        """The numbers of a record batch, or of some of its rows alone, and where the rows are in them."""
        array = part.array
        if (
            not self.spec.shape
            and (numbers := view(storage(array), self.spec.dtype)) is not None
        ):
            part.view = numbers
            return numbers, rows, span
        values = view(innermost(array), self.spec.dtype)
        size = int(np.prod(self.spec.shape, dtype=np.int64))
        if (
            values is not None
            and len(values) == len(array) * size
            and wrong_size(array, self.spec) is None
        ):
            opened = part.view = values.reshape(len(array), *self.spec.shape)
            return opened, rows, span
        # Bits and days become bytes and dates, and rows of null that nothing reads take no room among lists.
        wanted = array.take(arrow_ints(rows))
        check_shape(wanted, self.spec)
        taken = innermost(wanted).to_numpy(zero_copy_only=False)
        taken = taken.astype(self.spec.dtype, copy=False).reshape(
            len(rows), *self.spec.shape
        )
        return taken, np.arange(len(rows)), slice(0, len(rows))


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
        self.parts = list(map(ColumnPart, arrays))

    def read(self, by_batch: Sequence[BatchRows], count: int) -> Array | None:
        lengths = self.lengths(by_batch, count)
        if count:
            length = int(lengths[0])
        else:
            length = 0
        if (lengths != length).any():
            return None
        return self.read_parts(by_batch, np.zeros(count, np.int64), lengths).reshape(
            count, length, *self.inner.shape
        )

    def examples(self, by_batch: Sequence[BatchRows], count: int) -> list[Any]:
        lengths = self.lengths(by_batch, count)
        joined = self.read_parts(by_batch, np.zeros(count, np.int64), lengths)
        ends = np.cumsum(lengths).tolist()
        return [
            joined[begin:end] for begin, end in zip([0, *ends], ends, strict=False)
        ]

    def lengths(self, by_batch: Sequence[BatchRows], count: int) -> Integers:
        """Entries of each row, as int64[count]."""
        found = np.empty(count, np.int64)
        for batch, places, rows, _ in by_batch:
            offsets = self._open(self.parts[batch])[0]
            found[places] = offsets[rows + 1] - offsets[rows]
        return found

    def read_parts(
        self, by_batch: Sequence[BatchRows], starts: Integers, lengths: Integers
    ) -> Array:
        """Reads `lengths[i]` entries of row i from entry `starts[i]` on, concatenated."""
        ends = np.cumsum(lengths)
        out = np.empty(
            (int(ends[-1]) if len(ends) else 0, *self.inner.shape), self.inner.dtype
        )
        for batch, places, rows, _ in by_batch:
            offsets, values = self._open(self.parts[batch])
            if len(by_batch) == 1:
                return take_parts(values, offsets[rows] + starts, lengths)
            put_parts(
                values,
                offsets[rows] + starts[places],
                lengths[places],
                out,
                (ends - lengths)[places],
            )
        return out

    def _open(self, part: ColumnPart) -> tuple[Integers, Array]:
        """Where the lists of a record batch begin and end, and all of their entries."""
        if part.view is None:
            array = storage(part.array)
            check_shape(array.values, self.inner)
            values = view(innermost(array.values), self.inner.dtype)
            assert values is not None
            part.view = offsets_of(array), values.reshape(-1, *self.inner.shape)
        opened: tuple[Integers, Array] = part.view
        return opened


@final
class Objects:
    """Columns that NumPy has no numbers for: texts, bytes, images, lists of lists.

    Args:
        spec: Of one row; None where the objects may become arrays, of any shape.
        arrays: One a record batch.
        decode: Makes a row of what Arrow gives for one.
    """

    def __init__(
        self,
        spec: ArraySpec | None,
        arrays: Sequence[Any],
        decode: Callable[[Any], Any] | None,
    ):
        self.spec = spec
        self.decode = decode
        self.parts = list(map(ColumnPart, arrays))

    def read(self, by_batch: Sequence[BatchRows], count: int) -> Array | None:
        if self.spec is None:
            return None
        out = np.empty(count, object)
        for row, example in enumerate(self.examples(by_batch, count)):
            out[row] = example
        return out

    def examples(self, by_batch: Sequence[BatchRows], count: int) -> list[Any]:
        found = [None] * count
        for batch, places, rows, _ in by_batch:
            taken = self.parts[batch].array.take(arrow_ints(rows)).to_pylist()
            if isinstance(places, slice):
                indices = range(count)[places]
            else:
                indices = places.tolist()
            for index, value in zip(indices, taken, strict=True):
                if self.decode is None or value is None:
                    found[index] = value
                else:
                    found[index] = self.decode(value)
        return found


# One column of all record batches; its `spec` is None where the rows need not be alike.
Column: TypeAlias = Numbers | Lists | Objects


def joined(columns: Sequence[Column]) -> Column:
    """The column of the record batches of several, which are of one type."""
    column = copy(columns[0])
    column.parts = [part for each in columns for part in each.parts]
    return column


def column_of(
    arrays: Sequence[Any],
    kind: Any,
    decode: Callable[[Any], Any] | None,
    dtype: np.dtype[Any] | None = None,
) -> Column:
    """The column of these arrays, one a record batch.

    Args:
        arrays: Of one type.
        kind: That type.
        decode: Makes a row of what Arrow gives for one; None: it is what Arrow gives.
        dtype: Dtype of the numbers; None: that of the type.
    """
    shape, stored = layout(kind)
    dtype = dtype or stored
    if decode is not None:
        return Objects(None, arrays, decode)
    if dtype is None:
        return Objects(
            None if shape else ArraySpec((), np.dtype(object)), arrays, None
        )
    known = tuple(size for size in shape if size is not None)
    if known == shape:
        return Numbers(ArraySpec(known, dtype), arrays)
    if known == shape[1:] and plain_bytes(value_type(kind), dtype):
        return Lists(ArraySpec(known, dtype), arrays)
    return Objects(
        None,
        arrays,
        (lambda row: np.asarray(row, dtype)) if len(shape) == 1 else None,
    )
