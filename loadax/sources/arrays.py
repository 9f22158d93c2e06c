"""ArraySource: rows of arrays in memory or of memory-mapped arrays."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from loadax.core.formatting import type_text
from loadax.core.spec import unmasked
from loadax.core.tree import flatten
from loadax.errors import SourceError
from loadax.protocols import ArraySpec, Columns, Integers, Location, Tree, Visits
from loadax.sources.adapters.columns import column_array, is_column
from loadax.sources.adapters.libraries import comes_from
from loadax.sources.base import BaseSource, Traits
from loadax.sources.checks import check_rows, common_length
from loadax.sources.io.locations import MappedExtent, cut_short, mapped_extent, mapped_file, mapped_name

_LARGE_ROW = 1 << 10  # bytes: rows that are copied faster one by one, into their destination, than as runs twice


@final
class ArraySource(BaseSource):
    """A tree of arrays (`numpy.ndarray` or `numpy.memmap`) with equal first dimensions: row i is entry i of each.

    Raises:
        SourceError: When there is no leaf, a leaf is not an array with rows, or the leaves' lengths differ.
    """

    traits = Traits(owns_memory=True, reads_columns=True)
    spec: Tree = None

    def __init__(self, tree: Tree):
        leaves, self._structure = flatten(tree)
        given = [_as_array(leaf, path) for leaf, path in zip(leaves, self._structure.paths, strict=True)]
        self._files = [mapped_file(array) for array in given]
        # Plain views: every operation on a memmap pays the cost of the subclass.
        self._arrays = [array.view(np.ndarray) for array in given]
        self._extents: list[MappedExtent | None] | None = None
        self._length = common_length(self._structure.paths, [len(array) for array in self._arrays])
        self.spec = self._structure.build(
            ArraySpec(array.shape[1:], array.dtype.newbyteorder("=")) for array in self._arrays
        )

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        kinds = {"in memory" if file is None else "memory-mapped" for file in self._files}
        return f"arrays {' and '.join(sorted(kinds))}"

    @property
    def addresses(self) -> list[str]:
        return [str(Path(file.name).absolute()) for file in self._files if file is not None]

    def held(self, most: int) -> list[NDArray[Any]]:
        memory = [array for array, file in zip(self._arrays, self._files, strict=True) if file is None]
        total = sum(array.nbytes for array in memory)
        return [some_rows(array, total, most) for array in memory]

    def locate(self, row: int) -> list[Location]:
        """Files of a row's mapped leaves, with the byte range where the row is contiguous."""
        index = int(check_rows([row], self._length)[0])
        locations = []
        for path, file, array in zip(self._structure.paths, self._files, self._arrays, strict=True):
            if file is not None and array[index].flags.c_contiguous:
                first = file.begin + index * array.strides[0]
                locations.append(Location(file.name, first, first + array[index].nbytes - 1, path))
            elif file is not None:
                locations.append(Location(file.name, part=path))
        return locations

    def read(self, rows: Integers) -> Tree:
        """Copies the entries at `rows`, in native byte order."""
        rows = check_rows(rows, self._length)
        self._check_files()
        return self._structure.build(_gather(array, rows) for array in self._arrays)

    def read_into(self, rows: Integers, boxes: Sequence[Columns | None], out: Sequence[NDArray[Any] | None]) -> None:
        rows = check_rows(rows, self._length)
        self._check_files()
        for array, columns, destination in zip(self._arrays, boxes, out, strict=True):
            if columns is None or destination is None:
                continue
            if columns == tuple((0, extent) for extent in array.shape[1:]) and _takes(array, destination):
                # Any mode but "raise" writes to `out` without a copy, "wrap" fastest; the rows were checked above.
                np.take(array, rows, axis=0, out=destination, mode="wrap")
            else:
                index: Any = (rows, *(slice(*column) for column in columns))
                destination[...] = array[index]

    def read_runs(self, first: Visits, count: int) -> Tree:
        starts = check_rows(first.rows, self._length - count + 1)
        self._check_files()
        return self._structure.build(
            _runs(array, count)[starts].astype(array.dtype.newbyteorder("="), copy=False) for array in self._arrays
        )

    def read_runs_into(
        self, first: Integers, count: int, boxes: Sequence[Columns | None], out: Sequence[NDArray[Any] | None]
    ) -> None:
        starts, large = check_rows(first, self._length - count + 1), list(out)
        self._check_files()
        for leaf, (array, columns, destination) in enumerate(zip(self._arrays, boxes, out, strict=True)):
            if array[:1].nbytes < _LARGE_ROW and columns is not None and destination is not None:
                index: Any = (starts, slice(None), *(slice(*column) for column in columns))
                destination[...] = _runs(array, count)[index]
                large[leaf] = None
        if any(destination is not None for destination in large):
            super().read_runs_into(first, count, boxes, large)

    def _check_files(self) -> None:
        if self._extents is None:
            self._extents = [mapped_extent(array) for array in self._arrays]
        for extent, array in zip(self._extents, self._arrays, strict=True):
            if extent is not None and not extent.whole:
                raise cut_short(mapped_name(array))

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_extents": None}  # another process maps the files again


