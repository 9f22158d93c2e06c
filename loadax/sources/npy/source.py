"""Opens `.npy` files: local ones memory-mapped, remote ones by range requests."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from loadax.core.arguments import path
from loadax.core.tree import flatten
from loadax.errors import SourceError
from loadax.files.byte_stream import FileSpan, open_stream
from loadax.files.file_map import FileMap
from loadax.files.files import Files, files_with_cache
from loadax.files.npy_header import NpyHeader, read_npy_headers
from loadax.files.paths import local_path
from loadax.sources.arrays import ArraySource
from loadax.sources.expand import expand, file_name
from loadax.sources.npy.format import FORMAT
from loadax.sources.stream_array import StreamArray

if TYPE_CHECKING:
    from loadax.files.metadata import Metadata


def open_npy(
    paths: Any,
    cache: Any = None,
    cache_bytes: int = 16 << 30,
    metadata: "Metadata | None" = None,
) -> ArraySource:
    """Opens `.npy` files, or a pytree of them.

    Args:
        paths: Pytree of paths and URLs. The rows of a leaf that is a folder or pattern are those of its files.
        cache: Local folder for the cache of remote blocks; None: no cache.
        cache_bytes: Maximum size of the cache in bytes.
        metadata: What is known of remote files; None: nothing.

    Raises:
        SourceError: When a file is missing, not a `.npy` file, cut short, or contains Python objects; names the file.
    """
    files = files_with_cache(cache, cache_bytes, metadata)
    given, structure = flatten(paths)
    leaves = [_files_of(leaf, files) for leaf in given]
    locations = [location for leaf in leaves for location in leaf]
    headers = iter(read_npy_headers(files, locations))
    return ArraySource(
        structure.build(
            _array([(location, next(headers)) for location in leaf], files)
            for leaf in leaves
        )
    )


def _files_of(given: Any, files: Files) -> list[str]:
    """The files of a leaf: one, or those of a folder or pattern."""
    text = path("paths", given, "the path of a .npy file, or a pytree of paths")
    local = local_path(text)
    if local is not None and local.is_file():
        return [str(local)]
    if local is None and FORMAT.belongs(file_name(text)) and "*" not in text:
        return [text]
    return expand(text, FORMAT, files)


def _array(parts: Sequence[tuple[str, NpyHeader]], files: Files) -> Any:
    """The array of a file, or of the rows of several files."""
    location, first = parts[0]
    for other, header in parts:
        if not header.shape:
            raise SourceError(
                f"{other} is a scalar without rows; give it a first dimension"
            )
        if (header.dtype, header.shape[1:]) != (first.dtype, first.shape[1:]):
            raise SourceError(
                f"{other} has rows of {_row_text(header)}, but {location} of "
                f"{_row_text(first)}; pass files of equal rows, or a tree of files"
            )
    local = local_path(location)
    if local is not None and len(parts) == 1:
        order: Literal["C", "F"]
        if first.fortran:
            order = "F"
        else:
            order = "C"
        # NumPy's own map keeps a descriptor.
        return np.ndarray(
            first.shape, first.dtype, FileMap(local).bytes, first.begin, order=order
        )
    for other, header in parts:
        if header.fortran and len(header.shape) > 1:
            raise SourceError(
                f"{other} is in Fortran order, so the bytes of a row are scattered "
                "over the file; save numpy.ascontiguousarray(array), or copy the file "
                "to this machine and open it alone"
            )
    spans = [FileSpan(other, header.begin, header.size) for other, header in parts]
    rows = sum(header.shape[0] for _, header in parts)
    stream = open_stream(spans, files)
    return StreamArray(stream, first.dtype, (rows, *first.shape[1:]))


def _row_text(header: NpyHeader) -> str:
    return f"{header.dtype}{list(header.shape[1:])}"
