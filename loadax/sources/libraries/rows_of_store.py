"""StoreSource: reads rows of open arrays of h5py, xarray, zarr and TensorStore, next to arrays in memory."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np

from loadax.core.spec import flatten_spec
from loadax.core.tree import flatten
from loadax.errors import SourceError
from loadax.protocols import Array, ArraySpec, Integers, Tree
from loadax.sources.arrays import ArraySource
from loadax.sources.base import BaseSource, Traits
from loadax.sources.checks import check_rows, common_length
from loadax.sources.library import STORES, comes_from, is_stored


@final
class StoreSource(BaseSource):
    """A tree of arrays with equal first dimensions, at least one of them in an open store: row i is entry i of each.

    Raises:
        SourceError: When a leaf has no rows or can't be read, or the leaves' lengths differ; names the leaf.
    """

    spec: Tree = None

    def __init__(self, tree: Tree):
        leaves, self._structure = flatten(tree, is_leaf=is_stored)
        self._arrays = [
            open_rows(leaf, path)
            for leaf, path in zip(leaves, self._structure.paths, strict=True)
        ]
        self._length = common_length(
            self._structure.paths, [array.shape[0] for array in self._arrays]
        )
        self.spec = self._structure.build(
            ArraySpec(tuple(array.shape[1:]), array.dtype) for array in self._arrays
        )
        self.traits = Traits(
            owns_memory=True,
            concurrent_reads=max(array.reads for array in self._arrays),
        )

    def __repr__(self) -> str:
        return " and ".join(sorted({array.text for array in self._arrays}))

    @property
    def chunks(self) -> range | None:
        """First rows of the chunks of the largest leaf; None if rows are decoded one by one."""
        largest = max(
            self._arrays,
            key=lambda array: ArraySpec(array.shape[1:], array.dtype).nbytes,
        )
        if largest.chunk_rows > 1:
            return range(0, self._length, largest.chunk_rows)
        return None

    def read(self, rows: Integers) -> Tree:
        rows = check_rows(rows, self._length)
        return self._structure.build(
            np.asarray(array.rows(rows), array.dtype) for array in self._arrays
        )


def _opener(data: Any) -> "Callable[[Any], Stored] | None":
    openers: dict[str, Callable[[Any], Stored]] = {
        "tensorstore": _of_tensorstore,
        "zarr": _of_zarr,
        "h5py": _of_hdf5,
        "xarray": _of_xarray,
    }
    return next(
        (
            openers[module]
            for module, name in STORES.items()
            if comes_from(data, module, name)
        ),
        None,
    )


def open_rows(leaf: Any, path: str) -> "Stored":
    """Opens an array by rows: of an open store, or in memory.

    Raises:
        SourceError: When it has no rows or can't be read; names the leaf.
    """
    opener = _opener(leaf)
    if opener is None:
        return _OfSource(ArraySource({path: leaf}))
    if not getattr(leaf, "shape", None):
        raise SourceError(
            f"leaf {path or 'given'} is a scalar of "
            f"{type(leaf).__module__.partition('.')[0]} without rows; leave it out"
        )
    return opener(leaf)


@final
class _OfSource:
    def __init__(self, source: BaseSource):
        self._source = source
        self.text = repr(source)
        self.reads = source.traits.concurrent_reads
        (spec,), _ = flatten_spec(source.spec)
        self.shape = (len(source), *spec.shape)
        self.dtype = spec.dtype
        if isinstance(source.chunks, range):
            self.chunk_rows = source.chunks.step
        else:
            self.chunk_rows = 1

    def rows(self, rows: Integers) -> Array:
        (leaf,), _ = flatten(self._source.read(rows))
        return leaf


@final
class _OfLibrary:
    """Rows of an open array, which pickles as `reopen`: a function and its arguments; None: it has no file."""

    def __init__(
        self,
        array: Any,
        text: str,
        reads: int,
        chunk_rows: int,
        reopen: tuple[Any, ...] | None,
    ):
        self._array = array
        self.text = text
        self.reads = reads
        self.chunk_rows = chunk_rows
        self._reopen = reopen
        self.shape = tuple(array.shape)
        self.dtype = np.dtype(array.dtype).newbyteorder("=")

    def rows(self, rows: Integers) -> Array:
        span = _span(rows)
        if span is not None or self.reads > 1:
            read = np.asarray(self._array[rows if span is None else span])
            # a view of memory, as xarray gives
            if read.flags.owndata:
                return read
            return read.copy()
        # HDF5, which one thread reads, takes ascending rows without repeats.
        ascending, places = np.unique(rows, return_inverse=True)
        span = _span(ascending)
        return np.asarray(self._array[ascending if span is None else span])[places]

    def __reduce__(self) -> Any:
        if self._reopen is None:
            raise SourceError(
                f"the {self.text} are of a file object, or of memory without a file "
                f"({self._array.file.filename!r}), which other processes can't open; "
                "open them by a path: h5py.File(path), or use worker_type='thread', "
                "without executor= and remote="
            )
        return self._reopen


def _span(rows: Integers) -> slice | None:
    """Converts consecutive rows to a slice, which every store reads fastest; None for other rows."""
    if len(rows):
        first = int(rows[0])
    else:
        first = 0
    if (np.diff(rows) == 1).all():
        return slice(first, first + len(rows))
    return None


def _of_tensorstore(store: Any) -> _OfSource:
    from loadax.sources.zarr.source import TensorStoreSource

    return _OfSource(TensorStoreSource(store))


def _of_zarr(array: Any) -> _OfLibrary:
    # of local folders and zip files: else zarr reads zeros after os.chdir
    for name in ("root", "path"):
        if isinstance(path := getattr(array.store, name, None), Path):
            setattr(array.store, name, path.absolute())
    return _OfLibrary(
        array, "zarr arrays", 4, int(array.chunks[0]), (_of_zarr, (array,))
    )


def _of_hdf5(dataset: Any) -> _OfLibrary:
    file = Path(dataset.file.filename).absolute()
    is_path = dataset.file.driver != "fileobj" and file.is_file()
    if dataset.chunks:
        chunk_rows = int(dataset.chunks[0])
    else:
        chunk_rows = 1
    if is_path:
        reopen = (_of_file, (str(file), dataset.name))
    else:
        reopen = None
    # it has a global lock
    return _OfLibrary(dataset, "HDF5 arrays", 1, chunk_rows, reopen)


def _of_file(file: str, name: str) -> _OfLibrary:
    import h5py

    return _of_hdf5(h5py.File(file, "r")[name])


def _of_xarray(array: Any) -> _OfLibrary:
    variable = array.variable  # without the coordinates, which rows don't need
    return _OfLibrary(
        variable, "xarray arrays", 4, _chunk_rows(variable), (_of_xarray, (array,))
    )


def _chunk_rows(variable: Any) -> int:
    """Rows that are decoded together: of a chunk of dask, else of the file; 1 in memory."""
    if variable.chunks is not None:
        return int(max(variable.chunks[0]))
    if variable._in_memory:  # noqa: SLF001 - there is no public name, and `data` reads it
        return 1
    return int(variable.encoding.get("preferred_chunks", {}).get(variable.dims[0], 1))


# Reader of the rows of one array, in any order: `reads` run concurrently, and `chunk_rows` are decoded together.
Stored: TypeAlias = _OfSource | _OfLibrary
