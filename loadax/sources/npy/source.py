"""Opens `.npy` files: local ones memory-mapped, remote ones by range requests."""

import os
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from loadax.core.arguments import path
from loadax.core.tree import flatten, map_leaves
from loadax.errors import SourceError
from loadax.sources.arrays import ArraySource
from loadax.sources.io.disk_cache import open_cache
from loadax.sources.io.file_map import FileMap
from loadax.sources.io.paths import local_path
from loadax.sources.npy.header import NPY_FAILURES, REMEDY, load_npy
from loadax.sources.npy.remote import NpyRanges


def open_npy(paths: Any, cache: Any = None, cache_bytes: int = 16 << 30) -> ArraySource | NpyRanges:
    """Opens one `.npy` file, or a pytree of them.

    Args:
        paths: Pytree of paths and URLs.
        cache: Local folder for the cache of remote blocks; None: no cache.
        cache_bytes: Maximum size of the cache in bytes.

    Raises:
        SourceError: When a file is missing, not a `.npy` file, cut short, or contains Python objects; names the file.
    """
    blocks = open_cache(cache, cache_bytes)
    places = [
        local_path(path("paths", location, "the path of a .npy file, or a pytree of paths"))
        for location in flatten(paths)[0]
    ]
    if all(places):
        return ArraySource(map_leaves(_map_file, paths))
    return NpyRanges(map_leaves(lambda location: os.fspath(local_path(location) or location), paths), blocks)


def _map_file(path: Any) -> NDArray[Any]:
    file = local_path(path)
    assert file is not None
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
