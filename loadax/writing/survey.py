"""Opens all arrays of a store, of any writer, finished or not, to inspect or verify it."""

import math
import os
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import tensorstore as ts

from loadax.errors import SourceError
from loadax.files.kvstore import new_context, wait
from loadax.files.spec_json import spec_json
from loadax.protocols import Integers
from loadax.sources.zarr.discovery import Folder, find_arrays
from loadax.sources.zarr.manifest import check_finished, json_object
from loadax.sources.zarr.names import FINISHED, LENGTHS, PARTIAL
from loadax.writing.chunk_layout import array_label
from loadax.writing.store_parts import damage_of

_CACHE_BYTES = 32 << 20  # for shard indexes, when shards are read chunk by chunk
# codecs with a checksum
_CHECKED = {"crc32c", "crc32", "adler32", "fletcher32", "gzip", "zlib"}

# `(start, stop)` for every dimension.
Box = tuple[tuple[int, int], ...]


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
        lengths: Lengths of ragged rows, int64[rows, ragged leaves]; None if rows are not ragged, or they can't be read.
    """

    location: str
    manifest: dict[str, Any] | None
    partial: dict[str, Any] | None
    arrays: dict[str, ts.TensorStore]
    absent: dict[str, SourceError]
    lengths: Integers | None = None

    @property
    def ragged(self) -> list[str]:
        """Names of the arrays of ragged leaves."""
        return list((self.manifest or self.partial or {}).get("ragged", ()))

    def boxes(self, name: str) -> list[Box]:
        """The parts of an array that are stored: all of it, or the blocks of each part of a ragged leaf."""
        array = self.arrays[name]
        whole = tuple(
            zip(array.domain.inclusive_min, array.domain.exclusive_max, strict=True)
        )
        if name not in self.ragged:
            return [whole]
        if self.lengths is None or self.manifest is None:
            return []
        lengths = self.lengths[:, self.ragged.index(name)]
        step = self.manifest["shard_rows"]
        blocks = -(
            -np.add.reduceat(lengths, np.arange(0, len(lengths), step))
            // array.shape[2]
        )
        return [
            ((part, part + 1), (0, count), *whole[2:])
            for part, count in enumerate(blocks.tolist())
            if count
        ]

    def raw_bytes(self, name: str) -> int:
        """Size of what is stored of an array in memory, in bytes."""
        entries = sum(
            math.prod(stop - start for start, stop in box) for box in self.boxes(name)
        )
        return entries * int(self.arrays[name].dtype.numpy_dtype.itemsize)


def open_stored(
    path: str | os.PathLike[str], *, half_written: bool = False
) -> Stored:
    """Opens all arrays of a store, strictly: a missing chunk is an error.

    Args:
        path: Path or URL of an array or a group.
        half_written: Whether an unfinished store is allowed.

    Raises:
        SourceError: When there is no zarr array or group at `path`, or it is unfinished.
    """
    location = os.fspath(path)
    folder = Folder(location)
    markers = folder.markers()
    found = {
        name: None if content is None else json_object(content, f"{location}: {name}")
        for name, content in markers.items()
    }
    manifest = found[FINISHED]
    if not half_written:
        check_finished(markers, location)
    partial = None if manifest is not None else found[PARTIAL]
    ours = (manifest or partial or {}).get("arrays")
    if ours is None:
        tree = find_arrays(path, None)
        if isinstance(tree.get("driver"), str):
            specs = {"": tree}
        else:
            specs = tree
    else:
        specs = {name: folder.array(f"{name}/" if name else "") for name in ours}
        if manifest is not None and folder.node() is None:
            raise SourceError(f"{location}: its zarr.json is missing; copy it again")
    context = new_context(_CACHE_BYTES)
    arrays = {}
    absent = {}
    for name, spec in sorted(specs.items()):
        strict = {**spec, "fill_missing_data_reads": False}
        try:
            arrays[name] = wait(
                ts.open(strict, read=True, context=context),
                array_label(location, name),
            )
        except SourceError as error:
            if ours is None:
                raise
            absent[name] = error
    stored = Stored(location, manifest, partial, arrays, absent)
    if manifest is None or LENGTHS not in arrays:
        return stored
    lengths = arrays[LENGTHS].read()
    if damage_of(lengths, location):
        return stored
    return replace(stored, lengths=lengths.result())


def chunk_shape(array: ts.TensorStore) -> tuple[int, ...]:
    """Shape of a chunk, the unit of decoding."""
    return _extents(array, array.chunk_layout.read_chunk.shape)


def file_shape(array: ts.TensorStore) -> tuple[int, ...]:
    """Shape of a file: a shard, or a chunk without shards."""
    return _extents(array, array.chunk_layout.write_chunk.shape)


def codecs_of(array: ts.TensorStore) -> list[tuple[str, dict[str, Any]]]:
    """Names and settings of the codecs of an array's chunks, in order."""
    metadata = spec_json(array.spec()).get("metadata", {})
    codecs = metadata.get("codecs", [])
    if is_sharded(array):
        codecs = codecs[-1]["configuration"]["codecs"]
    # Version 2 and n5 have filters and a compressor instead of codecs.
    older = [
        *(metadata.get("filters") or []),
        metadata.get("compressor") or metadata.get("compression") or {},
    ]
    named = [
        (
            codec.get("name") or codec.get("id") or codec.get("type"),
            codec.get("configuration", codec),
        )
        for codec in (*codecs, *older)
    ]
    return [(name, settings) for name, settings in named if name is not None]


def is_sharded(array: ts.TensorStore) -> bool:
    """Whether a file contains many chunks."""
    codecs = spec_json(array.spec()).get("metadata", {}).get("codecs", [])
    return bool(codecs) and codecs[-1]["name"] == "sharding_indexed"


def has_checksum(array: ts.TensorStore) -> bool:
    """Whether a codec detects flipped bits."""
    return any(
        name in _CHECKED or (name == "zstd" and bool(settings.get("checksum")))
        for name, settings in codecs_of(array)
    )


def _extents(
    array: ts.TensorStore, shape: tuple[int | None, ...] | None
) -> tuple[int, ...]:
    """Replaces None, for dimensions that a driver does not cut, by the array's extent."""
    known = shape or (None,) * array.rank
    return tuple(
        max(1, whole if extent is None else extent)
        for extent, whole in zip(known, array.shape, strict=True)
    )
