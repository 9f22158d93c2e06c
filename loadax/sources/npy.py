"""`.npy` files, mapped into memory."""

import os
from pathlib import Path
from typing import Any

import numpy as np

from loadax.errors import SourceError
from loadax.sources.arrays import ArraySource
from loadax.trees import map_leaves


def open_npy(paths: Any) -> ArraySource:
    """The rows of one `.npy` file, or of a pytree of them.

    Raises:
        SourceError: when a file is missing, is no `.npy` file, is cut short, or holds Python objects; names the file.
    """
    return ArraySource(map_leaves(_map_file, paths))


def _map_file(path: Any) -> np.memmap[Any, Any]:
    if not isinstance(path, str | os.PathLike):
        raise SourceError(f"{path!r} is a {type(path).__name__}, not a path; pass that of a .npy file, or a pytree of paths")
    where = Path(path)
    try:
        array = np.load(where, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        reason = "there is no such file" if isinstance(error, FileNotFoundError) else f"it can't be opened as .npy: {error}"
        raise SourceError(f"{where}: {reason}; write it with numpy.save, as an array of numbers") from error
    if not isinstance(array, np.memmap):
        if hasattr(array, "close"):
            array.close()
        raise SourceError(f"{where} holds several arrays (.npz), which can't be mapped; save each with numpy.save as .npy")
    return array
