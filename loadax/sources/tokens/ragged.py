"""Stores of ragged rows, which `cache` and `write_zarr` write: flat arrays in blocks, and the lengths of the rows.

Rows are cut into parts of `shard_rows` rows. A ragged leaf is a zarr array of shape `[parts, BLOCKS, n, ...]`, where
n entries are a block, the unit of decoding: the entries of all rows of part p, one row after the other, fill its blocks
`[p, 0]`, `[p, 1]`, and so on; the last one ends in zeros, and no others are stored. So the place of a part does not
depend on the lengths in others, and parts are written independently. `loadax.lengths`, int64[rows, ragged leaves], has
the length of each ragged leaf of each row. Other leaves are arrays of rows.
"""

from collections.abc import Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, final

import numpy as np
import tensorstore as ts

from loadax.core.arguments import entries
from loadax.core.array_parts import indices, take_parts
from loadax.core.spec import all_columns
from loadax.core.tree import Structure, flatten
from loadax.errors import SourceError
from loadax.files.kvstore import new_context
from loadax.files.paths import local_path
from loadax.protocols import Array, ArraySpec, Integers, Location, Tree, Visits
from loadax.sources.base import BaseSource, Traits
from loadax.sources.tokens.token_documents import DocumentSource
from loadax.sources.zarr.array import (
    CACHE_BYTES,
    Missing,
    StoredArray,
    addresses_in,
    json_of,
)
from loadax.sources.zarr.discovery import RaggedArrays, find_arrays
from loadax.sources.zarr.names import BARE, BLOCKS, LENGTHS, STRIDE
from loadax.sources.zarr.source import TensorStoreSource, open_arrays, open_stores

if TYPE_CHECKING:
    from loadax.files.byte_ranges import KnownFiles
    from loadax.files.metadata import Metadata


