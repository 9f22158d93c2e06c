"""One TensorStore array read by rows: a missing chunk is an error, transient errors are retried; its chunk files."""

import itertools
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import Any, Literal, final

import numpy as np
import tensorstore as ts

from loadax.core.formatting import type_text
from loadax.core.log import log
from loadax.core.memory import check_fits
from loadax.errors import SourceError, StorageError
from loadax.files.kvstore import (
    address_of,
    brief,
    failure,
    new_context,
    settled,
    wait,
)
from loadax.files.object_stores import PAUSES, is_expired, is_limited
from loadax.files.paths import is_remote, local_path
from loadax.files.remote_ranges import StoredChunks
from loadax.files.spec_json import spec_json
from loadax.protocols import Array, Columns, Integers, Location
from loadax.redaction import redacted

Missing = Literal["error", "fill"]

# The drivers that know fill_missing_data_reads.
_STRICT_DRIVERS = ("zarr", "zarr2", "zarr3", "n5", "neuroglancer_precomputed")
# drivers that wrap others, and the key of those
_BASE = {"cast": "base", "downsample": "base", "stack": "layers"}
_INNER = ("kvstore", "base", "layers")  # keys of specs within specs
# errors that a retry can't fix
_FINAL = ("PERMISSION_DENIED", "retry attempts failed", "OUT_OF_RANGE")
# Seconds before a retry.
PAUSE = 0.2

# Memory of the cache: enough for the shard indexes that random reads use again. Rows are not worth caching.
CACHE_BYTES = 64 << 20


