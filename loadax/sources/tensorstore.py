"""Chunked arrays through TensorStore: zarr, zarr3, n5 and its other drivers, local or remote."""

from collections.abc import Sequence
from typing import Any, final

import numpy as np
import tensorstore as ts
from numpy.typing import NDArray

from loadax.errors import SourceError
from loadax.protocols import ArraySpec, Columns, Integers, Tree
from loadax.sources.checks import check_rows, common_length
from loadax.sources.zarr_layout import find_arrays
from loadax.trees import flatten

_TIMEOUT = 300.0  # seconds that one read may take before it is an error: longer than TensorStore's own retries of a slow store
_CACHE_BYTES = 64 << 20  # enough for the shard indexes that random reads come back to; rows themselves are not worth caching
_STRICT_DRIVERS = ("zarr", "zarr2", "zarr3", "n5", "neuroglancer_precomputed")  # those that know fill_missing_data_reads
_BASE = {"cast": "base", "downsample": "base", "stack": "layers"}  # drivers that wrap others, and where those stand


@final
class TensorStoreSource:
    """A tree of TensorStore arrays whose first dimensions are equal: one row an entry.

    Args:
        tree: a pytree of TensorStore specs (dicts with the key `driver`, `tensorstore.Spec`s, URLs) or open stores. All are
            opened on one context, so they share one cache and one set of threads.

    Raises:
        SourceError: when a store can't be opened, has no rows, or the leaves' lengths differ; names the leaf.
    """

    fresh = True  # what `read` gives is nobody else's memory

    concurrent_reads = 4
    """Reads that are best under way at once: they wait for disks, networks and TensorStore's own threads, not for Python."""

    def __init__(self, tree: Tree):
        leaves, self._structure = flatten(tree, is_leaf=_is_spec)
        self._paths = self._structure.paths
        context = ts.Context({"cache_pool": {"total_bytes_limit": _CACHE_BYTES}})
        opening = [_open(leaf, path, context) for leaf, path in zip(leaves, self._paths, strict=True)]
        opened = [_wait(store, path) for store, path in zip(opening, self._paths, strict=True)]
        strict = [_reopen_strict(store, path, context) for store, path in zip(opened, self._paths, strict=True)]
        self._stores = [_rows_from_zero(_wait(store, path), path) for store, path in zip(strict, self._paths, strict=True)]
        self._length = common_length(self._paths, [int(store.shape[0]) for store in self._stores])
        self.spec = self._structure.build(ArraySpec(tuple(s.shape[1:]), np.dtype(s.dtype.numpy_dtype)) for s in self._stores)

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        return " and ".join(sorted({str(_json(store).get("driver", "computed")) for store in self._stores})) + " arrays"

    def read(self, rows: Integers) -> Tree:
        """The entries at `rows`: one indexed read per leaf, all under way at once."""
        rows = check_rows(rows, self._length)
        reads = [store[rows].read() for store in self._stores]
        return self._structure.build(_wait(read, path) for read, path in zip(reads, self._paths, strict=True))

    def read_into(self, rows: Integers, boxes: list[Columns | None], out: list[NDArray[Any] | None]) -> None:
        """Reads the entries at `rows`, only the columns of `boxes`, into `out`; see `Source`."""
        rows = check_rows(rows, self._length)
        writes = []
        for store, path, columns, destination in zip(self._stores, self._paths, boxes, out, strict=True):
            if columns is not None and destination is not None:
                index: Any = (rows, *(slice(*column) for column in columns))
                wanted = store[index]
                writes.append((ts.array(destination).write(wanted), path))
        for write, path in writes:
            _wait(write, path)


def open_zarr(path: Any, variables: Sequence[str] | str | None) -> TensorStoreSource:
    """The rows of a zarr array, or of the arrays of a zarr group, version 2 or 3.

    Args:
        path: of the array or group; a local path or a URL that TensorStore knows.
        variables: which arrays of a group; None: the array itself, or all arrays of the group.

    Raises:
        SourceError: when there is no zarr array or group there, or a variable is missing; lists those that are there.
    """
    return TensorStoreSource(find_arrays(path, variables))


