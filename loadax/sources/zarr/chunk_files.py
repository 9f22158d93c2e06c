"""Maps a row of a chunked array to its files, from metadata alone."""

import itertools
from collections.abc import Sequence
from typing import Any

from loadax.protocols import Location
from loadax.sources.io.kvstore import address_of
from loadax.sources.io.paths import local_path


def chunk_files(spec: dict[str, Any], layout: Any, shape: tuple[int, ...], row: int) -> list[Location]:
    """Returns the chunk files or shards of a row, with chunk indices; the array's folder if they are unknown.

    Args:
        spec: Spec of the store, as JSON; empty for a virtual store.
        layout: `tensorstore.ChunkLayout` of the store.
        shape: Shape of the array.
        row: Row of the array.
    """
    address = address_of(spec.get("kvstore"))
    if not address:
        return []
    if address.startswith("file://") and "|" not in address:
        address = str(local_path(address))
    files, chunks = layout.write_chunk.shape, layout.read_chunk.shape
    # The rows of a view, such as a slice, differ from those of the array; some drivers have private keys.
    if "output" in spec.get("transform", {}) or not files or not chunks or not all((*files, *chunks)):
        return [Location(address)]
    coordinates = [
        [row // files[0]],
        *(range(-(-extent // size)) for extent, size in zip(shape[1:], files[1:], strict=True)),
    ]
    locations = []
    for index in itertools.product(*coordinates):
        key = chunk_key(spec, index)
        spans = [str(row // chunks[0])]
        for coordinate, size, chunk, extent in zip(index[1:], files[1:], chunks[1:], shape[1:], strict=True):
            first, last = coordinate * size // chunk, (min((coordinate + 1) * size, extent) - 1) // chunk
            spans.append(str(first) if first == last else f"{first}:{last + 1}")
        locations.append(
            Location(address if key is None else f"{address.rstrip('/')}/{key}", part=f"chunk [{', '.join(spans)}]")
        )
    return locations


def chunk_key(spec: dict[str, Any], index: Sequence[int]) -> str | None:
    """Key of a chunk's file by the format's specification; None if unknown."""
    metadata = spec.get("metadata", {})
    coordinates = [str(coordinate) for coordinate in index]
    if spec.get("driver") == "zarr3":
        encoding = metadata.get("chunk_key_encoding", {"name": "default"})
        default = encoding["name"] == "default"
        separator = encoding.get("configuration", {}).get("separator", "/" if default else ".")
        return str(separator.join(["c"] * default + coordinates))
    if spec.get("driver") in ("zarr", "zarr2"):
        return str(metadata.get("dimension_separator", ".")).join(coordinates)
    return "/".join(coordinates) if spec.get("driver") == "n5" else None
