"""Reads many parts of a byte stream that is stored in a sequence of files."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from loadax.errors import SourceError
from loadax.protocols import Integers, Location
from loadax.sources.io.byte_ranges import ByteRange, changed
from loadax.sources.io.file_map import FileMap
from loadax.sources.io.locations import cut_short
from loadax.sources.io.paths import local_path

_LONG = 64  # entries of a part from which slices are faster than an index array
_FEW, _LARGE = 16, 2 << 10  # rows of a file from which, and bytes of a row up to which, an indexed copy is faster
_MOST_MAPS = 1 << 14  # maps of a stream; a process may have 65,530 of them on Linux
_COPIED = 4 << 20  # bytes per copy: between two copies NumPy takes the GIL from other threads


class FileSpan(NamedTuple):
    """`size` bytes of a file, from byte `begin` on; a stream is a sequence of such segments.

    Args:
        location: Path or URL.
        begin: First byte.
        size: Number of bytes.
        modified: Time of the last change of a local file in ns, which may not change any more; None: it may.
    """

    location: str
    begin: int
    size: int
    modified: int | None = None


@final
class Ends:
    """Offsets of the segments in the stream: maps parts of the stream to segments."""

    def __init__(self, segments: Sequence[FileSpan]):
        self.segments = tuple(segments)
        self.locations = [segment.location for segment in self.segments]
        sizes = np.array([segment.size for segment in self.segments], np.int64)
        self.ends = np.cumsum(sizes)
        self.begins = self.ends - sizes

    @property
    def total(self) -> int:
        """Length of the stream in bytes."""
        return int(self.ends[-1])

    def owners(self, offsets: Integers) -> Integers:
        """Indices of the segments that contain these bytes of the stream."""
        return np.searchsorted(self.ends, offsets, side="right")

    def parts(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """Splits the bytes `start` to `stop` of the stream into `(segment, start, stop)` within each segment."""
        parts = []
        index = int(self.owners(np.array([start]))[0])
        while start < stop:
            begin, end = int(self.begins[index]), min(stop, int(self.ends[index]))
            if start < end:
                parts.append((index, start - begin, end - begin))
                start = end
            index += 1
        return parts

    def ranges(self, start: int, stop: int) -> list[ByteRange]:
        """Maps the bytes `start` to `stop` of the stream to byte ranges of the files."""
        parts = ((self.segments[index], low, high) for index, low, high in self.parts(start, stop))
        return [ByteRange(segment.location, segment.begin + low, segment.begin + high) for segment, low, high in parts]

    def locate(self, start: int, stop: int) -> list[Location]:
        """Maps the bytes `start` to `stop` of the stream to files, each with its first and last byte."""
        return [Location(location, first, end - 1) for location, first, end in self.ranges(start, stop)]


def stretches_of(memory: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Views the `size` bytes from each byte of `memory` on as overlapping rows."""
    return np.ndarray((len(memory) - size + 1, size), np.uint8, memory, 0, (1, 1))