@final
class StoredArray:
    """Reads rows of one open store.

    Args:
        store: Store of rank 1 or more.
        name: Leaf and address, for messages.
    """

    def __init__(self, store: ts.TensorStore, name: str):
        store = store[ts.d[:].translate_to[0]]  # rows from 0 on
        self._store = store
        self._name = name
        self.shape = tuple(int(extent) for extent in store.shape)
        self.dtype = np.dtype(store.dtype.numpy_dtype)
        self.driver = str(json_of(store).get("driver", "computed"))
        self.chunk_starts = _chunk_starts(store)
        chunk = store.chunk_layout.read_chunk.shape or ()
        check_fits(
            math.prod(extent or 1 for extent in chunk) * self.dtype.itemsize,
            f"{name}: each chunk, {self.dtype}{list(chunk)},",
            "if its metadata is right, write it again in smaller chunks: "
            "loadax.write_zarr(…, chunk_rows=…)",
        )
        self._process = os.getpid()

    def locate(self, row: int) -> list[Location]:
        """Files of a row, as far as they are known without reading."""
        return chunk_files(
            json_of(self._store), self._store.chunk_layout, self.shape, row
        )

    def chunks_of(self, rows: Integers) -> list[StoredChunks]:
        """Chunks of these rows, and the indexes of their shards, if they are remote."""
        layout = self._store.chunk_layout
        sizes: Any = layout.read_chunk.shape
        shards: Any = layout.write_chunk.shape
        address = address_of(json_of(self._store).get("kvstore"))
        if not sizes or not all(sizes) or not is_remote(address):
            return []
        nbytes = math.prod(sizes) * self.dtype.itemsize
        found = [
            StoredChunks(
                address,
                _chunk_numbers(rows, self.shape, sizes),
                nbytes,
                CACHE_BYTES // max(1, nbytes),
            )
        ]
        if shards and all(shards) and shards != sizes:
            # offset and length of each chunk, and a checksum
            index = 16 * math.prod(map(_chunks_along, shards, sizes)) + 4
            numbers = _chunk_numbers(rows, self.shape, shards)
            found.append(StoredChunks(f"{address} shards", numbers, index, inf))
        return found

    def start(
        self, rows: Integers | tuple[Integers, ...], columns: Columns, out: Array
    ) -> Callable[[], None]:
        """Starts to read these columns of the rows into `out`; the returned function waits for the end.

        Args:
            rows: Rows; or indices of several leading dimensions, int64[n] each.
            columns: Start and stop in each of the other dimensions.
            out: Destination.
        """
        if os.getpid() != self._process:
            what = (
                "TensorStore would abort this process, which was forked after this "
                "store was opened"
            )
            raise SourceError(
                f"{what}; use threads, or open the dataset in the child (or send it "
                "there pickled)"
            )
        index: Any = (
            *(rows if isinstance(rows, tuple) else (rows,)),
            *(slice(*column) for column in columns),
        )
        # TensorStore would silently write to a copy of unaligned memory.
        if out.flags.aligned:
            aligned = out
        else:
            aligned = np.empty(out.shape, out.dtype)
        under_way = ts.array(aligned).write(self._store[index])

        def finish() -> None:
            try:
                self._wait(
                    under_way, lambda: ts.array(aligned).write(self._store[index])
                )
            except SourceError as error:
                again = self._again(str(error))
                if again is None:
                    raise
                wait(ts.array(aligned).write(again[index]), self._name)
                # the old one may have cached that a chunk is missing
                self._store = again
            if aligned is not out:
                out[...] = aligned

        return finish

    def _wait(self, under_way: Any, send: Callable[[], Any]) -> None:
        """Waits for a read; sends it again after some time if the server limits requests."""
        for pause in PAUSES:
            try:
                wait(under_way, self._name)
            except StorageError as error:
                if not is_limited(str(error)):
                    raise
                log.warning("%s; it is read again in %.0f s", error, pause)
            else:
                return
            time.sleep(pause)
            under_way = send()
        wait(under_way, self._name)

    def _again(self, message: str) -> ts.TensorStore | None:
        """Reopens the store with an empty cache; None if a retry can't help.

        A chunk that was missing or damaged may have been repaired.
        """
        spec = json_of(self._store)
        is_final = is_expired(message) or any(text in message for text in _FINAL)
        if not spec or is_final or in_memory(spec):
            return None
        if not local(spec):
            time.sleep(PAUSE)
        try:
            if "kvstore" not in spec:
                return ts.open(
                    spec, read=True, context=new_context(CACHE_BYTES)
                ).result()
            del spec["kvstore"]  # replaced by the open one, which has the credentials
            assert self._store.kvstore is not None
            kvstore = self._store.kvstore.spec(retain_context=True)
            return ts.open(
                spec, kvstore=kvstore, read=True, context=new_context(CACHE_BYTES)
            ).result()
        except ValueError:
            return None  # the first error says more

    def __getstate__(self) -> dict[str, Any]:
        if in_memory(json_of(self._store)):
            raise SourceError(
                f"{self._name} is in this process's memory alone; write it to a "
                "folder first"
            )
        return vars(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._process = os.getpid()


def open_store(leaf: Any, name: str, context: ts.Context, missing: Missing) -> Any:
    """Opens a spec or URL and returns a future; an open store is returned as it is.

    Raises:
        SourceError: When `leaf` is not a spec, URL or store.
    """
    if isinstance(leaf, ts.TensorStore):
        return leaf
    if not is_spec(leaf):
        what = (
            "pass a TensorStore spec (a dict with the key 'driver'), a URL, or an "
            "open store"
        )
        raise SourceError(f"{name} is {type_text(leaf)}: {what}")
    try:
        # Rechecking would revalidate every chunk on every read; training data does not change during a run.
        return ts.open(
            _strict(spec_json(ts.Spec(leaf)), missing, recheck_cached_data=False),
            read=True,
            context=context,
        )
    except (
        ValueError,
        RuntimeError,
    ) as error:  # RuntimeError for a name that is not UTF-8
        what = (
            f"{name} is not a TensorStore spec: {brief(error)}; correct {leaf!r:.500}"
        )
        raise SourceError(what) from redacted(error)


def reopen_strict(
    store: ts.TensorStore, name: str, context: ts.Context, missing: Missing
) -> Any:
    """Returns `store` if it treats missing chunks as `missing` says, or else a future of one that does.

    The driver may be known only after opening.
    """
    spec = json_of(store)
    strict = _strict(spec, missing)
    if strict == spec:
        return store
    try:
        # from a relative path to an absolute one
        moved = local(spec) and strict.get("kvstore") != spec.get("kvstore")
        if (
            spec["driver"] in _STRICT_DRIVERS
            and store.kvstore is not None
            and not moved
        ):
            # With the store's own key-value store, which may exist only in this process's memory.
            del strict["kvstore"]
            return ts.open(
                strict,
                kvstore=store.kvstore.spec(retain_context=True),
                read=True,
                context=context,
            )
        return ts.open(strict, read=True, context=context).result()
    except ValueError as error:
        what = failure(
            error, f"{name} can't be reopened with missing chunks as errors"
        )
        raise SourceError(
            f"{what}; open it yourself with fill_missing_data_reads=False"
        ) from redacted(error)


def is_spec(node: Any) -> bool:
    """Whether a node of a tree is a store, spec or URL."""
    return isinstance(node, ts.TensorStore | ts.Spec | str) or (
        isinstance(node, dict) and "driver" in node
    )


def label_of(leaf: Any, path: str) -> str:
    """Leaf and address, with which messages begin."""
    if path:
        name = f"leaf {path}"
    else:
        name = "the store"
    try:
        if isinstance(leaf, ts.TensorStore):
            spec = json_of(leaf)
        else:
            spec = spec_json(ts.Spec(leaf))
    except (ValueError, TypeError, RuntimeError):
        return name  # an invalid spec is refused elsewhere
    addresses = addresses_in(spec)
    if addresses:
        return f"{name} at {addresses[0]}"
    return name


def json_of(store: ts.TensorStore) -> dict[str, Any]:
    """The store's spec as JSON; empty for a virtual store, which has no spec and no chunks."""
    try:
        return spec_json(store.spec())
    except NotImplementedError:
        return {}


def addresses_in(spec: Any) -> list[str]:
    """Addresses of all parts of a spec."""
    return [
        address
        for part in _parts(spec)
        if (address := address_of(part.get("kvstore")))
    ]


def in_memory(spec: Any) -> bool:
    """Whether any part of a spec is in this process's memory."""
    return any(part.get("driver") == "memory" for part in _parts(spec))


def local(spec: Any) -> bool:
    """Whether all parts of a spec are on this machine."""
    return all(
        part.get("driver") not in ("http", "s3", "gcs", "gcs_grpc")
        for part in _parts(spec)
    )


def _parts(spec: Any) -> Iterator[dict[str, Any]]:
    """Yields a spec and those in it."""
    if isinstance(spec, dict):
        yield spec
    for inner in (
        spec
        if isinstance(spec, list)
        else map(spec.get, _INNER)
        if isinstance(spec, dict)
        else ()
    ):
        yield from _parts(inner)


def _strict(spec: Any, missing: Missing, **defaults: Any) -> Any:
    """Makes missing chunks errors, unless `missing` is "fill"; TensorStore's default silently reads zeros.

    Also settles where the key-value store is.
    """
    if isinstance(spec, list):  # layers
        return [_strict(layer, missing, **defaults) for layer in spec]
    driver = spec.get("driver")
    if "kvstore" in spec:
        spec = {**spec, "kvstore": settled(spec["kvstore"])}
    if driver in _STRICT_DRIVERS:
        asked = {**defaults, **spec}
        # The spec of a store omits the option at its default, true.
        asked.pop("fill_missing_data_reads", None)
        if missing == "fill":
            return asked
        return {**asked, "fill_missing_data_reads": False}
    inner = _BASE.get(driver, "")
    if inner in spec:
        return {**spec, inner: _strict(spec[inner], missing, **defaults)}
    return spec


def _chunks_along(extent: int, size: int) -> int:
    """Number of chunks of a size along a dimension."""
    return -(-extent // size)


def _chunk_numbers(
    rows: Integers, shape: Sequence[int], sizes: Sequence[int]
) -> list[int]:
    """Numbers of the chunks of these sizes that rows of an array are in."""
    across = math.prod(map(_chunks_along, shape[1:], sizes[1:]))
    first = np.unique(rows // sizes[0]) * across
    numbers: list[int] = (first[:, None] + np.arange(across)).ravel().tolist()
    return numbers


def _chunk_starts(store: ts.TensorStore) -> range:
    size = int(store.shape[0])
    layout = store.chunk_layout
    shape = layout.read_chunk.shape
    origin = layout.grid_origin
    if not shape or not shape[0]:
        return range(size)
    if origin:
        offset = int(origin[0] or 0)
    else:
        offset = 0
    return range(-(-offset % shape[0]), size, shape[0])


def chunk_files(
    spec: dict[str, Any], layout: Any, shape: tuple[int, ...], row: int
) -> list[Location]:
    """Returns the chunk files or shards of a row, with chunk indices; the array's folder if they are unknown.

    Args:
        spec: Spec of the store, as JSON; empty for a virtual store.
        layout: `tensorstore.ChunkLayout` of the store.
        shape: Shape of the array.
        row: Row of the array.
    """
    address = address_of(spec.get("kvstore"))
    if not address:
        return []
    if address.startswith("file://") and "|" not in address:
        address = str(local_path(address))
    files = layout.write_chunk.shape
    chunks = layout.read_chunk.shape
    # The rows of a view, such as a slice, differ from those of the array; some drivers have private keys.
    if (
        "output" in spec.get("transform", {})
        or not files
        or not chunks
        or not all((*files, *chunks))
    ):
        return [Location(address)]
    coordinates = [
        [row // files[0]],
        *(
            range(-(-extent // size))
            for extent, size in zip(shape[1:], files[1:], strict=True)
        ),
    ]
    locations = []
    for index in itertools.product(*coordinates):
        key = chunk_key(spec, index)
        spans = [str(row // chunks[0])]
        for coordinate, size, chunk, extent in zip(
            index[1:], files[1:], chunks[1:], shape[1:], strict=True
        ):
            first = coordinate * size // chunk
            last = (min((coordinate + 1) * size, extent) - 1) // chunk
            spans.append(str(first) if first == last else f"{first}:{last + 1}")
        locations.append(
            Location(
                address if key is None else f"{address.rstrip('/')}/{key}",
                part=f"chunk [{', '.join(spans)}]",
            )
        )
    return locations


def chunk_key(spec: dict[str, Any], index: Sequence[int]) -> str | None:
    """Key of a chunk's file by the format's specification; None if unknown."""
    metadata = spec.get("metadata", {})
    coordinates = [str(coordinate) for coordinate in index]
    if spec.get("driver") == "zarr3":
        encoding = metadata.get("chunk_key_encoding", {"name": "default"})
        default = encoding["name"] == "default"
        separator = encoding.get("configuration", {}).get(
            "separator", "/" if default else "."
        )
        return str(separator.join(["c"] * default + coordinates))
    if spec.get("driver") in ("zarr", "zarr2"):
        return str(metadata.get("dimension_separator", ".")).join(coordinates)
    if spec.get("driver") == "n5":
        return "/".join(coordinates)
    return None