@final
class BlockArray:
    """The flat array of a ragged leaf. Entry e of part p has the number `p * STRIDE + e`.

    Args:
        store: Open array of the blocks.
        name: Leaf and address, for messages.
        length: Number of the entries of all rows.
    """

    far = True  # reads wait for TensorStore's threads
    memory = None
    known_files: "KnownFiles" = MappingProxyType({})

    def __init__(self, store: ts.TensorStore, name: str, length: int):
        _, _, self._size, *inner = store.shape
        self._length = length
        self._stored = StoredArray(store, name)
        shard = store.chunk_layout.write_chunk.shape or ()
        self._file_entries = (shard[1] or 1) * self._size
        self.spec = ArraySpec(tuple(inner), self._stored.dtype)
        self.addresses = addresses_in(json_of(store))

    def __len__(self) -> int:
        return self._length

    def gather(self, first: Integers, lengths: Integers) -> Array:
        """Reads `lengths` entries, at least 1, from each of `first` on, concatenated: each block once."""
        parts, offsets = np.divmod(first, STRIDE)
        begins = parts * BLOCKS + offsets // self._size
        counts = (offsets + lengths - 1) // self._size - offsets // self._size + 1
        blocks = np.unique(indices(begins, counts))
        out = np.empty((len(blocks), self._size, *self.spec.shape), self.spec.dtype)
        self._stored.start(
            np.divmod(blocks, BLOCKS), all_columns(out.shape[1:]), out
        )()
        places = np.searchsorted(blocks, begins) * self._size + offsets % self._size
        return take_parts(
            out.reshape(len(blocks) * self._size, *self.spec.shape), places, lengths
        )

    def locate(self, start: int, stop: int) -> list[Location]:
        """Files of entries of one part."""
        address = self.addresses[0]
        folder = str(local_path(address) or address).rstrip("/")
        zeros = "/0" * (1 + len(self.spec.shape))
        part, offset = divmod(start, STRIDE)
        files = range(
            offset // self._file_entries,
            -(-(offset + stop - start) // self._file_entries),
        )
        return [Location(f"{folder}/c/{part}/{file}{zeros}") for file in files]


@final
class RaggedSource(BaseSource):
    """Rows whose leaves have different lengths, or of which only some are ragged.

    Args:
        leaves: A source of each leaf, in leaf order, whose examples are bare arrays.
        structure: Structure of an example.
    """

    def __init__(self, leaves: Sequence[BaseSource], structure: Structure):
        self._leaves = leaves
        self.structure = structure
        self.traits = Traits(
            reads_examples=True, owns_memory=True, concurrent_reads=4
        )

    def __len__(self) -> int:
        return len(self._leaves[0])

    def keep_leaves(self, leaves: Tree) -> "RaggedSource":
        indices, structure = flatten(leaves)
        return RaggedSource([self._leaves[index] for index in indices], structure)

    def __repr__(self) -> str:
        return "ragged rows of zarr3 arrays"

    @property
    def addresses(self) -> list[str]:
        return [address for leaf in self._leaves for address in leaf.addresses]

    def locate(self, row: int) -> list[Location]:
        return [location for leaf in self._leaves for location in leaf.locate(row)]

    def read(self, rows: Integers) -> Tree:
        return self.structure.build(leaf.read(rows) for leaf in self._leaves)

    def read_examples(self, visits: Visits) -> list[Tree]:
        return self.structure.build_all(
            [leaf.read_examples(visits) for leaf in self._leaves], len(visits.rows)
        )


def open_zarr(
    path: Any,
    variables: Sequence[str] | str | None,
    missing: Missing = "error",
    metadata: "Metadata | None" = None,
) -> BaseSource:
    """Opens a zarr array, or the arrays of a zarr group, of version 2 or 3, or a store of ragged rows.

    Args:
        path: Path or URL of the array or group.
        variables: Names of the group's arrays to read; None: the array itself, or all arrays of the group.
        missing: "error", or "fill" to read missing chunks as the array's fill value.
        metadata: What is known of a remote store; None: nothing.

    Raises:
        SourceError: When there is no zarr array or group, or a variable is missing; lists the existing ones.
    """
    found = find_arrays(path, variables, metadata)
    if not isinstance(found, RaggedArrays):
        return open_arrays(path, found, missing)
    names = [name for name in found.specs if name != LENGTHS]
    asked = names if variables is None else variables
    chosen = (
        [asked]
        if isinstance(asked, str)
        else entries("variables", asked, "names of arrays")
    )
    wrong = [name for name in chosen if name not in names]
    if wrong or not chosen:
        if wrong:
            absent = f"has no zarr array {wrong[0]!r}"
        else:
            absent = f"is asked for no array by variables={asked!r}"
        raise SourceError(
            f"{found.location} {absent}; its arrays are {names}", argument="variables"
        )
    return open_ragged(
        found,
        flatten(BARE if names == [BARE] else dict.fromkeys(chosen, BARE))[1],
        missing,
    )


def open_ragged(
    found: RaggedArrays, structure: Structure, missing: Missing = "error"
) -> BaseSource:
    """Opens a store of ragged rows: documents in flat arrays, if all leaves of a row are equally long.

    Args:
        found: Its arrays.
        structure: Structure of an example, whose leaves are named as the arrays.
        missing: As in `open_zarr`.

    Raises:
        SourceError: When an array can't be opened, or the lengths don't fit.
    """
    names = [name or BARE for name in structure.names]
    ragged = found.manifest["ragged"]
    flat = [name for name in names if name in ragged]
    source = TensorStoreSource(found.specs[LENGTHS], missing)
    columns = source.read(np.arange(len(source)))[
        :, [ragged.index(name) for name in flat]
    ]
    labels = [f"leaf {name!r} at {found.location}" for name in flat]
    stores = open_stores(
        [found.specs[name] for name in flat],
        labels,
        new_context(CACHE_BYTES),
        missing,
    )
    blocks = dict(
        zip(
            flat,
            map(BlockArray, stores, labels, columns.sum(axis=0).tolist()),
            strict=True,
        )
    )
    if len(flat) == len(names) and (columns == columns[:, :1]).all():
        return DocumentSource(
            structure.build(blocks[name] for name in names),
            *_bounds(columns[:, 0], found),
        )
    leaves: dict[str, BaseSource] = {
        name: DocumentSource(array, *_bounds(columns[:, column], found))
        for column, (name, array) in enumerate(blocks.items())
    }
    leaves |= {
        name: TensorStoreSource(found.specs[name], missing)
        for name in names
        if name not in blocks
    }
    return RaggedSource([leaves[name] for name in names], structure)


def _bounds(lengths: Integers, found: RaggedArrays) -> tuple[Integers, Integers]:
    """Numbers of the first entry and of the end of each row, int64[n] each.

    Raises:
        SourceError: When a length is negative, or those of a part are too large together.
    """
    shard_rows = found.manifest["shard_rows"]
    ends = np.cumsum(lengths)
    before = np.repeat((ends - lengths)[::shard_rows], shard_rows)[: len(lengths)]
    if (lengths < 0).any() or (ends - before >= STRIDE).any():
        raise SourceError(
            f"{found.location}: {LENGTHS} has lengths that no part can have; write "
            "the store again"
        )
    begins = ends - lengths - before + np.arange(len(lengths)) // shard_rows * STRIDE
    return begins, begins + lengths
