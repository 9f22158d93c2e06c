"""Opens all arrays of a store, of any writer, finished or not, to inspect or verify it."""

import os
from dataclasses import dataclass
from typing import Any, final

import tensorstore as ts

from loadax.errors import SourceError
from loadax.sources.io.kvstore import new_context, wait
from loadax.sources.zarr.discovery import Folder, find_arrays
from loadax.sources.zarr.manifest import FINISHED, PARTIAL, check_finished, read_marker
from loadax.writing.layout import array_label

_CACHE_BYTES = 32 << 20  # for shard indexes, when shards are read chunk by chunk
_CHECKED = {"crc32c", "crc32", "adler32", "fletcher32", "gzip", "zlib"}  # codecs with a checksum


@final
@dataclass(frozen=True)
class Stored:
    """A zarr store.

    Args:
        location: Path or URL.
        manifest: Manifest of a store that loadax finished; None otherwise.
        partial: Marker of a store that loadax did not finish; None otherwise.
        arrays: Open arrays by name, sorted; the name is "" if the store is one array.
        absent: Arrays of the manifest that can't be opened, with the error.
    """

    location: str
    manifest: dict[str, Any] | None
    partial: dict[str, Any] | None
    arrays: dict[str, ts.TensorStore]
    absent: dict[str, SourceError]


def open_stored(path: str | os.PathLike[str], *, half_written: bool = False) -> Stored:
    """Opens all arrays of a store, strictly: a missing chunk is an error.

    Args:
        path: Path or URL of an array or a group.
        half_written: Whether an unfinished store is allowed.

    Raises:
        SourceError: When there is no zarr array or group at `path`, or it is unfinished.
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
    """Shape of a chunk, the unit of decoding."""
    return _extents(array, array.chunk_layout.read_chunk.shape)


def file_shape(array: ts.TensorStore) -> tuple[int, ...]:
    """Shape of a file: a shard, or a chunk without shards."""
    return _extents(array, array.chunk_layout.write_chunk.shape)


def codecs_of(array: ts.TensorStore) -> list[tuple[str, dict[str, Any]]]:
    """Names and settings of the codecs of an array's chunks, in order."""
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
    """Whether a file contains many chunks."""
    codecs = array.spec().to_json().get("metadata", {}).get("codecs", [])
    return bool(codecs) and codecs[-1]["name"] == "sharding_indexed"


def has_checksum(array: ts.TensorStore) -> bool:
    """Whether a codec detects flipped bits."""
    return any(
        name in _CHECKED or (name == "zstd" and bool(settings.get("checksum"))) for name, settings in codecs_of(array)
    )


def raw_bytes(array: ts.TensorStore) -> int:
    """Size of an array in memory, in bytes."""
    return int(array.size) * int(array.dtype.numpy_dtype.itemsize)


def _extents(array: ts.TensorStore, shape: tuple[int | None, ...] | None) -> tuple[int, ...]:
    """Replaces None, for dimensions that a driver does not cut, by the array's extent."""
    known = shape or (None,) * array.rank
    return tuple(max(1, whole if extent is None else extent) for extent, whole in zip(known, array.shape, strict=True))
