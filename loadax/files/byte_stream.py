"""Reads many parts of a byte stream that is stored in a sequence of files."""

import mmap
import threading
from collections.abc import Sequence
from functools import cache, partial
from math import lcm
from time import monotonic
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, final

import numpy as np
from numpy.typing import NDArray

from loadax.core.array_parts import take_parts
from loadax.errors import SourceError
from loadax.files.byte_ranges import SHORTER, ByteRange, KnownFiles, changed
from loadax.files.file_map import HUGE, FileMap, reserve
from loadax.files.files import Files
from loadax.files.paths import local_path
from loadax.files.remote_ranges import Wanted
from loadax.protocols import Integers, Location

# bytes of a row from which one copy per row is faster than an index array, which copies twice
_LARGE = 16 << 10
MOST_MAPS = 1 << 14  # maps of a stream; a process may have 65,530 of them on Linux
# files of a read, above which sizes are asked for once in so many seconds, as that takes 4 us
_FEW = 8
_CHECKED = 1.0
# most bytes of addresses that are reserved so that rows of all files are rows of one table
RESERVED = 1 << 36
# bytes per copy: between two copies NumPy takes the GIL from other threads
_COPIED = 4 << 20


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
        self._first_bytes = np.array(
            [segment.begin for segment in self.segments], np.int64
        )
        sizes = np.array([segment.size for segment in self.segments], np.int64)
        self.ends = np.cumsum(sizes)
        self.begins = self.ends - sizes
        # size of all segments; 0: they differ
        if (sizes == sizes[0]).all():
            self._each = int(sizes[0])
        else:
            self._each = 0

    @property
    def total(self) -> int:
        """Length of the stream in bytes."""
        return int(self.ends[-1])

    def owners(self, offsets: Integers) -> Integers:
        """Indices of the segments that contain these bytes of the stream."""
        if self._each:
            return offsets // self._each
        return np.searchsorted(self.ends, offsets, side="right")

    def parts(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """Splits the bytes `start` to `stop` of the stream into `(segment, start, stop)` within each segment."""
        parts = []
        index = int(self.owners(np.array([start]))[0])
        while start < stop:
            begin = int(self.begins[index])
            end = min(stop, int(self.ends[index]))
            if start < end:
                parts.append((index, start - begin, end - begin))
                start = end
            index += 1
        return parts

    def ranges(self, start: int, stop: int) -> list[ByteRange]:
        """Maps the bytes `start` to `stop` of the stream to byte ranges of the files."""
        parts = (
            (self.segments[index], low, high)
            for index, low, high in self.parts(start, stop)
        )
        return [
            ByteRange(segment.location, segment.begin + low, segment.begin + high)
            for segment, low, high in parts
        ]

    def ranges_of(self, starts: Integers, stops: Integers) -> list[list[ByteRange]]:
        """Maps parts of the stream, none of them empty, to byte ranges of the files; see `ranges`."""
        first = self.owners(starts)
        within = (first == self.owners(stops - 1)).tolist()
        shifts = (self._first_bytes - self.begins)[first]
        low = (starts + shifts).tolist()
        high = (stops + shifts).tolist()
        return [
            [ByteRange(self.locations[owner], low[part], high[part])]
            if within[part]
            else self.ranges(int(starts[part]), int(stops[part]))
            for part, owner in enumerate(first.tolist())
        ]

    def locate(self, start: int, stop: int) -> list[Location]:
        """Maps the bytes `start` to `stop` of the stream to files, each with its first and last byte."""
        return [
            Location(location, first, end - 1)
            for location, first, end in self.ranges(start, stop)
        ]


class ByteStream(Protocol):
    """Reads parts of a stream of files."""

    ends: Ends

    @property
    def far(self) -> bool:
        """Whether a read waits for a network."""

    @property
    def known_files(self) -> KnownFiles:
        """Sizes and ETags of remote files, by URL, as far as they are known."""

    def wanted(self, starts: Integers, stops: Integers) -> list[Wanted]:
        """What a read of parts of a remote stream (int64[n] each) will request; empty for a local one."""

    def read_into(self, starts: Integers, out: NDArray[np.uint8]) -> None:
        """Reads `size` bytes from each of `starts` (int64[n]) into `out` (uint8[n, size], contiguous)."""

    def gather(
        self, starts: Integers, lengths: Integers, dtype: np.dtype[Any]
    ) -> NDArray[Any]:
        """Reads parts of any lengths, in entries of a dtype, and concatenates them; int64[n] both, n >= 1."""


def open_stream(segments: Sequence[FileSpan], files: Files) -> ByteStream:
    """Opens a stream of local files (memory-mapped) or of remote files (range requests).

    Args:
        segments: Segments of the stream.
        files: Reader of the files; streams that share it share its connections and its cache.
    """
    if not files.far([segment.location for segment in segments]):
        return MappedSegments(segments)
    from loadax.files.remote_stream import RemoteSegments

    return RemoteSegments(segments, files)


def stretches_of(memory: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Views the `size` bytes from each byte of `memory` on as overlapping rows."""
    return np.ndarray((len(memory) - size + 1, size), np.uint8, memory, 0, (1, 1))


def copy_stretches(
    stretches: NDArray[np.uint8],
    starts: Integers,
    out: NDArray[np.uint8],
    rows: Integers | None = None,
) -> None:
    """Copies the stretches at `starts` to the rows `rows` of `out`; None: to all rows."""
    size = stretches.shape[1]
    # The last row alone mostly tells.
    table = (
        not int(starts[-1] - starts[0]) % size
        and not ((starts - starts[0]) % size).any()
    )
    if rows is None and out.flags.c_contiguous and table:
        # They are rows of a table, which NumPy copies directly.
        phase = int(starts[0]) % size
        np.take(stretches[phase::size], starts // size, axis=0, out=out, mode="clip")
        return
    if size >= _LARGE:
        for row, start in zip(
            range(len(starts)) if rows is None else rows.tolist(),
            starts.tolist(),
            strict=True,
        ):
            out[row] = stretches[start]
        return
    # Pieces of equal length: a short last piece would cost as much as a long one.
    step = -(-len(starts) // max(1, round(len(starts) * size / _COPIED)))
    for low in range(0, len(starts), step):
        batch = slice(low, low + step)
        # Rows of bytes, not items of `size` bytes: NumPy keeps the GIL for copies of fewer than 500 items of any size.
        out[batch if rows is None else rows[batch]] = stretches[starts[batch]]


@final
class MappedSegments:
    """A stream of local files, memory-mapped on first use. Pickles as paths.

    The files are mapped side by side, so that one indexed copy reads from all of them. A read past the end of a file
    that was truncated would kill the process with SIGBUS: its size is compared when it is mapped, before each read from
    at most eight files, and before other reads if the last comparison was more than a second ago. Asking for the size
    of every file of every read takes longer than the copy if files are small.

    Args:
        segments: Segments of the stream.
        row_bytes: Size of the rows, if each segment has whole ones. Segments are mapped a multiple of it apart, if they
            begin at the same byte of a page: then rows of all segments are copied as those of one table.

    Raises:
        SourceError: On a read, when a file is shorter than its segment or can't be mapped; names it.
    """

    far = False
    known_files: KnownFiles = MappingProxyType({})

    def __init__(self, segments: Sequence[FileSpan], row_bytes: int = 1):
        self.ends = Ends(segments)
        self._row_bytes = row_bytes
        # Of large files, huge pages: with small ones, finding random rows in memory takes a third of the time.
        pages = [HUGE] * (self.ends.total >= HUGE * len(segments)) + [
            mmap.ALLOCATIONGRANULARITY
        ]
        steps = [
            (page, lcm(page, row_bytes))
            for page in pages
            if lcm(page, row_bytes) * len(segments) <= RESERVED
        ]
        self._page, apart = (*steps, (pages[0], pages[0]))[0]
        offsets = (
            np.array([segment.begin for segment in segments], np.int64) % self._page
        )
        sizes = -(-(offsets + self.ends.ends - self.ends.begins) // apart) * apart
        # of the first byte of each segment in the reserved memory
        self._places = np.cumsum(sizes) - sizes + offsets
        self._shifts = self._places - self.ends.begins
        self._size = int(sizes.sum())
        self._lock = threading.Lock()
        self._maps: _Maps | None = None
        # Where files are not mapped side by side, the reserved memory between them counts as a map too.
        gaps = apart != mmap.ALLOCATIONGRANULARITY or len(segments) > MOST_MAPS
        if gaps:
            self._most = MOST_MAPS // 2
        else:
            self._most = MOST_MAPS

    def wanted(self, starts: Integers, stops: Integers) -> list[Wanted]:  # noqa: ARG002
        return []

    def __reduce__(self) -> Any:
        return MappedSegments, (self.ends.segments, self._row_bytes)

    def read_into(self, starts: Integers, out: NDArray[np.uint8]) -> None:
        """Reads `size` bytes from each of `starts` (int64[n]) into `out` (uint8[n, size], contiguous)."""
        if not out.size:
            return
        size = out.shape[1]
        first = self.ends.owners(starts)
        crosses = first != self.ends.owners(starts + (size - 1))
        rows = None
        if crosses.any():
            crossing = np.flatnonzero(crosses)
            rows = np.flatnonzero(~crosses)
            lengths = np.full(len(crossing), size)
            out[crossing] = self.gather(
                starts[crossing], lengths, np.dtype(np.uint8)
            ).reshape(-1, size)
            starts = starts[rows]
            first = first[rows]
        if len(starts):
            copy_stretches(
                self._mapped(first).stretches(size),
                starts + self._shifts[first],
                out,
                rows,
            )

    def gather(
        self, starts: Integers, lengths: Integers, dtype: np.dtype[Any]
    ) -> NDArray[Any]:
        """Reads parts of any lengths and concatenates them.

        Args:
            starts: First entry of each part, int64[n], n >= 1.
            lengths: Entries of each part, int64[n], at least 1 each.
            dtype: Dtype of the entries; no entry crosses a segment boundary.
        """
        size = dtype.itemsize
        stops = starts + lengths
        owners = self.ends.owners(starts * size)
        if (owners != self.ends.owners(stops * size - 1)).any():
            bounds = zip(
                (starts * size).tolist(), (stops * size).tolist(), strict=True
            )
            split = np.array(
                [part for low, high in bounds for part in self.ends.parts(low, high)],
                np.int64,
            )
            begins = self.ends.begins[split[:, 0]] + split[:, 1]
            return self.gather(
                begins // size, (split[:, 2] - split[:, 1]) // size, dtype
            )
        memory = self._mapped(owners).memory
        begins = starts * size + self._shifts[owners]
        phase = int(begins[0]) % size
        if ((begins - phase) % size).any():  # files whose headers differ in length
            return take_parts(memory, begins, lengths * size).view(dtype)
        entries = memory[phase : phase + (len(memory) - phase) // size * size].view(
            dtype
        )
        return take_parts(entries, begins // size, lengths)

    def _mapped(self, owners: Integers) -> "_Maps":
        """Maps in which these files are, each of which is long enough."""
        now = monotonic()
        maps = self._maps
        if maps is None or (
            len(maps.files) >= self._most and np.isinf(maps.checked[owners]).any()
        ):
            # Those before are unmapped when the last thread that reads from them drops their memory.
            self._maps = maps = _Maps(self._size, len(self.ends.segments))
        met = {*owners.tolist()}
        if len(met) > _FEW:
            met = {*owners[maps.checked[owners] <= now - _CHECKED].tolist()}
        for index in met:
            if index not in maps.files:
                # only to map: a fork of the process may come while it is held, and wait for ever
                with self._lock:
                    if index not in maps.files:
                        maps.files[index] = self._map(index, maps.memory)
            segment = self.ends.segments[index]
            status = maps.files[index].status()
            if status.st_size < segment.begin + segment.size:
                raise changed(segment.location, SHORTER)
            if (
                segment.modified is not None
                and status.st_mtime_ns != segment.modified
            ):
                raise changed(segment.location)
            maps.checked[index] = now
        return maps

    def _map(self, index: int, memory: NDArray[np.uint8]) -> FileMap:
        segment = self.ends.segments[index]
        path = local_path(segment.location)
        offset = segment.begin % self._page
        assert path is not None
        place = memory.ctypes.data + int(self._places[index]) - offset
        try:
            return FileMap(
                path, (place, segment.begin - offset, segment.size + offset)
            )
        except OSError as error:
            raise SourceError(
                f"{segment.location}: the file can't be memory-mapped: {error}"
            ) from error


class _Maps:
    """`count` files of a stream, mapped side by side in `size` reserved bytes when they are first read."""

    def __init__(self, size: int, count: int):
        self.memory = reserve(size)
        self.files = dict[int, FileMap]()
        # when the size of each file was last asked for
        self.checked = np.full(count, -np.inf)
        # by their size, of which there are few
        self.stretches = cache(partial(stretches_of, self.memory))
