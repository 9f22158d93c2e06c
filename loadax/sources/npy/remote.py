"""NpyRanges: reads rows of remote `.npy` files by range requests."""

from collections.abc import Sequence
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from loadax.core.tree import flatten
from loadax.errors import SourceError
from loadax.protocols import ArraySpec, Columns, Integers, Location, Tree
from loadax.redaction import redact
from loadax.sources.base import BaseSource, Traits
from loadax.sources.checks import check_rows, common_length, read_all_columns
from loadax.sources.io.byte_stream import FileSpan, read_columns
from loadax.sources.io.disk_cache import DiskCache
from loadax.sources.io.files import Files
from loadax.sources.io.remote_stream import RemoteSegments
from loadax.sources.npy.header import NpyHeader, read_npy_headers


class _Array(NamedTuple):
    location: str
    header: NpyHeader
    reader: RemoteSegments

    @property
    def row_bytes(self) -> int:
        return int(np.prod(self.header.shape[1:], dtype=np.int64)) * self.header.dtype.itemsize


@final
class NpyRanges(BaseSource):
    """A tree of `.npy` files, at least one of them remote: row i is entry i of each.

    Args:
        tree: Pytree of paths and URLs.
        cache: Local cache of remote blocks; None: no cache.

    Raises:
        SourceError: When a file is missing, cut short or not readable by rows, or lengths differ; names it.
    """

    traits = Traits(owns_memory=True, reads_columns=True, concurrent_reads=4)  # reads wait for the network
    spec: Tree = None

    def __init__(self, tree: Tree, cache: DiskCache | None):
        locations, self._structure = flatten(tree)
        files = Files()
        headers = read_npy_headers(files, locations)
        self._arrays = [
            _open(location, header, cache, files) for location, header in zip(locations, headers, strict=True)
        ]
        self._length = common_length(self._structure.paths, [array.header.shape[0] for array in self._arrays])
        self.spec = self._structure.build(
            ArraySpec(array.header.shape[1:], array.header.dtype.newbyteorder("=")) for array in self._arrays
        )

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        return redact(f"arrays at {', '.join(array.location for array in self._arrays)}")

    def read(self, rows: Integers) -> Tree:
        return read_all_columns(self, check_rows(rows, self._length))

    def read_into(self, rows: Integers, boxes: Sequence[Columns | None], out: Sequence[NDArray[Any] | None]) -> None:
        rows = check_rows(rows, self._length)
        for array, columns, destination in zip(self._arrays, boxes, out, strict=True):
            if columns is not None and destination is not None:
                header = array.header
                read_columns(array.reader, rows, header.shape[1:], header.dtype, columns, destination)

    @property
    def addresses(self) -> list[str]:
        return [array.location for array in self._arrays]

    def locate(self, row: int) -> list[Location]:
        """File and byte range of a row in each leaf."""
        index = int(check_rows([row], self._length)[0])
        begins = [array.header.begin + index * array.row_bytes for array in self._arrays]
        return [
            Location(array.location, begin, begin + array.row_bytes - 1)
            for array, begin in zip(self._arrays, begins, strict=True)
        ]


def _open(location: str, header: NpyHeader, cache: DiskCache | None, files: Files) -> _Array:
    if not header.shape:
        raise SourceError(f"{location} is a scalar without rows; give it a first dimension")
    if header.fortran and len(header.shape) > 1:
        raise SourceError(
            f"{location} is in Fortran order, so the bytes of a row are scattered over the file; save "
            "numpy.ascontiguousarray(array), or copy the file to this machine"
        )
    return _Array(location, header, RemoteSegments([FileSpan(location, header.begin, header.size)], files, cache))
