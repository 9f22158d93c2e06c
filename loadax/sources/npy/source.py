"""Opens `.npy` files: local ones memory-mapped, remote ones by range requests."""

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from loadax.core.arguments import path
from loadax.core.tree import flatten
from loadax.errors import SourceError
from loadax.files.byte_stream import FileSpan, open_stream
from loadax.files.file_map import FileMap
from loadax.files.files import files_with_cache
from loadax.files.npy_header import read_npy_headers
from loadax.files.paths import local_path
from loadax.sources.arrays import ArraySource
from loadax.sources.stream_array import StreamArray

if TYPE_CHECKING:
    from loadax.files.metadata import Metadata


def open_npy(
    paths: Any,
    cache: Any = None,
    cache_bytes: int = 16 << 30,
    metadata: "Metadata | None" = None,
) -> ArraySource:
    """Opens one `.npy` file, or a pytree of them.

    Args:
        paths: Pytree of paths and URLs.
        cache: Local folder for the cache of remote blocks; None: no cache.
        cache_bytes: Maximum size of the cache in bytes.
        metadata: What is known of remote files; None: nothing.

    Raises:
        SourceError: When a file is missing, not a `.npy` file, cut short, or contains Python objects; names the file.
    """
    files = files_with_cache(cache, cache_bytes, metadata)
    given, structure = flatten(paths)
    local = [
        local_path(
            path("paths", each, "the path of a .npy file, or a pytree of paths")
        )
        for each in given
    ]
    locations = [str(file or url) for file, url in zip(local, given, strict=True)]
    arrays: list[Any] = []
    for location, file, header in zip(
        locations, local, read_npy_headers(files, locations), strict=True
    ):
        if not header.shape:
            raise SourceError(
                f"{location} is a scalar without rows; give it a first dimension"
            )
        if file is not None:
            order: Literal["C", "F"]
            if header.fortran:
                order = "F"
            else:
                order = "C"
            # NumPy's own map keeps a descriptor.
            arrays.append(
                np.ndarray(
                    header.shape,
                    header.dtype,
                    FileMap(file).bytes,
                    header.begin,
                    order=order,
                )
            )
            continue
        if header.fortran and len(header.shape) > 1:
            raise SourceError(
                f"{location} is in Fortran order, so the bytes of a row are "
                "scattered over the file; save numpy.ascontiguousarray(array), or "
                "copy the file to this machine"
            )
        stream = open_stream([FileSpan(location, header.begin, header.size)], files)
        arrays.append(StreamArray(stream, header.dtype, header.shape))
    return ArraySource(structure.build(arrays))
