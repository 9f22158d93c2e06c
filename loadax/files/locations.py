"""Finds the file and byte range of memory-mapped arrays, and joins adjacent ranges."""

import mmap
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from loadax.files.byte_ranges import SHORTER, changed
from loadax.files.file_map import FileMap
from loadax.protocols import Array, Location


def mapped_file(array: Array) -> Location | None:
    """The file that an array was mapped from, and the byte at which it begins; None for an array in memory."""
    mapped, memory = map_of(array)
    # The result of arithmetic is a memmap without a map.
    named = isinstance(memory, FileMap) or (
        isinstance(array, np.memmap) and array.filename is not None
    )
    if memory is None or not named:
        return None
    return Location(
        mapped_name(array), array.ctypes.data - _first_byte(mapped, memory)
    )


class MappedExtent(NamedTuple):
    """A memory map, the number of bytes its file must have, and the name of that, for messages."""

    memory: mmap.mmap | FileMap
    size: int
    name: str

    def check(self) -> None:
        """Checks that the file is still long enough: reading past its end would kill the process with SIGBUS.

        Raises:
            SourceError: When it is not; names it.
        """
        if self.memory.size() < self.size:
            raise changed(self.name, SHORTER)


def map_of(
    array: Array,
) -> tuple[np.memmap[Any, Any] | None, mmap.mmap | FileMap | None]:
    """The `np.memmap` that an array is a view of, if any, and its map; None for an array in memory."""
    mapped: np.memmap[Any, Any] | None = None
    base: Any = array
    while isinstance(base, np.ndarray):
        if isinstance(base, np.memmap):
            mapped = base
        base = base.base
    known = isinstance(base, FileMap) or (
        isinstance(base, mmap.mmap) and mapped is not None
    )
    if known:
        return (mapped, base)
    return (None, None)


def mapped_extent(array: Array) -> MappedExtent | None:
    """Returns the part of a file that an array needs; None for an array in memory."""
    mapped, memory = map_of(array)
    if memory is None or not array.size:
        return None
    size = np.lib.array_utils.byte_bounds(array)[1] - _first_byte(mapped, memory)
    return MappedExtent(memory, size, mapped_name(array))


def _first_byte(
    mapped: np.memmap[Any, Any] | None, memory: mmap.mmap | FileMap
) -> int:
    """Address at which the first byte of a mapped file is, or would be if all of it were mapped."""
    if isinstance(memory, FileMap):
        return int(memory.bytes.ctypes.data)
    assert mapped is not None
    # By address: the `offset` of a slice is that of the array it was cut from. Maps begin at a page boundary.
    begin = int(mapped.offset) - int(mapped.offset) % mmap.ALLOCATIONGRANULARITY
    return int(np.frombuffer(memory, np.uint8).ctypes.data) - begin


def mapped_name(array: Array) -> str:
    """Name of the file that an array or its base was mapped from, for messages."""
    mapped, memory = map_of(array)
    if mapped is not None and mapped.filename is not None:
        return str(mapped.filename)
    if isinstance(memory, FileMap):
        return str(memory.path)
    return "a memory-mapped file"


def joined(locations: Iterable[Location]) -> list[Location]:
    """Joins adjacent byte ranges of a file, and drops duplicates.

    Examples:
        >>> from loadax.protocols import Location
        >>> from loadax.files.locations import joined
        >>> joined([Location("a", 0, 3), Location("b", 0, 3), Location("a", 4, 7)])
        [Location(file='a', first=0, last=7, part=''), Location(file='b', first=0, last=3, part='')]
    """
    merged: list[Location] = []
    newest: dict[tuple[str, str], int] = {}  # index in `merged`, by file and part
    for location in locations:
        index = newest.setdefault((location.file, location.part), len(merged))
        if index == len(merged):
            merged.append(location)
            continue
        before = merged[index]
        if before.last is not None and location.first == before.last + 1:
            merged[index] = before._replace(last=location.last)
        elif location != before:
            newest[location.file, location.part] = len(merged)
            merged.append(location)
    return merged
