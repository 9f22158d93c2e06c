"""Flat arrays of documents: in memory, or a stream of files."""

from pathlib import Path
from typing import Any, Literal, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from loadax.protocols import Integers, Location
from loadax.sources.io.byte_stream import take_parts
from loadax.sources.io.locations import MappedExtent, cut_short, mapped_extent, mapped_file, mapped_name
from loadax.sources.io.remote_stream import ByteStream


@final
class FlatArray:
    """An array in memory, or memory-mapped."""

    far = False

    def __init__(self, array: NDArray[Any]):
        self._file = mapped_file(array)
        self._extent: MappedExtent | Literal[False] | None = None
        self._array = array.view(np.ndarray)
        self.dtype = array.dtype.newbyteorder("=")

    def __len__(self) -> int:
        return len(self._array)

    def gather(self, starts: Integers, lengths: Integers) -> NDArray[Any]:
        """Gathers and concatenates the parts at `starts` of `lengths` entries, at least 1 each."""
        if self._extent is None:
            self._extent = mapped_extent(self._array) or False
        if self._extent and not self._extent.whole:
            raise cut_short(mapped_name(self._array))
        return take_parts(self._array, starts, lengths).astype(self.dtype, copy=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_extent": None}  # another process maps the file again

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
    """A stream of files; no part crosses a file boundary.

    Args:
        stream: Stream of whole entries.
        stored: Stored dtype of the entries.
    """

    memory = None

    def __init__(self, stream: ByteStream, stored: np.dtype[Any]):
        self._stream, self._stored = stream, stored
        self.dtype, self.far = stored.newbyteorder("="), stream.far

    def __len__(self) -> int:
        return self._stream.ends.total // self._stored.itemsize

    def gather(self, starts: Integers, lengths: Integers) -> NDArray[Any]:
        return self._stream.gather(starts, lengths, self._stored).astype(self.dtype, copy=False)

    @property
    def addresses(self) -> list[str]:
        return self._stream.ends.locations

    def locate(self, start: int, stop: int) -> list[Location]:
        return self._stream.ends.locate(start * self._stored.itemsize, stop * self._stored.itemsize)


Flat: TypeAlias = FlatArray | FlatFiles
"""A long one-dimensional array in native byte order, in memory or in files."""