def copy_stretches(
    stretches: NDArray[np.uint8], starts: Integers, out: NDArray[np.uint8], rows: Integers | None = None
) -> None:
    """Copies the stretches at `starts` to the rows `rows` of `out`; None: to all rows."""
    size = stretches.shape[1]
    if rows is None and out.flags.c_contiguous and not ((starts - starts[0]) % size).any():
        # They are rows of a table, which NumPy copies directly.
        phase = int(starts[0]) % size
        np.take(stretches[phase::size], starts // size, axis=0, out=out, mode="clip")
        return
    # Pieces of equal length: a short last piece would cost as much as a long one.
    pieces = max(1, round(len(starts) * size / _COPIED))
    step = -(-len(starts) // pieces)
    for low in range(0, len(starts), step):
        batch = slice(low, low + step)
        # Rows of bytes, not items of `size` bytes: NumPy keeps the GIL for copies of fewer than 500 items of any size.
        out[batch if rows is None else rows[batch]] = stretches[starts[batch]]


@final
class MappedSegments:
    """A stream of local files, memory-mapped on first use. Pickles as paths.

    Raises:
        SourceError: On a read, when a file is shorter than its segment or can't be mapped; names it.
    """

    far = False

    def __init__(self, segments: Sequence[FileSpan]):
        self.ends = Ends(segments)
        # One that is dropped is unmapped when the last thread that reads from it drops its array.
        self._map = lru_cache(_MOST_MAPS)(_map)

    def __reduce__(self) -> Any:
        return MappedSegments, (self.ends.segments,)

    def read_into(self, starts: Integers, out: NDArray[np.uint8]) -> None:
        """Reads `size` bytes from each of `starts` (int64[n]) into `out` (uint8[n, size], contiguous)."""
        if not out.size:
            return
        size = out.shape[1]
        low, high = self.ends.owners(np.array([starts.min(), starts.max() + (size - 1)])).tolist()
        if low == high:
            copy_stretches(self._stretches(low, size), starts - self.ends.begins[low], out)
            return
        first, last = self.ends.owners(starts), self.ends.owners(starts + (size - 1))
        begins = starts - self.ends.begins[first]
        order = np.argsort(first, kind="stable")
        order = order[first[order] == last[order]]
        owners, lows = np.unique(first[order], return_index=True)
        in_order = np.array_equal(order, np.arange(len(starts)))
        if len(order) <= _FEW * len(owners) or (size >= _LARGE and not in_order):
            # An indexed copy per file would cost more than a plain copy per row.
            memories = {index: self._mapped(index).memory for index in owners.tolist()}
            for row, index, begin in zip(order.tolist(), first[order].tolist(), begins[order].tolist(), strict=True):
                out[row] = memories[index][begin : begin + size]
        else:
            for index, rows in zip(owners.tolist(), np.split(order, lows[1:]), strict=True):
                part = (out[rows[0] : rows[-1] + 1],) if in_order else (out, rows)
                copy_stretches(self._stretches(index, size), begins[rows], *part)
        for row in np.flatnonzero(first != last).tolist():
            filled = 0
            for index, low, high in self.ends.parts(int(starts[row]), int(starts[row]) + size):
                out[row, filled : filled + high - low] = self._mapped(index).memory[low:high]
                filled += high - low

    def gather(self, starts: Integers, lengths: Integers, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Reads parts of any lengths and concatenates them.

        Args:
            starts: First entry of each part, int64[n], n >= 1.
            lengths: Entries of each part, int64[n], at least 1 each.
            dtype: Dtype of the entries; no entry crosses a segment boundary.
        """
        owners = self.ends.owners(starts * dtype.itemsize)
        begins = starts - self.ends.begins[owners] // dtype.itemsize
        met = np.unique(owners).tolist()
        if len(met) == 1:
            return take_parts(self._mapped(met[0]).memory.view(dtype), begins, lengths)
        out = np.empty(int(lengths.sum()), dtype)
        places = np.cumsum(lengths) - lengths
        for index in met:
            owned = owners == index
            put_parts(self._mapped(index).memory.view(dtype), begins[owned], lengths[owned], out, places[owned])
        return out

    def _stretches(self, index: int, size: int) -> NDArray[Any]:
        mapped = self._mapped(index)
        if size not in mapped.views:
            mapped.views[size] = stretches_of(mapped.memory, size)
        return mapped.views[size]

    def _mapped(self, index: int) -> "_MappedSegment":
        segment = self.ends.segments[index]
        mapped = self._map(segment)
        # Reading mapped memory past the end of its file would kill the process with SIGBUS.
        if mapped.file.size() < segment.begin + segment.size:
            raise cut_short(segment.location)
        if segment.modified is not None and mapped.file.modified() != segment.modified:
            raise changed(segment.location)
        return mapped


class _MappedSegment(NamedTuple):
    file: FileMap
    memory: NDArray[np.uint8]
    # Overlapping rows by their size, of which there are few.
    views: dict[int, NDArray[Any]]


def _map(segment: FileSpan) -> _MappedSegment:
    path = local_path(segment.location)
    assert path is not None
    try:
        file = FileMap(path)
    except OSError as error:
        raise SourceError(f"{segment.location}: the file can't be memory-mapped: {error}") from error
    if file.length < segment.begin + segment.size:
        raise cut_short(segment.location)
    return _MappedSegment(file, file.bytes[segment.begin : segment.begin + segment.size], {})


def indices(starts: Integers, lengths: Integers) -> Integers:
    """Concatenates the indices of all entries of some parts of an array."""
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()), dtype=np.int64)


def take_parts(array: NDArray[Any], starts: Integers, lengths: Integers) -> NDArray[Any]:
    """Copies and concatenates parts of an array."""
    if len(starts) and (starts[1:] == (starts + lengths)[:-1]).all():
        return array[starts[0] : starts[-1] + lengths[-1]].copy()
    if lengths.sum() >= _LONG * len(starts):
        return np.concatenate(
            [array[low:high] for low, high in zip(starts.tolist(), (starts + lengths).tolist(), strict=True)]
        )
    return array[indices(starts, lengths)]


def put_parts(array: NDArray[Any], starts: Integers, lengths: Integers, out: NDArray[Any], places: Integers) -> None:
    """Copies parts of an array to entries of `out` from each of `places` on."""
    if lengths.sum() < _LONG * len(starts):
        out[indices(places, lengths)] = array[indices(starts, lengths)]
        return
    for start, length, place in zip(starts.tolist(), lengths.tolist(), places.tolist(), strict=True):
        out[place : place + length] = array[start : start + length]