def is_array(leaf: Any) -> bool:
    """Whether a leaf is an array in memory: of NumPy (also memory-mapped), JAX, torch or TensorFlow.

    `__array__` alone does not prove that: lazily opened stores have it and would be read whole, and data frames have it
    and would become one array of one dtype.
    """
    known = (("jax", "Array"), ("torch", "Tensor"), ("tensorflow", "Tensor"))
    return isinstance(leaf, np.ndarray | np.generic) or any(comes_from(leaf, *kind) for kind in known)


def _as_array(leaf: Any, path: str) -> NDArray[Any]:
    name = f"leaf {path or 'given'}"
    if is_column(leaf):
        return column_array(leaf, name)
    if not is_array(leaf):
        if hasattr(leaf, "__array__"):
            raise SourceError(
                f"{name} is {type_text(leaf)}, which would be read into memory whole; if it fits in memory, "
                "pass numpy.asarray of it; if its entries are rows, loadax.from_source reads them one by one"
            )
        raise SourceError(f"{name} is {_brief(leaf)}, not an array; pass NumPy arrays whose dim 0 counts rows")
    array = _converted(leaf, name)
    if array.ndim == 0:
        raise SourceError(f"{name} is a scalar, {_brief(leaf)}, without rows; give it a first dimension")
    array = unmasked(array, name)
    return array.astype(object) if array.dtype.kind == "T" else array  # NumPy's StringDType, which has no byte order


def _converted(leaf: Any, name: str) -> NDArray[Any]:
    try:
        return np.asanyarray(leaf)
    except (TypeError, RuntimeError) as error:  # on another device, of a dtype that NumPy lacks, or with a gradient
        raise SourceError(
            f"{name} is {type_text(leaf)} that NumPy can't convert ({error}); convert it first, "
            "a torch tensor by tensor.detach().cpu().float().numpy()"
        ) from error


def some_rows(array: NDArray[Any], total: int, most: int) -> NDArray[Any]:
    """Samples evenly spaced rows of an array, so that arrays of `total` bytes in all shrink to `most` bytes."""
    if total <= most:
        return array
    return array[np.linspace(0, len(array) - 1, max(2, int(len(array) * (most / total)))).astype(np.int64)]


def _brief(value: Any) -> str:
    text = f"{type(value).__name__} {value!r}"
    return text if len(text) <= 60 else text[:57] + "..."


def _takes(array: NDArray[Any], destination: NDArray[Any]) -> bool:
    """Whether `np.take` copies only rows: it would first copy a whole array that is not contiguous."""
    return (
        array.flags.c_contiguous
        and array.flags.aligned
        and array.dtype == destination.dtype
        and destination.flags.c_contiguous
    )


def _runs(array: NDArray[Any], count: int) -> NDArray[Any]:
    """Views the `count` entries from each entry on as overlapping rows."""
    shape = (len(array) - count + 1, count, *array.shape[1:])
    return np.lib.stride_tricks.as_strided(array, shape, (array.strides[0], *array.strides), writeable=False)


def _gather(array: NDArray[Any], rows: Integers) -> NDArray[Any]:
    native = array.dtype.newbyteorder("=")
    out = np.empty((len(rows), *array.shape[1:]), native)
    if _takes(array, out) and not array.dtype.hasobject:
        np.take(array, rows, axis=0, out=out, mode="wrap")
    else:
        out[...] = array[rows]
    return out
