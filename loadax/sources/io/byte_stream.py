"""ByteStream: a stream stored in several files, one behind another, many parts of which are read at once."""

import mmap
import os
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, final

import numpy as np
from numpy.typing import NDArray

from loadax.errors import SourceError
from loadax.protocols import Integers, Location
from loadax.sources.io.files import ByteRange, open_regular
from loadax.sources.io.paths import local_path

_LONG = 500  # entries of a part: so many NumPy copies without the GIL, and faster one part after another
_COPIED = 4 << 20  # bytes that are copied at a time: between two copies NumPy takes the GIL from other threads


class Segment(NamedTuple):
    """`size` bytes of a file, from byte `begin` on. A stream is several of these, one behind another."""

    location: str
    begin: int
    size: int


@final
class Ends:
    """Where in the stream each segment ends: finds the segments that a part of the stream meets."""

    def __init__(self, segments: Sequence[Segment]):
        self.segments = tuple(segments)
        sizes = np.array([segment.size for segment in self.segments], np.int64)
        self.ends = np.cumsum(sizes)
        self.begins = self.ends - sizes

    @property
    def total(self) -> int:
        """The length of the stream in bytes."""
        return int(self.ends[-1])

    @property
    def locations(self) -> list[str]:
        """The files."""
        return [segment.location for segment in self.segments]

    def owners(self, places: Integers) -> Integers:
        """Which segment each byte of the stream lies in."""
        return np.searchsorted(self.ends, places, side="right")

    def parts(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """The bytes `start` to `stop` of the stream, as `(segment, first byte, byte behind the last)` per segment."""
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
        """The same bytes as ranges of the files."""
        segments = self.segments
        return [
            ByteRange(segments[index].location, segments[index].begin + low, segments[index].begin + high)
            for index, low, high in self.parts(start, stop)
        ]

    def locate(self, start: int, stop: int) -> list[Location]:
        """The files that these bytes lie in, each with the first and the last byte."""
        return [
            Location(byte_range.location, byte_range.start, byte_range.stop - 1)
            for byte_range in self.ranges(start, stop)
        ]


class ByteStream(Protocol):
    """Reads parts of a stream, wherever its segments lie."""

    ends: Ends
    far: bool
    """Whether a read waits for a network."""

    def read_into(self, starts: Integers, out: NDArray[np.uint8]) -> None:
        """Reads the stream from each of `starts` (int64[n]) on into the rows of `out` (uint8[n, size], no gaps)."""
        ...

    def gather(self, starts: Integers, lengths: Integers, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Reads parts of any lengths, one part behind another, of a stream of entries.

        Args:
            starts: First entry of each part, int64[n], n >= 1.
            lengths: Entries of each, none empty.
            dtype: Dtype of the entries, of which each segment holds a whole number.
        """
        ...


def stretches_of(memory: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """The `size` bytes of `memory` from each byte on: rows that overlap."""
    return np.ndarray((len(memory) - size + 1, size), np.uint8, memory, 0, (1, 1))


def copy_stretches(
    stretches: NDArray[np.uint8], starts: Integers, out: NDArray[np.uint8], rows: Integers | None = None
) -> None:
    """Copies the stretches that begin at `starts` to the rows of `out`, or to those of them that `rows` lists."""
    size = stretches.shape[1]
    if rows is None and out.flags.c_contiguous and not ((starts - starts[0]) % size).any():
        # They are rows of a table: NumPy copies those straight to where they belong.
        phase = int(starts[0]) % size
        np.take(stretches[phase::size], starts // size, axis=0, out=out, mode="clip")
        return
    # Pieces of one length: a short one at the end would cost like a long one.
    pieces = max(1, round(len(starts) * size / _COPIED))
    step = -(-len(starts) // pieces)
    for low in range(0, len(starts), step):
        batch = slice(low, low + step)
        # Rows of bytes, not items of so many: NumPy keeps the GIL while it copies fewer than 500 items, however large.
        out[batch if rows is None else rows[batch]] = stretches[starts[batch]]


@final
class MappedSegments:
    """A stream of local files, memory-mapped when they are first read; see `ByteStream`. Pickles as paths.

    Raises:
        SourceError: by reading, when a file has become shorter than its segment says, or can't be mapped; names it.
    """

    far = False

    def __init__(self, segments: Sequence[Segment]):
        self.ends = Ends(segments)
        self._maps: dict[int, tuple[mmap.mmap, NDArray[np.uint8]]] = {}
        self._views: dict[tuple[int, int], NDArray[Any]] = {}  # by segment and size: of a few sizes, as columns are cut

    def __reduce__(self) -> Any:
        return MappedSegments, (self.ends.segments,)

    def read_into(self, starts: Integers, out: NDArray[np.uint8]) -> None:
        """See `ByteStream`."""
        if not out.size:
            return
        size = out.shape[1]
        if len(self.ends.segments) == 1:
            copy_stretches(self._stretches(0, size), starts, out)
            return
        first, last = self.ends.owners(starts), self.ends.owners(starts + (size - 1))
        order = np.argsort(first, kind="stable")
        order = order[first[order] == last[order]]
        owners, lows = np.unique(first[order], return_index=True)
        inner = starts[order] - self.ends.begins[first[order]]
        for index, low, high in zip(
            owners.tolist(), lows.tolist(), np.append(lows, len(order))[1:].tolist(), strict=True
        ):
            copy_stretches(self._stretches(index, size), inner[low:high], out, order[low:high])
        for row in np.flatnonzero(first != last).tolist():
            filled = 0
            for index, low, high in self.ends.parts(int(starts[row]), int(starts[row]) + size):
                out[row, filled : filled + high - low] = self._memory(index)[low:high]
                filled += high - low

    def gather(self, starts: Integers, lengths: Integers, dtype: np.dtype[Any]) -> NDArray[Any]:
        """See `ByteStream`; no part lies in two segments."""
        owners = self.ends.owners(starts * dtype.itemsize)
        met = np.unique(owners)
        if len(met) == 1:
            return self._gather_of(int(met[0]), starts, lengths, dtype)
        out = np.empty(int(lengths.sum()), dtype)
        places = np.cumsum(lengths) - lengths
        for index in met.tolist():
            owned = owners == index
            out[indices(places[owned], lengths[owned])] = self._gather_of(index, starts[owned], lengths[owned], dtype)
        return out

    def _gather_of(self, index: int, starts: Integers, lengths: Integers, dtype: np.dtype[Any]) -> NDArray[Any]:
        begin = int(self.ends.begins[index]) // dtype.itemsize
        return take_parts(self._memory(index).view(dtype), starts - begin, lengths)

    def _stretches(self, index: int, size: int) -> NDArray[Any]:
        memory = self._memory(index)
        key = index, size
        if key not in self._views:
            self._views[key] = stretches_of(memory, size)
        return self._views[key]

    def _memory(self, index: int) -> NDArray[np.uint8]:
        """The bytes of one segment, mapped."""
        segment = self.ends.segments[index]
        if index not in self._maps:
            self._maps[index] = _map(segment)
        file, memory = self._maps[index]
        # Reading mapped memory behind the end of its file would kill the process.
        _check_long_enough(segment, file.size())
        return memory


def _map(segment: Segment) -> tuple[mmap.mmap, NDArray[np.uint8]]:
    path = local_path(segment.location)
    assert path is not None
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            _check_long_enough(segment, os.fstat(file.fileno()).st_size)
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        hint = (
            "; a process may have more files open after `ulimit -n 65536`"
            if "Too many open files" in str(error)
            else ""
        )
        raise SourceError(f"{segment.location}: it can't be mapped into memory: {error}{hint}") from error
    return mapped, np.frombuffer(mapped, np.uint8, segment.size, segment.begin)


def _check_long_enough(segment: Segment, size: int) -> None:
    if size < segment.begin + segment.size:
        raise SourceError(
            f"{segment.location}: it has {size} bytes now, but had {segment.begin + segment.size} or more when it was "
            "opened; data must not change while it is read: restore the file, or open it anew"
        )


def indices(starts: Integers, lengths: Integers) -> Integers:
    """The index of every entry of some parts of an array, one part behind another."""
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()), dtype=np.int64)


def take_parts(array: NDArray[Any], starts: Integers, lengths: Integers) -> NDArray[Any]:
    """Parts of an array, one behind another, copied out."""
    if len(starts) and (starts[1:] == (starts + lengths)[:-1]).all():
        return array[starts[0] : starts[-1] + lengths[-1]].copy()
    if lengths.sum() >= _LONG * len(starts):
        return np.concatenate(
            [array[low:high] for low, high in zip(starts.tolist(), (starts + lengths).tolist(), strict=True)]
        )
    return array[indices(starts, lengths)]
