"""TensorStoreSource: reads rows of chunked arrays (zarr, zarr3, n5, …), local or remote."""

import math
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, final

import numpy as np

from loadax.core.arguments import choice
from loadax.core.tree import flatten
from loadax.errors import SourceError
from loadax.files.kvstore import new_context, wait
from loadax.files.remote_ranges import StoredChunks
from loadax.protocols import (
    ArraySpec,
    Boxes,
    Integers,
    Location,
    Outputs,
    Tree,
    Visits,
)
from loadax.sources.base import BaseSource, Traits, asked_for
from loadax.sources.checks import (
    check_rows,
    common_length,
    read_columns,
    with_leaves,
)
from loadax.sources.zarr.array import (
    CACHE_BYTES,
    Missing,
    StoredArray,
    addresses_in,
    is_spec,
    json_of,
    label_of,
    open_store,
    reopen_strict,
)
from loadax.sources.zarr.mapped import MappedChunks, map_raw

# Reader of the rows of one array: one leaf of a `TensorStoreSource`.
Rows: TypeAlias = StoredArray | MappedChunks


@final
class TensorStoreSource(BaseSource):
    """A tree of TensorStore arrays with equal first dimensions: row i is entry i of each.

    Args:
        tree: Pytree of TensorStore specs (dicts with the key `driver`, `tensorstore.Spec`s, URLs) or open stores. All
            are opened in one context, so they share one cache and one thread pool.
        missing: "error", or "fill" to read missing chunks as the array's fill value.

    Raises:
        SourceError: When a store can't be opened, has no rows, or the leaves' lengths differ; names the leaf.
    """

    spec: Tree = None
    addresses: Sequence[str] = ()

    def __init__(self, tree: Tree, missing: Missing = "error"):
        choice(
            "missing",
            missing,
            ("error", "fill"),
            "'error', or 'fill' to read missing chunks as the fill value",
        )
        leaves, self._structure = flatten(tree, is_leaf=is_spec)
        names = [
            label_of(leaf, path)
            for leaf, path in zip(leaves, self._structure.paths, strict=True)
        ]
        reopened = open_stores(leaves, names, new_context(CACHE_BYTES), missing)
        stored = [json_of(store) for store in reopened]
        self.addresses = [
            address for spec in stored for address in addresses_in(spec)
        ]
        attributes = {
            name: known
            for name, spec in zip(self._structure.names, stored, strict=True)
            if (known := _attributes(spec.get("metadata", {}).get("attributes", {})))
        }

        self._arrays: list[Rows] = [
            _rows(store, name, missing)
            for store, name in zip(reopened, names, strict=True)
        ]
        try:
            self._length = common_length(
                self._structure.paths, [array.shape[0] for array in self._arrays]
            )
        except SourceError as error:
            error.add_note(
                "loadax: the leaves are those of "
                f"{', '.join(names[:2])}{' and more' * (len(names) > 2)}"
            )
            raise
        self.spec = self._structure.build(
            ArraySpec(array.shape[1:], array.dtype) for array in self._arrays
        )
        # Several reads wait for disk, network and TensorStore's threads; one if all arrays are mapped.
        if any(isinstance(array, StoredArray) for array in self._arrays):
            reads = 4
        else:
            reads = 1
        self.traits = Traits(
            owns_memory=True,
            reads_columns=True,
            concurrent_reads=reads,
            attributes=attributes,
        )

    def __repr__(self) -> str:
        return (
            " and ".join(sorted({array.driver for array in self._arrays})) + " arrays"
        )

    def keep_leaves(self, leaves: Tree) -> BaseSource:
        return with_leaves(self, leaves)

    @property
    def chunks(self) -> range | Integers | None:
        """First rows of the chunks of the largest leaf; None if rows are decoded one by one."""
        decoded = [array for array in self._arrays if isinstance(array, StoredArray)]
        if not decoded:
            return None
        starts = max(
            decoded,
            key=lambda array: math.prod(array.shape[1:]) * array.dtype.itemsize,
        ).chunk_starts
        if len(starts) == self._length:
            return None
        if starts.start == 0:
            return starts
        return np.maximum(np.asarray(starts, np.int64), 0)

    def locate(self, row: int) -> list[Location]:
        """Chunk files or shards of a row, with its chunk indices; empty for virtual stores."""
        index = int(check_rows([row], self._length)[0])
        return [
            location._replace(part=f"{path} {location.part}".strip())
            for path, array in zip(self._structure.paths, self._arrays, strict=True)
            for location in array.locate(index)
        ]

    def chunks_of(self, visits: Visits) -> list[StoredChunks]:
        rows = check_rows(visits.rows, self._length)
        return [
            chunks
            for array in self._arrays
            if isinstance(array, StoredArray)
            for chunks in array.chunks_of(rows)
        ]

    def read(self, rows: Integers) -> Tree:
        return read_columns(self, check_rows(rows, self._length))

    def read_into(self, rows: Integers, boxes: Boxes, out: Outputs) -> None:
        """Reads the entries at `rows`: one indexed read per leaf, all concurrently."""
        rows = check_rows(rows, self._length)
        asked = asked_for(self._arrays, boxes, out)
        under_way = [
            array.start(rows, columns, destination)
            for array, columns, destination in asked
        ]
        for finish in under_way:
            if finish is not None:
                finish()


