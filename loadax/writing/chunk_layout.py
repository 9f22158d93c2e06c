"""Layout of rows in a zarr store: chunks within shards, cut only along the rows.

Chunks are the unit of decoding, so they are small: rows can be read in any order. Shards are files, so they are large:
there are few of them. Part p of a store is shard p of every array.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np

from loadax.core.arguments import choice, integer
from loadax.core.spec import flatten_spec
from loadax.core.tree import Structure
from loadax.errors import ArgumentError, LeafTypeError
from loadax.protocols import Array, ArraySpec, Tree
from loadax.sources.zarr.names import BARE, BLOCKS, LENGTHS

# raw; in smaller chunks, shard index and checksums outweigh the rows
_CHUNK_BYTES = 4 << 10
# raw, of a ragged leaf: rows that are longer than a chunk take several
_BLOCK_BYTES = 16 << 10
_SHARD_BYTES = 128 << 20  # raw, of all arrays together: the memory of one part
# of a store that is smaller: what an interrupted write has to do again
FEW_PARTS = 64

# Dtypes of TensorStore's zarr3 driver; listed because TensorStore aborts the process on some unknown names.
_DTYPES = {
    *(
        "bool",
        "int2",
        "int4",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
    ),
    *(
        "bfloat16",
        "float16",
        "float32",
        "float64",
        "complex64",
        "complex128",
        "float4_e2m1fn",
        "float8_e3m4",
    ),
    *(
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e4m3b11fnuz",
        "float8_e5m2",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
    ),
}

_BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
_CHECKSUM = {"name": "crc32c"}
_COMPRESSORS = ("zstd", "blosc", None)

# of an array
_NAME = re.compile(r"(?!__|loadax\.|zarr\.json$)(?!\.*$)[^/\\]*", re.DOTALL)


@final
@dataclass(frozen=True)
class ArrayLayout:
    """The array of one leaf.

    Args:
        name: Name in the group; empty if the array is the store itself.
        spec: Spec of one row.
        chunk_rows: Rows per chunk; of a ragged leaf, entries.
        shard_blocks: Blocks per shard of a ragged leaf, see `loadax.sources.tokens.ragged`, and `spec` is that of an
            entry; 0: the leaf is not ragged.
    """

    name: str
    spec: ArraySpec
    chunk_rows: int
    shard_blocks: int = 0

    def blocks(self, entries: int) -> int:
        """Number of blocks that a part of a ragged leaf with so many entries takes."""
        return -(-entries // self.chunk_rows)

    def in_blocks(self, rows: Sequence[Array]) -> Array:
        """The entries of rows of a ragged leaf, one after the other, as blocks, of which the last ends in zeros."""
        total = sum(map(len, rows))
        blocks = np.zeros(
            (self.blocks(total), self.chunk_rows, *self.spec.shape), self.spec.dtype
        )
        np.concatenate(
            rows,
            out=blocks.reshape(blocks.shape[0] * self.chunk_rows, *self.spec.shape)[
                :total
            ],
        )
        return blocks


@final
@dataclass(frozen=True)
class Layout:
    """The arrays of a store, with chunk and shard sizes.

    Args:
        rows: Number of rows of every array.
        shard_rows: Rows per part, which is one shard of every array.
        compression: `zstd`, `blosc`, or None.
        arrays: Arrays in leaf order.
    """

    rows: int
    shard_rows: int
    compression: str | None
    arrays: tuple[ArrayLayout, ...]

    @property
    def parts(self) -> int:
        """Number of parts."""
        return -(-self.rows // self.shard_rows)

    @property
    def row_bytes(self) -> int:
        """Raw bytes of one row of all arrays."""
        return sum(array.spec.nbytes for array in self.arrays)

    def part(self, index: int) -> tuple[int, int]:
        """Positions of a part, `[start, stop)`."""
        start = index * self.shard_rows
        return start, min(start + self.shard_rows, self.rows)

    def describe(self) -> dict[str, Any]:
        """The layout as JSON."""
        arrays = {
            array.name: {
                "shape": self._shape(array),
                "dtype": array.spec.dtype.name,
                "chunk_rows": array.chunk_rows,
                **(
                    {"shard_blocks": array.shard_blocks} if array.shard_blocks else {}
                ),
            }
            for array in self.arrays
        }
        return {
            "rows": self.rows,
            "shard_rows": self.shard_rows,
            "compression": self.compression,
            "arrays": arrays,
        }

    def metadata(self, array: ArrayLayout) -> dict[str, Any]:
        """zarr3 metadata of an array."""
        columns = [max(1, extent) for extent in array.spec.shape]
        ragged = array.shard_blocks > 0
        if ragged:
            shard = [1, array.shard_blocks, array.chunk_rows]
        else:
            shard = [self.shard_rows]
        sharding = {
            "chunk_shape": [*[1, 1] * ragged, array.chunk_rows, *columns],
            "codecs": [
                _BYTES,
                *_compressor(self.compression, array.spec.dtype.itemsize),
                _CHECKSUM,
            ],
            "index_codecs": [_BYTES, _CHECKSUM],
            "index_location": "end",
        }
        return {
            "shape": self._shape(array),
            "data_type": array.spec.dtype.name,
            "chunk_grid": {
                "name": "regular",
                "configuration": {"chunk_shape": [*shard, *columns]},
            },
            "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
        }

    def _shape(self, array: ArrayLayout) -> list[int]:
        if array.shard_blocks:
            rows = [self.parts, BLOCKS, array.chunk_rows]
        else:
            rows = [self.rows]
        return [*rows, *array.spec.shape]


class Sizes(NamedTuple):
    """The user's wishes about chunks and shards.

    Args:
        chunk_rows: Rows per chunk of every array, of ragged leaves entries; None: the smallest power of two with at
            least 4 KiB of raw data, which suits any shuffle, of ragged leaves about 16 KiB.
        shard_rows: Rows per shard of every array, a multiple of its chunk_rows; None: a 64th of the rows, at most about
            128 MiB of raw data for all arrays together.
        compression: `zstd`, `blosc` (with byte shuffle: better for floats), or None. Checksums are always written.
    """

    chunk_rows: int | None = None
    shard_rows: int | None = None
    compression: str | None = "zstd"


def plan_layout(spec: Tree, rows: int, sizes: Sizes) -> Layout:
    """Plans the layout of `rows` examples.

    Args:
        spec: Tree of `ArraySpec`s of an example.
        rows: Number of rows, at least 1.
        sizes: Sizes of chunks and shards.

    Raises:
        ArgumentError: When a value is invalid.
        LeafTypeError: When a leaf is not numeric.
    """
    specs, structure = flatten_spec(spec)
    names = array_names(structure)
    if rows < 1:
        raise ArgumentError(
            "the dataset has no rows to write; pass one with at least one row"
        )
    chunk_rows, shard_rows, compression = sizes
    choice("compression", compression, _COMPRESSORS)
    for path, leaf in zip(structure.paths, specs, strict=True):
        if leaf.dtype.name not in _DTYPES:
            if leaf.dtype.hasobject:
                shown = "not numeric"
            else:
                shown = str(leaf.dtype)
            raise LeafTypeError(
                f"leaf {path or 'of the example'} is {shown}, but write_zarr writes "
                "numbers; convert it to numbers in a map, or drop it there"
            )
    if chunk_rows is None:
        chunk = None
    else:
        chunk = integer("chunk_rows", chunk_rows, 1)
    if shard_rows is None:
        shard = None
    else:
        shard = integer("shard_rows", shard_rows, 1)
    if chunk and shard and shard % chunk:
        fitting = -(-shard // chunk) * chunk
        raise ArgumentError(
            f"shard_rows={shard} is not a multiple of chunk_rows={chunk}; pass "
            f"shard_rows={fitting}, or another chunk_rows"
        )
    # Limited by the data: a shard's index has an entry for every possible chunk, and a chunk is encoded whole.
    if chunk and chunk >= rows:
        chunk = rows
        shard = shard and rows
    elif shard:
        shard = min(
            shard, -(-rows // chunk) * chunk if chunk else _power_of_two(rows)
        )
    arrays = tuple(
        ArrayLayout(name, leaf, chunk or _default_chunk(leaf, rows, shard))
        for name, leaf in zip(names, specs, strict=True)
    )
    if shard is None:
        # a multiple of all: they are powers of two, or all equal
        unit = max(array.chunk_rows for array in arrays)
        wanted = _SHARD_BYTES // max(1, sum(array.spec.nbytes for array in arrays))
        few = max(1, -(-rows // (unit * FEW_PARTS)))
        shard = max(1, min(wanted // unit, few)) * unit
    return Layout(rows, shard, compression, arrays)


def divides(chunk_rows: Any, shard_rows: int) -> bool:
    """Whether shards of a store that was begun have whole chunks.

    They do not if it was begun with other chunks, or if all rows are one chunk, which is as large as the data then.
    """
    return (
        chunk_rows is None or shard_rows % integer("chunk_rows", chunk_rows, 1) == 0
    )


def plan_ragged_layout(
    spec: Tree, rows: int, lengths: Sequence[float | None], sizes: Sizes
) -> Layout:
    """Plans the layout of `rows` examples, some leaves of which are ragged.

    Args:
        spec: Tree of `ArraySpec`s of an example; the first dimension of a ragged leaf is its expected length.
        rows: Number of rows, at least 1.
        lengths: Expected length of each ragged leaf; None for others.
        sizes: Sizes of chunks and shards.
    """
    if sizes.chunk_rows is None:
        entries = None
    else:
        entries = integer("chunk_rows", sizes.chunk_rows, 1)
    plain = plan_layout(spec, rows, sizes._replace(chunk_rows=None))
    arrays = []
    for array, length in zip(plain.arrays, lengths, strict=True):
        if length is None:
            arrays.append(array)
            continue
        entry = ArraySpec(array.spec.shape[1:], array.spec.dtype)
        of_part = math.ceil(max(1.0, length * plain.shard_rows))
        block = entries or min(
            _power_of_two(_BLOCK_BYTES // max(1, entry.nbytes)),
            _power_of_two(of_part),
        )
        arrays.append(
            ArrayLayout(
                array.name or BARE, entry, block, _power_of_two(-(-of_part // block))
            )
        )
    spec_of_lengths = ArraySpec(
        (len(lengths) - lengths.count(None),), np.dtype(np.int64)
    )
    arrays.append(
        ArrayLayout(
            LENGTHS,
            spec_of_lengths,
            _default_chunk(spec_of_lengths, rows, plain.shard_rows),
        )
    )
    return Layout(rows, plain.shard_rows, plain.compression, tuple(arrays))


def _default_chunk(spec: ArraySpec, rows: int, shard: int | None) -> int:
    chunk = min(
        _power_of_two(-(-_CHUNK_BYTES // max(1, spec.nbytes))), _power_of_two(rows)
    )
    # A shard size that the user chose is divided into chunks of the nearest fitting size.
    if shard is None:
        return chunk
    return next(fitting for fitting in range(chunk, 0, -1) if shard % fitting == 0)


def _power_of_two(least: int) -> int:
    return 1 << max(0, least - 1).bit_length()


def _compressor(name: str | None, item_bytes: int) -> list[dict[str, Any]]:
    if name is None:
        return []
    if name == "zstd":
        return [{"name": "zstd", "configuration": {"level": 1, "checksum": False}}]
    if item_bytes == 1:
        shuffle = "noshuffle"
    else:
        shuffle = "shuffle"
    settings = {
        "cname": "zstd",
        "clevel": 1,
        "shuffle": shuffle,
        "typesize": item_bytes,
        "blocksize": 0,
    }
    return [{"name": "blosc", "configuration": settings}]


def array_names(structure: Structure) -> list[str]:
    """Returns the name of every leaf's array, in leaf order; "" if the example is a bare array.

    Raises:
        ArgumentError: When there is no leaf, two leaves get the same name, or a name is invalid; names the leaves.
    """
    if not structure.paths:
        raise ArgumentError(
            "the examples have no leaves to write; give them at least one array"
        )
    names = structure.names
    first: dict[str, str] = {}
    for name, path in zip(names, structure.paths, strict=True):
        if name in first:
            raise ArgumentError(
                f"leaves {first[name]} and {path} would both be the array {name!r}; "
                "rename one of them in a map"
            )
        first[name] = path
        if path and not (_NAME.fullmatch(name) and name.isprintable()):
            raise ArgumentError(
                f"leaf {path} would be the array {name!r}: names of arrays have a "
                "character other than dots and no slashes or unprintable ones, are "
                "not zarr.json, and don't begin with '__' or 'loadax.'; rename it in "
                "a map"
            )
    return names


def array_label(location: str, name: str) -> str:
    """Name of a store's array in messages."""
    if name:
        return f"{location}: array {name!r}"
    return location
