"""Memory-maps the chunk files of local, uncompressed, unsharded zarr 3 arrays.

TensorStore reads such chunks several times more slowly than a memory map.
"""

import math
from pathlib import Path
from typing import Any, final

import numpy as np

from loadax.core.formatting import count_text
from loadax.errors import SourceError
from loadax.files.byte_stream import FileSpan, MappedSegments
from loadax.protocols import Array, Columns, Integers, Location
from loadax.sources.stream_array import StreamArray
from loadax.sources.zarr.array import chunk_key

_MOST_CHUNKS = 16_384  # files to map: a process may have 65,530 maps on Linux
_LEAST_BYTES = 1 << 16  # smallest chunk: smaller ones gain nothing


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

    def __init__(
        self, folder: Path, metadata: dict[str, Any], dtype: np.dtype[Any], name: str
    ):
        self.shape = tuple(int(extent) for extent in metadata["shape"])
        self.dtype = dtype
        self._name = name
        self._rows = int(metadata["chunk_grid"]["configuration"]["chunk_shape"][0])
        spec = {"driver": "zarr3", "metadata": metadata}
        columns = [0] * (len(self.shape) - 1)
        self._files = [
            f"{folder}/{chunk_key(spec, [chunk, *columns])}"
            for chunk in range(len(self.chunk_starts))
        ]
        self._chunk_bytes = self._rows * math.prod(self.shape[1:]) * dtype.itemsize
        spans = [FileSpan(file, 0, self._chunk_bytes) for file in self._files]
        self._array = StreamArray(
            MappedSegments(spans, self._chunk_bytes // self._rows), dtype, self.shape
        )
        self._checked: set[int] = set()
        self._arguments = folder, metadata, dtype, name

    @property
    def chunk_starts(self) -> range:
        """First rows of the files; mapped rows cost nothing extra one by one, so no chunk cache is needed."""
        return range(0, self.shape[0], self._rows)

    def locate(self, row: int) -> list[Location]:
        """File and byte range of a row."""
        return self._array.locate(row, row + 1)

    def start(self, rows: Integers, columns: Columns, out: Array) -> None:
        """Reads synchronously, so there is nothing to wait for."""
        if len(self._checked) < len(self._files):
            for chunk in {*(rows // self._rows).tolist()} - self._checked:
                self._check(chunk)
        self._array.read_into(rows, columns, out)

    def _check(self, chunk: int) -> None:
        """Checks that the file of a chunk exists and has the right size, when it is first read."""
        low = chunk * self._rows
        expected = self._chunk_bytes
        named = (
            f"{self._name}: chunk {self._files[chunk]} with rows {low} to "
            f"{min(low + self._rows, self.shape[0])}"
        )
        try:
            size = Path(self._files[chunk]).stat().st_size
        except OSError as error:
            raise SourceError(
                f"{named} is missing ({error.strerror}); the copy is incomplete, or "
                "its writer left out chunks that hold only the fill value: copy it "
                "again, or pass missing='fill' if those are right"
            ) from error
        if size != expected:
            raise SourceError(
                f"{named} has {count_text(size, 'byte')} instead of {expected:,}; "
                "copy it again"
            )
        self._checked.add(chunk)

    def __reduce__(self) -> Any:
        return MappedChunks, self._arguments  # never the contents


def map_raw(
    spec: dict[str, Any], dtype: np.dtype[Any], name: str
) -> MappedChunks | None:
    """Memory-maps the array of an open store; None unless its chunks are whole little-endian rows in local files."""
    metadata = spec.get("metadata", {})
    kvstore = spec.get("kvstore")
    if (
        spec.get("driver") != "zarr3"
        or not isinstance(kvstore, dict)
        or kvstore.get("driver") != "file"
    ):
        return None
    grid = metadata.get("chunk_grid", {}).get("configuration", {}).get("chunk_shape")
    shape = metadata.get("shape")
    if (
        not shape
        or not grid
        or grid[1:] != shape[1:]
        or not _only_bytes(metadata.get("codecs", []), dtype)
    ):
        return None
    chunks = -(-shape[0] // grid[0])
    size = int(np.prod(grid)) * dtype.itemsize
    if (
        chunks > _MOST_CHUNKS
        or size < _LEAST_BYTES
        or not _whole(spec.get("transform"), shape)
    ):
        return None
    return MappedChunks(Path(kvstore["path"]), metadata, dtype, name)


def _only_bytes(codecs: list[Any], dtype: np.dtype[Any]) -> bool:
    if len(codecs) != 1 or codecs[0].get("name") != "bytes":
        return False
    return (
        dtype.itemsize == 1
        or codecs[0].get("configuration", {}).get("endian") == "little"
    )


def _whole(transform: dict[str, Any] | None, shape: list[int]) -> bool:
    """Whether a store is the whole array and not a view."""
    if transform is None:
        return True
    ends = [
        end[0] if isinstance(end, list) else end
        for end in transform.get("input_exclusive_max", [])
    ]
    return (
        "output" not in transform
        and ends == shape
        and not any(transform.get("input_inclusive_min", []))
    )
