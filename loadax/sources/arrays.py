"""ArraySource: rows of arrays in memory, memory-mapped, or in files."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, final

import numpy as np

from loadax.core.arguments import shown
from loadax.core.spec import unmasked
from loadax.core.tree import flatten
from loadax.errors import SourceError
from loadax.protocols import (
    Array,
    Boxes,
    Integers,
    Location,
    Outputs,
    Tree,
    Visits,
)
from loadax.sources.base import BaseSource, Traits
from loadax.sources.checks import check_rows, common_length, with_leaves
from loadax.sources.memory_array import ArrayLeaf, MemoryArray

if TYPE_CHECKING:
    from loadax.files.byte_ranges import KnownFiles
    from loadax.files.remote_ranges import Wanted


@final
class ArraySource(BaseSource):
    """A tree of arrays with equal first dimensions: row i is entry i of each.

    Args:
        tree: Pytree of arrays: `numpy.ndarray`, `numpy.memmap`, or `StreamArray` in files.

    Raises:
        SourceError: When there is no leaf, a leaf is not an array with rows, or the leaves' lengths differ.
        LeafError: When a leaf is a pytree to JAX alone.
    """

    spec: Tree = None

    def __init__(self, tree: Tree):
        leaves, self._structure = flatten(tree)
        paths = self._structure.paths
        self._arrays = [
            _leaf(leaf, path) for leaf, path in zip(leaves, paths, strict=True)
        ]
        self._length = common_length(paths, [len(array) for array in self._arrays])
        self.spec = self._structure.build(array.spec for array in self._arrays)
        far = any(array.far for array in self._arrays)
        self.traits = Traits(
            owns_memory=True, reads_columns=True, concurrent_reads=4 if far else 1
        )

    def __repr__(self) -> str:
        return f"arrays {' and '.join(sorted(set(map(repr, self._arrays))))}"

    def keep_leaves(self, leaves: Tree) -> BaseSource:
        return with_leaves(self, leaves)

    @property
    def known_files(self) -> "KnownFiles":
        return joined_files(self._arrays)

    @property
    def addresses(self) -> list[str]:
        return [address for array in self._arrays for address in array.addresses]

    def held(self, most: int) -> list[Array]:
        return rows_in_memory(self._arrays, most)

    @property
    def memory(self) -> Sequence[Array] | None:
        arrays: list[Any] = [array.memory for array in self._arrays]
        if any(array is None for array in arrays):
            return None
        return arrays

    def locate(self, row: int) -> list[Location]:
        """Files of a row's leaves, with the byte range where the row is contiguous."""
        index = int(check_rows([row], self._length)[0])
        return [
            location._replace(part=path)
            for path, array in zip(self._structure.paths, self._arrays, strict=True)
            for location in array.locate(index, index + 1)
        ]

    def wanted(self, visits: Visits) -> "list[Wanted]":
        rows = check_rows(visits.rows, self._length)
        return [wanted for array in self._arrays for wanted in array.wanted(rows, 1)]

    def read(self, rows: Integers) -> Tree:
        rows = check_rows(rows, self._length)
        out: list[Any] = [
            np.empty((len(rows), *array.spec.shape), array.spec.dtype)
            for array in self._arrays
        ]
        for array, destination in zip(self._arrays, out, strict=True):
            array.read_into(rows, array.whole, destination)
        return self._structure.build(out)

    def read_into(self, rows: Integers, boxes: Boxes, out: Outputs) -> None:
        rows = check_rows(rows, self._length)
        for array, columns, destination in zip(self._arrays, boxes, out, strict=True):
            if columns is not None and destination is not None:
                array.read_into(rows, columns, destination)

    def read_spans_into(
        self, first: Integers, count: int, every: int, boxes: Boxes, out: Outputs
    ) -> None:
        if every > 1:
            super().read_spans_into(first, count, every, boxes, out)
            return
        starts = check_rows(first, self._length - count + 1)
        for array, columns, destination in zip(self._arrays, boxes, out, strict=True):
            if columns is not None and destination is not None:
                array.spans_into(starts, count, columns, destination)


def _leaf(leaf: Any, path: str) -> ArrayLeaf:
    """A leaf of a tree, unless it reads its entries itself already, as those in files do."""
    if hasattr(leaf, "spans_into"):
        return leaf
    return MemoryArray(_as_array(leaf, f"leaf {path or 'given'}"))


def _as_array(leaf: Any, name: str) -> Array:
    array = leaf
    if not isinstance(leaf, np.ndarray):
        from loadax.sources.library_arrays import library_array

        array = library_array(leaf, name)
    if array.ndim == 0:
        raise SourceError(
            f"{name} is a scalar, {type(leaf).__name__} {shown(leaf)}, without rows; "
            "give it a first dimension"
        )
    array = unmasked(array, name)
    # NumPy's StringDType, which has no byte order
    if array.dtype.kind == "T":
        return array.astype(object)
    return array


def joined_files(arrays: Sequence[ArrayLeaf]) -> "KnownFiles":
    """What arrays know of their remote files."""
    return {url: info for array in arrays for url, info in array.known_files.items()}


def rows_in_memory(arrays: Sequence[ArrayLeaf], most: int) -> list[Array]:
    """Arrays that are in memory, or evenly spaced rows of them, of at most `most` bytes in all."""
    memory = [array.memory[:] for array in arrays if array.memory is not None]
    total = sum(array.nbytes for array in memory)
    return [some_rows(array, total, most) for array in memory]


def some_rows(array: Array, total: int, most: int) -> Array:
    """Samples evenly spaced rows of an array, so that arrays of `total` bytes in all shrink to `most` bytes."""
    if total <= most:
        return array
    return array[
        np.linspace(
            0, len(array) - 1, max(2, int(len(array) * (most / total)))
        ).astype(np.int64)
    ]
