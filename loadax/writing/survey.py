"""The arrays of a store as it lies there, for those who look at it as a whole: whoever wrote it, and however far."""

import os
from dataclasses import dataclass
from typing import Any, final

import tensorstore as ts

from loadax.errors import SourceError
from loadax.sources.io.kvstore import new_context, wait
from loadax.sources.zarr.discovery import Folder, find_arrays
from loadax.sources.zarr.manifest import FINISHED, PARTIAL, check_finished, read_marker
from loadax.writing.names import array_label

_CACHE_BYTES = 32 << 20  # for the indexes of shards that are read chunk by chunk
_CHECKED = {"crc32c", "crc32", "adler32", "fletcher32", "gzip", "zlib"}  # codecs that notice flipped bits


@final
@dataclass(frozen=True)
class Stored:
    """A zarr store.

    Args:
        location: its path or URL.
        manifest: what loadax wrote, when it did and came to the end.
        partial: what loadax was about to write, when it did not.
        arrays: the open arrays by name (of an array by itself: empty), in the order of their names.
        absent: the arrays that should be there, and why they can't be opened.
    """

    location: str
    manifest: dict[str, Any] | None
    partial: dict[str, Any] | None
    arrays: dict[str, ts.TensorStore]
    absent: dict[str, SourceError]


def open_stored(path: str | os.PathLike[str], *, half_written: bool = False) -> Stored:
    """Opens all arrays of a store, strictly: a missing chunk is an error.

    Args:
        path: of an array or a group, local or a URL.
        half_written: whether it may be one that loadax did not write to its end.

    Raises:
        SourceError: when there is no zarr array or group at `path`, or one that was not written to its end.
    """
    location = os.fspath(path)
    folder = Folder(location)
    manifest = read_marker(folder.store, FINISHED, location) if half_written else check_finished(folder.store, location)
    partial = None if manifest is not None else read_marker(folder.store, PARTIAL, location)
    ours = (manifest or partial or {}).get("arrays")
    if ours is None:
        tree = find_arrays(path, None)
        specs = {"": tree} if isinstance(tree.get("driver"), str) else tree
    else:
        specs = {name: folder.array("zarr3", f"{name}/" if name else "") for name in ours}
        if manifest is not None and folder.node("") is None:
            raise SourceError(f"{location}: its zarr.json is missing; copy it again")
    context = new_context(_CACHE_BYTES)
    arrays, absent = {}, {}
    for name, spec in sorted(specs.items()):
        strict = {**spec, "fill_missing_data_reads": False}
        try:
            arrays[name] = wait(ts.open(strict, read=True, context=context), array_label(location, name))
        except SourceError as error:
            if ours is None:
                raise
            absent[name] = error
    return Stored(location, manifest, partial, arrays, absent)


def chunk_shape(array: ts.TensorStore) -> tuple[int, ...]:
    """The extents of what is decoded together."""
    return _extents(array, array.chunk_layout.read_chunk.shape)


def file_shape(array: ts.TensorStore) -> tuple[int, ...]:
    """The extents of what is stored together: a shard, or a chunk that is a file of its own."""
    return _extents(array, array.chunk_layout.write_chunk.shape)


def codecs_of(array: ts.TensorStore) -> list[tuple[str, dict[str, Any]]]:
    """The codecs of an array's chunks, as they are applied: their names and settings."""
    metadata = array.spec().to_json().get("metadata", {})
    codecs = metadata.get("codecs", [])
    if is_sharded(array):
        codecs = codecs[-1]["configuration"]["codecs"]
    # Version 2 and n5 have filters and a compressor instead of codecs.
    older = [*(metadata.get("filters") or []), metadata.get("compressor") or metadata.get("compression") or {}]
    named = [
        (codec.get("name") or codec.get("id") or codec.get("type"), codec.get("configuration", codec))
        for codec in (*codecs, *older)
    ]
    return [(name, settings) for name, settings in named if name is not None]


def is_sharded(array: ts.TensorStore) -> bool:
    """Whether a file holds many chunks."""
    codecs = array.spec().to_json().get("metadata", {}).get("codecs", [])
    return bool(codecs) and codecs[-1]["name"] == "sharding_indexed"


def has_checksum(array: ts.TensorStore) -> bool:
    """Whether flipped bits are noticed."""
    return any(
        name in _CHECKED or (name == "zstd" and bool(settings.get("checksum"))) for name, settings in codecs_of(array)
    )


def raw_bytes(array: ts.TensorStore) -> int:
    """Bytes of an array in memory."""
    return int(array.size) * int(array.dtype.numpy_dtype.itemsize)


def _extents(array: ts.TensorStore, shape: tuple[int | None, ...] | None) -> tuple[int, ...]:
    """A shape in which None, of a driver that does not cut a dimension, is all of it."""
    known = shape or (None,) * array.rank
    return tuple(max(1, whole if extent is None else extent) for extent, whole in zip(known, array.shape, strict=True))
