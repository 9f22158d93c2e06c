"""Where rows lie in files: which file an array was mapped from, and places that follow each other as one."""

import mmap
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadax.protocols import Location


class MappedFile(NamedTuple):
    """A file, and the byte of it that is the first of an array's first entry."""

    name: str
    begin: int


def mapped_file(array: NDArray[Any]) -> MappedFile | None:
    """The file that an array was mapped from; None when it lies in memory alone."""
    if not isinstance(array, np.memmap) or array.filename is None:
        return None
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    if not isinstance(base, mmap.mmap):
        return None  # a result of arithmetic is a memmap too, by name
    # By address: of a slice `offset` is still that of the array it was cut from. Maps begin at a whole page.
    begin = int(array.offset) - int(array.offset) % mmap.ALLOCATIONGRANULARITY
    return MappedFile(str(array.filename), begin + array.ctypes.data - np.frombuffer(base, np.uint8).ctypes.data)


def joined(locations: Iterable[Location]) -> list[Location]:
    """The same, with bytes that follow each other in a file as one entry, and nothing twice.

    Example:
        >>> joined([Location("a", 0, 3), Location("b", 0, 3), Location("a", 4, 7)])
        [Location(file='a', first=0, last=7, part=''), Location(file='b', first=0, last=3, part='')]
    """
    found: list[Location] = []
    newest: dict[tuple[str, str], int] = {}  # by file and part, where in `found`
    for each in locations:
        place = newest.setdefault((each.file, each.part), len(found))
        if place == len(found):
            found.append(each)
            continue
        before = found[place]
        if before.last is not None and each.first == before.last + 1:
            found[place] = before._replace(last=each.last)
        elif each != before:
            newest[each.file, each.part] = len(found)
            found.append(each)
    return found
