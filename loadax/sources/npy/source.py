"""`.npy` files: local ones memory-mapped, remote ones read by ranges."""

import os
from typing import Any

import numpy as np

from loadax.core.arguments import path
from loadax.core.tree import flatten, map_leaves
from loadax.errors import SourceError
from loadax.sources.arrays import ArraySource
from loadax.sources.io.disk_cache import open_cache
from loadax.sources.io.paths import local_path
from loadax.sources.npy.header import NPY_FAILURES, load_npy
from loadax.sources.npy.remote import NpyRanges


def open_npy(paths: Any, cache: Any = None, cache_bytes: int = 16 << 30) -> ArraySource | NpyRanges:
    """The rows of one `.npy` file, or of a pytree of them.

    Args:
        paths: or URLs.
        cache: a local folder for what is read of remote files.
        cache_bytes: how much it holds.

    Raises:
        SourceError: when a file is missing, is no `.npy` file, is cut short, or holds Python objects; names the file.
    """
    blocks = open_cache(cache, cache_bytes)
    places = [
        local_path(path("paths", location, "the path of a .npy file, or a pytree of paths"))
        for location in flatten(paths)[0]
    ]
    if all(places):
        return ArraySource(map_leaves(_map_file, paths))
    return NpyRanges(map_leaves(lambda location: os.fspath(local_path(location) or location), paths), blocks)


def _map_file(path: Any) -> np.memmap[Any, Any]:
    file = local_path(path)
    assert file is not None
    try:
        array = load_npy(file, mapped=True)
    except NPY_FAILURES as error:
        reason = (
            "there is no such file" if isinstance(error, FileNotFoundError) else f"it can't be opened as .npy: {error}"
        )
        raise SourceError(f"{file}: {reason}; write it with numpy.save, as an array of numbers") from error
    if not isinstance(array, np.memmap):
        if hasattr(array, "close"):
            array.close()
        raise SourceError(
            f"{file} holds several arrays (.npz), which can't be mapped; save each with numpy.save as .npy"
        )
    return array
