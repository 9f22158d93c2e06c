"""Gathers many slices of flat arrays: in memory, in local files, or remote."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, final

import numpy as np
from numpy.typing import NDArray

from loadax.protocols import Integers, Location
from loadax.sources.io.cached_files import CachedFiles
from loadax.sources.io.disk_cache import DiskCache
from loadax.sources.io.files import ByteRange
from loadax.sources.io.locations import MappedExtent, cut_short, mapped_extent, mapped_file, mapped_name
from loadax.sources.io.remote import RemoteFiles
from loadax.sources.io.segments import Ends, MappedSegments, Segment


class Flat(Protocol):
    """A long one-dimensional array, wherever it lies."""

    dtype: np.dtype[Any]
    """In native byte order."""
    far: bool
    """Whether a read waits for a network."""

    def __len__(self) -> int: ...

    def gather(self, starts: Integers, lengths: Integers) -> NDArray[Any]:
        """The entries from each of `starts` on, `lengths` of each, one part behind another. No part is empty."""
        ...

    @property
    def addresses(self) -> list[str]:
        """The files; nothing for memory."""
        ...

    @property
    def memory(self) -> NDArray[Any] | None:
        """All of it, when it is in memory alone."""
        ...

    def locate(self, start: int, stop: int) -> list[Location]:
        """The files that some entries lie in, each with the first and the last byte; nothing for memory."""
        ...


@final
class FlatArray:
    """An array in memory, or mapped into it."""

    far = False

    def __init__(self, array: NDArray[Any]):
        self._file = mapped_file(array)
        self._extent: MappedExtent | Literal[False] | None = None
        self._array = array.view(np.ndarray)
        self.dtype = array.dtype.newbyteorder("=")

    def __len__(self) -> int:
        return len(self._array)

    def gather(self, starts: Integers, lengths: Integers) -> NDArray[Any]:
        if self._extent is None:
            self._extent = mapped_extent(self._array) or False
        if self._extent and not self._extent.whole:
            raise cut_short(mapped_name(self._array))
        return take_parts(self._array, starts, lengths).astype(self.dtype, copy=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_extent": None}  # another process has its own map

    @property
    def addresses(self) -> list[str]:
        return [] if self._file is None else [str(Path(self._file.name).absolute())]

    @property
    def memory(self) -> NDArray[Any] | None:
        return self._array if self._file is None else None

    def locate(self, start: int, stop: int) -> list[Location]:  # noqa: ARG002
        return []


@final
class FlatFiles:
    """Segments of files on this machine, mapped; no part lies in two of them. Pickles as paths.

    Args:
        segments: one behind another, of whole entries.
        stored: the dtype, as it is stored.
    """

    far = False

    def __init__(self, segments: Sequence[Segment], stored: np.dtype[Any]):
        self._stream, self._mapped, self._stored = Ends(segments), MappedSegments(segments), stored
        self.dtype = stored.newbyteorder("=")

    def __len__(self) -> int:
        return self._stream.total // self._stored.itemsize

    def gather(self, starts: Integers, lengths: Integers) -> NDArray[Any]:
        size = self._stored.itemsize
        owners = self._stream.owners(starts * size)
        met = np.unique(owners)
        if len(met) == 1:
            return self._gather_of(int(met[0]), starts, lengths)
        out = np.empty(int(lengths.sum()), self.dtype)
        places = np.cumsum(lengths) - lengths
        for number in met.tolist():
            mine = owners == number
            out[indices(places[mine], lengths[mine])] = self._gather_of(number, starts[mine], lengths[mine])
        return out

    @property
    def addresses(self) -> list[str]:
        return [each.location for each in self._stream.segments]

    @property
    def memory(self) -> NDArray[Any] | None:
        return None

    def locate(self, start: int, stop: int) -> list[Location]:
        return _locate(self._stream, self._stored.itemsize, start, stop)

    def _gather_of(self, number: int, starts: Integers, lengths: Integers) -> NDArray[Any]:
        array = self._mapped.memory(number).view(self._stored)
        begin = int(self._stream.begins[number]) // self._stored.itemsize
        return take_parts(array, starts - begin, lengths).astype(self.dtype, copy=False)


@final
class FlatRanges:
    """Segments of remote files, read by ranges; no part lies in two of them.

    Args:
        segments: one behind another, of whole entries.
        stored: the dtype, as it is stored.
        remote: what the files are read through.
        cache: where what was read is kept on this machine; None: nowhere.
    """

    far = True

    def __init__(
        self, segments: Sequence[Segment], stored: np.dtype[Any], remote: RemoteFiles, cache: DiskCache | None
    ):
        self._stream, self._stored = Ends(segments), stored
        extents = {each.location: each.begin + each.size for each in segments}
        self._files = remote if cache is None else CachedFiles(remote, cache, extents)
        self.dtype = stored.newbyteorder("=")

    def __len__(self) -> int:
        return self._stream.total // self._stored.itemsize

    def gather(self, starts: Integers, lengths: Integers) -> NDArray[Any]:
        size = self._stored.itemsize
        low, high = starts * size, (starts + lengths) * size
        owners = self._stream.owners(low)
        # Documents that follow each other, in the file and in what is asked for, are one range.
        begins = np.flatnonzero(np.concatenate([[True], (low[1:] != high[:-1]) | (owners[1:] != owners[:-1])]))
        lasts = np.append(begins[1:], len(low)) - 1
        ranges = [
            self._range(number, start, stop)
            for number, start, stop in zip(
                owners[begins].tolist(), low[begins].tolist(), high[lasts].tolist(), strict=True
            )
        ]
        return np.frombuffer(b"".join(self._files.read(ranges)), self._stored).astype(self.dtype, copy=False)

    @property
    def addresses(self) -> list[str]:
        return [each.location for each in self._stream.segments]

    @property
    def memory(self) -> NDArray[Any] | None:
        return None

    def locate(self, start: int, stop: int) -> list[Location]:
        return _locate(self._stream, self._stored.itemsize, start, stop)

    def _range(self, number: int, start: int, stop: int) -> ByteRange:
        segment, begin = self._stream.segments[number], int(self._stream.begins[number])
        return ByteRange(segment.location, segment.begin + start - begin, segment.begin + stop - begin)


def indices(starts: Integers, lengths: Integers) -> Integers:
    """The index of every entry of some parts of an array, one part behind another."""
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()), dtype=np.int64)


def take_parts(array: NDArray[Any], starts: Integers, lengths: Integers) -> NDArray[Any]:
    """Parts of an array, one behind another, copied out."""
    if len(starts) and (starts[1:] == (starts + lengths)[:-1]).all():
        return array[starts[0] : starts[-1] + lengths[-1]].copy()
    return array[indices(starts, lengths)]


def _locate(stream: Ends, size: int, start: int, stop: int) -> list[Location]:
    segments = stream.segments
    return [
        Location(segments[number].location, segments[number].begin + low, segments[number].begin + high - 1)
        for number, low, high in stream.parts(start * size, stop * size)
    ]
