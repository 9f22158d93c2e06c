"""TensorStoreSource: chunked arrays (zarr, zarr3, n5, …), local or remote."""

import os
from collections.abc import Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from loadax.core.arguments import choice
from loadax.core.tree import flatten
from loadax.errors import SourceError
from loadax.protocols import ArraySpec, Columns, Integers, Location, Tree
from loadax.sources.base import BaseSource
from loadax.sources.checks import check_rows, common_length, empty_rows
from loadax.sources.io.kvstore import new_context, wait
from loadax.sources.zarr.array import (
    CACHE_BYTES,
    Missing,
    Rows,
    StoredArray,
    addresses_in,
    is_spec,
    json_of,
    label_of,
    open_store,
    reopen_strict,
    rows_from_zero,
)
from loadax.sources.zarr.discovery import find_arrays, members_at
from loadax.sources.zarr.mapped import map_raw


@final
class TensorStoreSource(BaseSource):
    """A tree of TensorStore arrays whose first dimensions are equal: one row an entry.

    Args:
        tree: a pytree of TensorStore specs (dicts with the key `driver`, `tensorstore.Spec`s, URLs) or open stores. All
            are opened on one context, so they share one cache and one set of threads.
        missing: "error", or "fill": chunks that are not there read as the array's fill value.

    Raises:
        SourceError: when a store can't be opened, has no rows, or the leaves' lengths differ; names the leaf.
    """

    owns_memory = True
    reads_columns = True
    spec: Tree = None
    addresses: Sequence[str] = ()

    def __init__(self, tree: Tree, missing: Missing = "error"):
        choice(
            "missing",
            missing,
            ("error", "fill"),
            "'error', or 'fill' to read chunks that are not there as the fill value",
        )
        leaves, self._structure = flatten(tree, is_leaf=is_spec)
        names = [label_of(leaf, path) for leaf, path in zip(leaves, self._structure.paths, strict=True)]
        context = new_context(CACHE_BYTES)
        opening = [open_store(leaf, name, context, missing) for leaf, name in zip(leaves, names, strict=True)]
        opened = [_opened(store, name, leaf) for store, name, leaf in zip(opening, names, leaves, strict=True)]
        strict = [reopen_strict(store, name, context, missing) for store, name in zip(opened, names, strict=True)]
        reopened = [_opened(store, name, leaf) for store, name, leaf in zip(strict, names, leaves, strict=True)]
        self.addresses = [address for store in reopened for address in addresses_in(json_of(store))]
        """Where the arrays lie."""
        self._arrays: list[Rows] = [_rows(store, name, missing) for store, name in zip(reopened, names, strict=True)]
        self._length = common_length(self._structure.paths, [array.shape[0] for array in self._arrays])
        self.spec = self._structure.build(ArraySpec(array.shape[1:], array.dtype) for array in self._arrays)
        self._process = os.getpid()

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        return " and ".join(sorted({array.driver for array in self._arrays})) + " arrays"

    @property
    def concurrent_reads(self) -> int:
        """Reads that are best under way at once.

        They wait for disks, networks and TensorStore's threads, unless all is mapped.
        """
        return 4 if any(isinstance(array, StoredArray) for array in self._arrays) else 1

    @property
    def chunks(self) -> range | Integers | None:
        """The rows at which what is decoded together begins, for the leaf with the most bytes.

        None when rows are read singly.
        """
        decoded = [array for array in self._arrays if isinstance(array, StoredArray)]
        if not decoded:
            return None
        starts = max(
            decoded, key=lambda array: int(np.prod(array.shape[1:], dtype=np.int64)) * array.dtype.itemsize
        ).chunk_starts
        if len(starts) == self._length:
            return None
        return starts if starts.start == 0 else np.maximum(np.asarray(starts, np.int64), 0)

    def locate(self, row: int) -> list[Location]:
        """The chunk files, or shards, that a row lies in, with the numbers of its chunks.

        What is computed lies nowhere.
        """
        index = int(check_rows([row], self._length)[0])
        return [
            location._replace(part=f"{path} {location.part}".strip())
            for path, array in zip(self._structure.paths, self._arrays, strict=True)
            for location in array.locate(index)
        ]

    def read(self, rows: Integers) -> Tree:
        """The entries at `rows`: one indexed read per leaf, all under way at once."""
        rows = check_rows(rows, self._length)
        out = [
            empty_rows(len(rows), ArraySpec(array.shape[1:], array.dtype), path)
            for array, path in zip(self._arrays, self._structure.paths, strict=True)
        ]
        self._read(rows, [tuple((0, extent) for extent in array.shape[1:]) for array in self._arrays], out)
        return self._structure.build(out)

    def read_into(self, rows: Integers, boxes: Sequence[Columns | None], out: Sequence[NDArray[Any] | None]) -> None:
        """Reads the entries at `rows`, only the columns of `boxes`, into `out`; see `Source`."""
        self._read(check_rows(rows, self._length), boxes, out)

    def _read(self, rows: Integers, boxes: Sequence[Columns | None], out: Sequence[NDArray[Any] | None]) -> None:
        if os.getpid() != self._process:
            raise SourceError(
                "this store was opened before the process was forked, and TensorStore would abort the child; "
                "use threads, or open the dataset in the child (or send it there pickled)"
            )
        under_way = [
            array.start(rows, columns, destination)
            for array, columns, destination in zip(self._arrays, boxes, out, strict=True)
            if columns is not None and destination is not None
        ]
        for finish in under_way:
            finish()

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._process = os.getpid()


def open_zarr(path: Any, variables: Sequence[str] | str | None, missing: Missing = "error") -> TensorStoreSource:
    """The rows of a zarr array, or of the arrays of a zarr group, version 2 or 3.

    Args:
        path: of the array or group; a local path or a URL that TensorStore knows.
        variables: which arrays of a group; None: the array itself, or all arrays of the group.
        missing: "error", or "fill": chunks that are not there read as the fill value.

    Raises:
        SourceError: when there is no zarr array or group there, or a variable is missing; lists those that are there.
    """
    return TensorStoreSource(find_arrays(path, variables), missing)


def _opened(store: Any, name: str, leaf: Any) -> Any:
    if not hasattr(store, "result"):
        return store
    try:
        return wait(store, name)
    except SourceError as error:
        if '"group"' not in str(error):
            raise
        raise SourceError(
            f"{name} is a group of zarr arrays, {members_at(leaf)}; open it with loadax.from_zarr, or one of them"
        ) from error


def _rows(store: Any, name: str, missing: Missing) -> Rows:
    counted = rows_from_zero(store, name)
    mapped = map_raw(json_of(store), np.dtype(store.dtype.numpy_dtype), name) if missing == "error" else None
    return mapped if mapped is not None else StoredArray(counted, name)
