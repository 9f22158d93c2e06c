"""RemoteSegments: reads parts of a stream of remote files; coalesces neighbouring parts, reads all concurrently."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from loadax.files.byte_ranges import JOINED, NEAR, ByteRange, waves
from loadax.files.byte_stream import Ends, FileSpan, copy_stretches, stretches_of
from loadax.files.disk_cache import CachedFiles
from loadax.files.files import Files
from loadax.files.remote_ranges import Wanted
from loadax.protocols import Integers

WAVE = 64 << 20  # bytes requested before the first are waited for


class _Group(NamedTuple):
    """Sorted parts `[first, last)`, which span the bytes `[start, stop)` of the stream."""

    first: int
    last: int
    start: int
    stop: int


@final
class RemoteSegments:
    """A stream of remote files; see `MappedSegments`. Parts next to each other are read as one range.

    Args:
        segments: Segments of the stream.
        files: Reader of the files.
    """

    far = True

    def __init__(self, segments: Sequence[FileSpan], files: Files):
        self.ends = Ends(segments)
        extents = {
            segment.location: segment.begin + segment.size for segment in segments
        }
        self.known_files = files.known
        self._files = files if files.cache is None else CachedFiles(files, extents)

    def read_into(self, starts: Integers, out: NDArray[np.uint8]) -> None:
        if not out.size:
            return
        size = out.shape[1]
        for rows, offsets, content in self._read(starts, starts + size):
            stretches = stretches_of(np.frombuffer(content, np.uint8), size)
            copy_stretches(stretches, offsets, out, rows)

    def gather(
        self, starts: Integers, lengths: Integers, dtype: np.dtype[Any]
    ) -> NDArray[Any]:
        # Adjacent parts, in the stream and in the request, are joined.
        first = np.flatnonzero(
            np.concatenate([[True], starts[1:] != (starts + lengths)[:-1]])
        )
        starts = starts[first] * dtype.itemsize
        lengths = np.add.reduceat(lengths, first) * dtype.itemsize
        out = np.empty(int(lengths.sum()) // dtype.itemsize, dtype)
        written: Any = out.view(np.uint8)
        target = memoryview(written)
        places = np.cumsum(lengths) - lengths
        for rows, offsets, content in self._read(starts, starts + lengths):
            source = memoryview(content)
            for place, low, size in zip(
                places[rows].tolist(),
                offsets.tolist(),
                lengths[rows].tolist(),
                strict=True,
            ):
                target[place : place + size] = source[low : low + size]
        return out

    def _read(
        self, starts: Integers, stops: Integers
    ) -> Iterator[tuple[Integers, Integers, bytes]]:
        """Yields `(indices of parts, their first bytes in the content, content)`, so that each part comes once."""
        order = np.argsort(starts, kind="stable")
        groups = _groups(starts[order], stops[order], self.ends)
        ranges = self._ranges(groups)
        sizes = [group.stop - group.start for group in groups]
        # whose requests are sent at once
        for wave in waves(sizes, WAVE):
            contents = self._files.read([*chain.from_iterable(ranges[wave])])
            parts = order[groups[wave][0].first : groups[wave][-1].last]
            # what is before the bytes of a group in the stream, and not in the content
            begins = np.array([group.start for group in groups[wave]])
            ends = np.cumsum(sizes[wave])
            counts = [group.last - group.first for group in groups[wave]]
            shifts = np.repeat(begins - ends + sizes[wave], counts)
            yield parts, starts[parts] - shifts, b"".join(contents)

    def wanted(self, starts: Integers, stops: Integers) -> list[Wanted]:
        filled = stops > starts
        starts = starts[filled]
        stops = stops[filled]
        if not len(starts):
            return []
        order = np.argsort(starts, kind="stable")
        groups = _groups(starts[order], stops[order], self.ends)
        return [self._files.wanted([*chain.from_iterable(self._ranges(groups))])]

    def _ranges(self, groups: Sequence[_Group]) -> list[list[ByteRange]]:
        """Byte ranges of the files for each group."""
        return self.ends.ranges_of(
            np.array([group.start for group in groups], np.int64),
            np.array([group.stop for group in groups], np.int64),
        )


def _groups(starts: Integers, stops: Integers, files: Ends) -> list[_Group]:
    """Coalesces nearby parts, sorted by start, into ranges of bounded length; a gap does not cross a file boundary."""
    before = np.maximum.accumulate(stops)[:-1]
    apart = (starts[1:] > before + NEAR) | (
        files.owners(starts[1:]) > files.owners(before - 1)
    )
    run = np.concatenate([[0], np.cumsum(apart)])
    begin = starts[np.flatnonzero(np.concatenate([[True], apart]))][run]
    cut = (starts - begin) // JOINED
    firsts = np.flatnonzero(np.concatenate([[True], apart | (np.diff(cut) != 0)]))
    lasts = np.append(firsts[1:], len(starts))
    begins = starts[firsts]
    ends = np.maximum.reduceat(stops, firsts)
    return list(
        map(_Group, firsts.tolist(), lasts.tolist(), begins.tolist(), ends.tolist())
    )
