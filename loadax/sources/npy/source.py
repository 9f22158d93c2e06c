"""Opens `.npy` files: local ones memory-mapped, remote ones by range requests."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from loadax.core.arguments import path
from loadax.core.tree import flatten
from loadax.errors import SourceError
from loadax.sources.arrays import ArraySource
from loadax.sources.io.byte_stream import Segment
from loadax.sources.io.disk_cache import DiskCache, open_cache
from loadax.sources.io.file_map import FileMap
from loadax.sources.io.files import Files
from loadax.sources.io.paths import local_path
from loadax.sources.io.remote_stream import RemoteSegments
from loadax.sources.npy.header import NPY_FAILURES, REMEDY, load_npy, read_npy_headers
from loadax.sources.stream_array import StreamArray


def open_npy(paths: Any, cache: Any = None, cache_bytes: int = 16 << 30) -> ArraySource:
    """Opens one `.npy` file, or a pytree of them.

    Args:
        paths: Pytree of paths and URLs.
        cache: Local folder for the cache of remote blocks; None: no cache.
        cache_bytes: Maximum size of the cache in bytes.

    Raises:
        SourceError: When a file is missing, not a `.npy` file, cut short, or contains Python objects; names the file.
    """
    blocks = open_cache(cache, cache_bytes)
    given, structure = flatten(paths)
    local = [local_path(path("paths", each, "the path of a .npy file, or a pytree of paths")) for each in given]
    far = iter(_open_remote([url for url, file in zip(given, local, strict=True) if file is None], blocks))
    return ArraySource(structure.build(next(far) if file is None else _map_file(file) for file in local))


def _open_remote(locations: list[str], cache: DiskCache | None) -> list[StreamArray]:
    files, arrays = Files(), []
    for header, location in zip(read_npy_headers(files, locations), locations, strict=True):
        if not header.shape:
            raise SourceError(f"{location} is a scalar without rows; give it a first dimension")
        if header.fortran and len(header.shape) > 1:
            raise SourceError(
                f"{location} is in Fortran order, so the bytes of a row are scattered over the file; save "
                "numpy.ascontiguousarray(array), or copy the file to this machine"
            )
        stream = RemoteSegments([Segment(location, header.begin, header.size)], files, cache)
        arrays.append(StreamArray(stream, header.dtype, header.shape))
    return arrays


def _map_file(file: Path) -> NDArray[Any]:
    try:
        array = load_npy(file, mapped=True)
    except NPY_FAILURES as error:
        raise SourceError(f"{file}: it can't be opened as .npy: {error}; {REMEDY}") from error
    if not isinstance(array, np.memmap):
        if hasattr(array, "close"):
            array.close()
        raise SourceError(
            f"{file} contains several arrays (.npz), which can't be memory-mapped; save each with numpy.save as .npy"
        )
    # NumPy's map keeps a descriptor.
    order: Literal["C", "F"] = "C" if array.flags.c_contiguous else "F"
    return np.ndarray(array.shape, array.dtype, FileMap(file).bytes, array.offset, order=order)