def open_arrays(path: Any, arrays: Any, missing: Missing) -> TensorStoreSource:
    """Opens a zarr array, or the arrays of a zarr group, of version 2 or 3, as `find_arrays` returned them.

    Raises:
        SourceError: When they can't be read as rows.
    """
    try:
        return TensorStoreSource(arrays, missing)
    except SourceError as error:
        error.argument = "variables"
        if "different numbers of rows" in str(error):
            error.add_note(
                "loadax: pass variables=[…] with the arrays whose first dimension is "
                "the row"
            )
        elif re.search(r"data type|dtype", str(error)):
            error.add_note(
                "loadax: zarr-python can read this data type: "
                f"loadax.as_dataset(zarr.open_array({os.fspath(path)!r}))"
                if is_spec(arrays)
                else "loadax: pass variables=[…] with the arrays of numbers; others, such as strings, can't be read"
            )
        raise


def _attributes(found: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of an array that say what its numbers mean: those that loadax writes, and units of others."""
    classes = found.get("classes")
    units = found.get("units")
    named = isinstance(classes, list) and all(
        isinstance(name, str) for name in classes
    )
    return {
        **({"classes": classes} if named else {}),
        **({"units": units} if isinstance(units, str) else {}),
    }


def open_stores(
    leaves: Sequence[Any], names: Sequence[str], context: Any, missing: Missing
) -> list[Any]:
    """Opens TensorStore specs, URLs or stores, all concurrently, with missing chunks as `missing` says."""
    opening = [
        open_store(leaf, name, context, missing)
        for leaf, name in zip(leaves, names, strict=True)
    ]
    opened = list(map(_opened, opening, names))
    strict = [
        reopen_strict(store, name, context, missing)
        for store, name in zip(opened, names, strict=True)
    ]
    return list(map(_opened, strict, names))


def _opened(store: Any, name: str) -> Any:
    if not hasattr(store, "result"):
        return store
    try:
        return wait(store, name)
    except SourceError as error:
        if '"group"' not in str(error):
            raise
        raise SourceError(
            f"{name} is a group of zarr arrays; open it with loadax.from_zarr, or "
            "one of them"
        ) from error


def _rows(store: Any, name: str, missing: Missing) -> Rows:
    if store.rank == 0:
        raise SourceError(
            f"{name} is a scalar without rows; give it a first dimension"
        )
    if missing == "error":
        mapped = map_raw(json_of(store), np.dtype(store.dtype.numpy_dtype), name)
    else:
        mapped = None
    return mapped or StoredArray(store, name)
