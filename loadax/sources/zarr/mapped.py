"""Memory-maps the chunk files of local, uncompressed, unsharded zarr 3 arrays.

TensorStore reads such chunks several times more slowly than a memory map.
"""

import itertools
import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from loadax.errors import SourceError
from loadax.protocols import Columns, Integers, Location
from loadax.sources.io.file_map import FileMap
from loadax.sources.io.locations import base_of, cut_short

_MOST_CHUNKS = 16_384  # files to map: a process may have 65,530 maps on Linux
_LEAST_BYTES = 1 << 16  # smallest chunk: smaller ones gain nothing
_FEW = 8  # rows per file from which an indexed copy is faster than one copy per row


@final
class MappedChunks:
    """Reads rows of one raw zarr 3 array from its chunk files, each memory-mapped on first use.

    Args:
        folder: Folder of the array.
        metadata: Contents of its `zarr.json`, checked by `map_raw`.
        dtype: Dtype of the array.
        name: Leaf and address, for messages.
    """

    driver = "zarr3, memory-mapped"

    def __init__(self, folder: Path, metadata: dict[str, Any], dtype: np.dtype[Any], name: str):
        self.shape = tuple(int(extent) for extent in metadata["shape"])
        self.dtype = dtype
        self._name = name
        self._rows = int(metadata["chunk_grid"]["configuration"]["chunk_shape"][0])
        encoding = metadata["chunk_key_encoding"]
        separator = encoding.get("configuration", {}).get("separator", "/" if encoding["name"] == "default" else ".")
        parts = ["c"] * (encoding["name"] == "default"), ["0"] * (len(self.shape) - 1)
        self._file: Callable[[int], Path] = lambda chunk: folder / separator.join([*parts[0], str(chunk), *parts[1]])
        self._arguments = folder, metadata, dtype, name
        self._whole = tuple(slice(0, extent) for extent in self.shape[1:])
        self._maps: list[NDArray[Any] | None] = [None] * len(self.chunk_starts)
        self._lock = threading.Lock()

    @property
    def chunk_starts(self) -> range:
        """First rows of the files; mapped rows cost nothing extra one by one, so no chunk cache is needed."""
        return range(0, self.shape[0], self._rows)

    def locate(self, row: int) -> list[Location]:
        """File and byte range of a row."""
        chunk, inside = divmod(row, self._rows)
        row_bytes = math.prod(self.shape[1:]) * self.dtype.itemsize
        return [Location(str(self._file(chunk)), inside * row_bytes, (inside + 1) * row_bytes - 1)]

    def start(self, rows: Integers, columns: Columns, out: NDArray[Any]) -> Callable[[], None]:
        """Reads synchronously; the returned function does nothing."""
        chunks, inside = np.divmod(rows, self._rows)
        cuts: Any = tuple(slice(*column) for column in columns)
        order = np.argsort(chunks, kind="stable")
        bounds = np.flatnonzero(np.diff(chunks[order], prepend=-1, append=-1)).tolist()
        if len(bounds) == 2 and cuts == self._whole and out.flags.c_contiguous and out.dtype == self.dtype:
            np.take(self._map(int(chunks[0])), inside, axis=0, out=out, mode="clip")
        elif _FEW * len(bounds) > len(rows):
            # Few rows per file: an indexed copy per file would cost more than a plain copy per row.
            for chunk in chunks[order[bounds[:-1]]].tolist():
                self._map(chunk)
            maps: list[Any] = self._maps
            if cuts == self._whole:
                for position, (chunk, row) in enumerate(zip(chunks.tolist(), inside.tolist(), strict=True)):
                    out[position] = maps[chunk][row]
            else:
                for position, (chunk, row) in enumerate(zip(chunks.tolist(), inside.tolist(), strict=True)):
                    out[position] = maps[chunk][(row, *cuts)]
        else:
            for low, high in itertools.pairwise(bounds):
                positions = order[low:high]
                out[positions] = self._map(int(chunks[positions[0]]))[(inside[positions], *cuts)]
        return _nothing

    def _map(self, chunk: int) -> NDArray[Any]:
        mapped = self._maps[chunk]
        if mapped is None:
            with self._lock:
                mapped = self._maps[chunk]
                if mapped is None:  # another thread may have mapped it meanwhile
                    mapped = self._maps[chunk] = self._open(chunk)
        # Reading past the end of the file would kill the process with SIGBUS.
        if base_of(mapped).size() < mapped.nbytes:
            raise cut_short(f"{self._name}: chunk {self._file(chunk)}")
        return mapped

    def _open(self, chunk: int) -> NDArray[Any]:
        file = self._file(chunk)
        low = chunk * self._rows
        rows = f"rows {low} to {min(low + self._rows, self.shape[0])}"
        shape = (self._rows, *self.shape[1:])
        expected = int(np.prod(shape)) * self.dtype.itemsize
        try:
            size = file.stat().st_size
        except OSError as error:
            raise SourceError(
                f"{self._name}: chunk {file} with {rows} is missing ({error.strerror}); "
                "the copy is incomplete, or its writer left out chunks that hold only the fill value: "
                "copy it again, or pass missing='fill' if those are right"
            ) from error
        if size != expected:
            raise SourceError(
                f"{self._name}: chunk {file} with {rows} has {size} bytes instead of {expected}; copy it again"
            )
        return FileMap(file).bytes.view(self.dtype).reshape(shape)

    def __reduce__(self) -> Any:
        return MappedChunks, self._arguments  # never the contents


def map_raw(spec: dict[str, Any], dtype: np.dtype[Any], name: str) -> MappedChunks | None:
    """Memory-maps the array of an open store; None unless its chunks are whole little-endian rows in local files."""
    metadata = spec.get("metadata", {})
    kvstore = spec.get("kvstore")
    if spec.get("driver") != "zarr3" or not isinstance(kvstore, dict) or kvstore.get("driver") != "file":
        return None
    grid = metadata.get("chunk_grid", {}).get("configuration", {}).get("chunk_shape")
    shape = metadata.get("shape")
    if not shape or not grid or grid[1:] != shape[1:] or not _only_bytes(metadata.get("codecs", []), dtype):
        return None
    chunks, size = -(-shape[0] // grid[0]), int(np.prod(grid)) * dtype.itemsize
    if chunks > _MOST_CHUNKS or size < _LEAST_BYTES or not _whole(spec.get("transform"), shape):
        return None
    return MappedChunks(Path(kvstore["path"]), metadata, dtype, name)


def _only_bytes(codecs: list[Any], dtype: np.dtype[Any]) -> bool:
    if len(codecs) != 1 or codecs[0].get("name") != "bytes":
        return False
    return dtype.itemsize == 1 or codecs[0].get("configuration", {}).get("endian") == "little"


def _whole(transform: dict[str, Any] | None, shape: list[int]) -> bool:
    """Whether a store is the whole array and not a view."""
    if transform is None:
        return True
    ends = [end[0] if isinstance(end, list) else end for end in transform.get("input_exclusive_max", [])]
    return "output" not in transform and ends == shape and not any(transform.get("input_inclusive_min", []))


def _nothing() -> None:
    """Does nothing: the read has finished."""
