"""Gathers equally long slices of a byte stream that is stored in several files."""

import mmap
import os
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, final

import numpy as np
from numpy.typing import NDArray

from loadax.errors import SourceError
from loadax.protocols import Integers
from loadax.sources.io.files import open_regular
from loadax.sources.io.paths import local_path

_COPIED = 4 << 20  # bytes that are copied at a time: between two copies NumPy takes the GIL from other threads


class Segment(NamedTuple):
    """`size` bytes of a file, from byte `begin` on. A stream is several of these, one behind another."""

    location: str
    begin: int
    size: int


class Stretches(Protocol):
    """Reads stretches of a stream, wherever its segments lie."""

    def read_into(self, starts: Integers, out: NDArray[np.uint8]) -> None:
        """Reads the stream from each of `starts` (int64[n]) on into the rows of `out` (uint8[n, size], no gaps)."""
        ...


@final
class Ends:
    """Where in the stream each segment ends: finds the segments that a stretch meets."""

    def __init__(self, segments: Sequence[Segment]):
        self.segments = tuple(segments)
        sizes = np.array([each.size for each in self.segments], np.int64)
        self.ends = np.cumsum(sizes)
        self.begins = self.ends - sizes

    @property
    def total(self) -> int:
        """The length of the stream in bytes."""
        return int(self.ends[-1])

    def owners(self, places: Integers) -> Integers:
        """Which segment each byte of the stream lies in."""
        return np.searchsorted(self.ends, places, side="right")

    def parts(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """The bytes `start` to `stop` of the stream, as `(segment, first byte, byte behind the last)` per segment."""
        found = []
        number = int(self.owners(np.array([start]))[0])
        while start < stop:
            begin, end = int(self.begins[number]), min(stop, int(self.ends[number]))
            if start < end:
                found.append((number, start - begin, end - begin))
                start = end
            number += 1
        return found


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
        some = slice(low, low + step)
        # Rows of bytes, not items of so many: NumPy keeps the GIL while it copies fewer than 500 items, however large.
        out[some if rows is None else rows[some]] = stretches[starts[some]]


@final
class MappedSegments:
    """Local segments, memory-mapped when they are first read. Pickles as paths.

    Raises:
        SourceError: by reading, when a file has become shorter than its segment says, or can't be mapped; names it.
    """

    def __init__(self, segments: Sequence[Segment]):
        self._stream = Ends(segments)
        self._maps: dict[int, tuple[mmap.mmap, NDArray[np.uint8]]] = {}
        self._views: dict[tuple[int, int], NDArray[Any]] = {}  # by segment and size: of a few sizes, as columns are cut

    def __reduce__(self) -> Any:
        return MappedSegments, (self._stream.segments,)

    def read_into(self, starts: Integers, out: NDArray[np.uint8]) -> None:
        """See `Stretches`."""
        if not out.size:
            return
        size = out.shape[1]
        if len(self._stream.segments) == 1:
            copy_stretches(self._stretches(0, size), starts, out)
            return
        first, last = self._stream.owners(starts), self._stream.owners(starts + (size - 1))
        order = np.argsort(first, kind="stable")
        order = order[first[order] == last[order]]
        numbers, lows = np.unique(first[order], return_index=True)
        inner = starts[order] - self._stream.begins[first[order]]
        for number, low, high in zip(
            numbers.tolist(), lows.tolist(), np.append(lows, len(order))[1:].tolist(), strict=True
        ):
            copy_stretches(self._stretches(number, size), inner[low:high], out, order[low:high])
        for row in np.flatnonzero(first != last).tolist():
            filled = 0
            for number, low, high in self._stream.parts(int(starts[row]), int(starts[row]) + size):
                out[row, filled : filled + high - low] = self.memory(number)[low:high]
                filled += high - low

    def _stretches(self, number: int, size: int) -> NDArray[Any]:
        memory = self.memory(number)
        key = number, size
        if key not in self._views:
            self._views[key] = stretches_of(memory, size)
        return self._views[key]

    def memory(self, number: int) -> NDArray[np.uint8]:
        """The bytes of one segment, mapped."""
        segment = self._stream.segments[number]
        if number not in self._maps:
            self._maps[number] = _map(segment)
        file, memory = self._maps[number]
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
