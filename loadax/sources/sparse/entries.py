"""Flat arrays of a sparse matrix, in memory or in open stores, from which ranges of entries are gathered."""

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, final

import numpy as np

from loadax.core.array_parts import take_parts
from loadax.protocols import Array, ArraySpec, Integers, Location
from loadax.sources.library import is_stored
from loadax.sources.memory_array import MemoryArray

if TYPE_CHECKING:
    from loadax.files.byte_ranges import KnownFiles


@final
class StoredEntries:
    """A flat array in an open store of h5py, zarr or TensorStore.

    Args:
        array: The open array.
        name: Name for messages.
    """

    far = True
    memory = None
    known_files: "KnownFiles" = MappingProxyType({})

    def __init__(self, array: Any, name: str):
        from loadax.sources.libraries.rows_of_store import open_rows

        self._stored = open_rows(array, name)
        self._length = int(self._stored.shape[0])
        self.spec = ArraySpec((), self._stored.dtype)
        self.reads = self._stored.reads
        self.chunk_entries = self._stored.chunk_rows
        file = getattr(getattr(array, "file", None), "filename", None)
        root = getattr(getattr(array, "store", None), "root", None)
        self.addresses = [str(place) for place in (file, root) if place is not None]

    def __len__(self) -> int:
        return self._length

    def gather(self, first: Integers, lengths: Integers) -> Array:
        """Reads `lengths` entries, at least 1, from each of `first` on, concatenated: each chunk once."""
        begins, ends, places = joined(first, lengths, self.chunk_entries)
        parts = [
            self._stored.rows(np.arange(begin, end))
            for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)
        ]
        # A run of rows is read as it is asked for.
        if (
            len(parts) == 1
            and len(parts[0]) == lengths.sum()
            and (np.diff(first) >= 0).all()
        ):
            return parts[0]
        return take_parts(np.concatenate(parts), places, lengths)

    def locate(self, start: int, stop: int) -> list[Location]:  # noqa: ARG002
        return [Location(address) for address in self.addresses]


# A flat array whose entries are gathered; see `loadax.sources.memory_array.ArrayLeaf`.
Entries = MemoryArray | StoredEntries


def open_entries(array: Any, name: str) -> Entries:
    """The entries of a flat array of NumPy, or of an open store."""
    if is_stored(array):
        return StoredEntries(array, name)
    return MemoryArray(np.asanyarray(array))


def joined(
    first: Integers, lengths: Integers, gap: int
) -> tuple[Integers, Integers, Integers]:
    """Joins ranges of entries that overlap, or that at most `gap` entries lie between.

    Args:
        first: First entry of each range, in any order.
        lengths: Length of each, at least 1.
        gap: Most entries between two ranges that are read as one.

    Returns:
        Begins and ends of the joined ranges, ascending, and the place of each given range in their concatenation.
    """
    order = np.argsort(first, kind="stable")
    ascending = first[order]
    reached = np.maximum.accumulate(ascending + lengths[order])
    begins_range = np.ones(len(first), np.bool_)
    begins_range[1:] = ascending[1:] > reached[:-1] + gap
    number = np.cumsum(begins_range) - 1
    begins = ascending[begins_range]
    ends = reached[np.append(np.flatnonzero(begins_range)[1:], len(first)) - 1]
    before = np.cumsum(ends - begins) - (ends - begins)
    places = np.empty_like(first)
    places[order] = before[number] + ascending - begins[number]
    return begins, ends, places