def _is_spec(node: Any) -> bool:
    return isinstance(node, ts.TensorStore | ts.Spec | str) or (isinstance(node, dict) and "driver" in node)


def _open(leaf: Any, path: str, context: ts.Context) -> Any:
    """A future of an open store, or the store itself where it is open already."""
    if isinstance(leaf, ts.TensorStore):
        return leaf
    where = _where(path)
    if not _is_spec(leaf):
        raise SourceError(
            f"{where} is a {type(leaf).__name__}: pass a TensorStore spec (a dict with the key 'driver'), a URL, or an open store"
        )
    try:
        spec = leaf.to_json() if isinstance(leaf, ts.Spec) else ts.Spec(leaf).to_json()
        # Rechecking would ask the store about every chunk again on every read; training data does not change under way.
        return ts.open(_strict(spec, recheck_cached_data=False), read=True, context=context)
    except ValueError as error:
        raise SourceError(f"{where}: this is no TensorStore spec: {_brief(error)}") from error


def _strict(spec: dict[str, Any], **defaults: Any) -> dict[str, Any]:
    """`spec` with missing chunks as errors: TensorStore's own default is to read them as zeros, silently."""
    driver = spec.get("driver")
    if driver in _STRICT_DRIVERS:
        return {**defaults, **spec, "fill_missing_data_reads": False}
    if driver in _BASE and _BASE[driver] in spec:
        inner = spec[_BASE[driver]]
        strict = [_strict(each, **defaults) for each in inner] if isinstance(inner, list) else _strict(inner, **defaults)
        return {**spec, _BASE[driver]: strict}
    return spec


def _reopen_strict(store: ts.TensorStore, path: str, context: ts.Context) -> Any:
    """`store` when a missing chunk is an error for it (also where the driver was found only by opening), or a future of such a one."""
    spec = _json(store)
    strict = _strict(spec)
    if strict == spec:
        return store
    try:
        if spec["driver"] in _STRICT_DRIVERS and store.kvstore is not None:
            # With the store's own key-value store, which may live in this process's memory alone.
            del strict["kvstore"]
            return ts.open(strict, kvstore=store.kvstore.spec(retain_context=True), read=True, context=context)
        return ts.open(strict, read=True, context=context).result(timeout=_TIMEOUT)
    except ValueError as error:
        raise SourceError(
            f"{_where(path)} can't be opened again with missing chunks as errors: {_brief(error)}; open it yourself with "
            "fill_missing_data_reads=False"
        ) from error


def _json(store: ts.TensorStore) -> dict[str, Any]:
    try:
        return store.spec().to_json()
    except NotImplementedError:  # a store that a Python function computes has no spec, and no chunks to miss
        return {}


def _where(path: str) -> str:
    return f"leaf {path}" if path else "the store"


def _rows_from_zero(store: ts.TensorStore, path: str) -> ts.TensorStore:
    if store.rank == 0:
        raise SourceError(f"{_where(path)} is a single value: it has no rows; give it a first dimension")
    return store[ts.d[:].translate_to[0]]


def _wait(future: Any, path: str) -> Any:
    if isinstance(future, ts.TensorStore):
        return future
    where = _where(path)
    try:
        return future.result(timeout=_TIMEOUT)
    except TimeoutError as error:
        raise SourceError(f"{where}: no answer after {_TIMEOUT:.0f} s; is the store reachable?") from error
    except (ValueError, IndexError) as error:
        text = _brief(error)
        remedy = ""
        if "NOT_FOUND: chunk" in text:
            remedy = (
                "; the copy is incomplete, or its writer left out chunks that hold only the fill value: copy it again, or write "
                "it with store_data_equal_to_fill_value=True"
            )
        raise SourceError(f"{where}: {text}{remedy}") from error


def _brief(error: Exception) -> str:
    """TensorStore's message without the dump of the whole spec at its end."""
    return str(error).split(" [tensorstore_spec")[0].split(" [source locations=")[0]
