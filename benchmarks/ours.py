"""loadax, and handwritten loops, each as a `prepare(workload, folder, sharding)` (see contestants.py)."""

import warnings
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from workloads.arrays import Images
from workloads.base import Workload, steps_per_epoch
from workloads.jpegs import SIZE, Jpegs, label, pillow
from workloads.records import LENGTH, Records
from workloads.rows import OneByOne, scaled
from workloads.stores import SEQ_LEN, Stored
from workloads.transform import Transform, work

import loadax

Open = Callable[..., Iterator[Any]]

_IN_FLIGHT = 4  # reads, of the loop over a store by hand


def defaults(workload: Workload, folder: Path, sharding: NamedSharding, **options: Any) -> Open:
    """Default options of loadax, except those of the contestant."""
    with warnings.catch_warnings():
        # The benchmark measures just what this warns of.
        warnings.filterwarnings("ignore", "shuffle.* of data whose chunks hold", UserWarning)
        return _loader(dataset(workload, folder).shuffle(seed=0), workload, sharding, **options)


def chunks(workload: Stored, folder: Path, sharding: NamedSharding) -> Open:
    """Block shuffle of chunks."""
    data = loadax.from_zarr(folder / "store").shuffle(0, block="chunks", window=workload.window, lanes=workload.lanes)
    return _loader(data, workload, sharding)


def fast(workload: Jpegs, folder: Path, sharding: NamedSharding) -> Open:
    """The fast decoder of loadax."""
    return _loader(
        loadax.from_images(workload.folder(folder), size=SIZE, quality="fast").shuffle(seed=0), workload, sharding
    )


def own_function(workload: Jpegs, folder: Path, sharding: NamedSharding) -> Open:
    """The Pillow function of the peers, on threads of loadax."""
    data = loadax.from_source(workload.paths(folder)).shuffle(seed=0).map(_decoded)
    return _loader(data, workload, sharding)


def numpy_loop(workload: Workload, folder: Path, sharding: NamedSharding) -> Open:
    """Handwritten loop: a permutation per epoch, gathered rows, `jax.device_put`."""
    data, batch_size = workload.data(folder), workload.batch_size

    def batches() -> Iterator[Any]:
        random = np.random.default_rng(0)
        while True:
            order = random.permutation(workload.rows)
            for step in range(steps_per_epoch(workload)):
                yield jax.device_put(data.batch(order[step * batch_size : (step + 1) * batch_size]), sharding)

    return batches


def tensorstore_loop(workload: Stored, folder: Path, sharding: NamedSharding) -> Open:
    """Handwritten loop over a store: one read per batch, four in flight, with a cache of shard indexes."""
    import tensorstore as ts

    context = ts.Context({"cache_pool": {"total_bytes_limit": 64 << 20}})
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{folder}/store/"}, "recheck_cached_data": False}
    store = ts.open(spec, read=True, context=context).result()

    def order() -> Iterator[Any]:
        random = np.random.default_rng(0)
        while True:
            yield from random.permutation(workload.rows).reshape(-1, workload.batch_size)

    def batches() -> Iterator[Any]:
        under_way: deque[Any] = deque()
        for rows in order():
            under_way.append(store[rows].read())
            if len(under_way) > _IN_FLIGHT:
                yield jax.device_put(under_way.popleft().result(), sharding)

    return batches


def dataset(workload: Workload, folder: Path) -> "loadax.Dataset":
    """Rows of a workload in stored order."""
    if isinstance(workload, Images):
        arrays: Any = workload.data(folder)
        return loadax.from_arrays(arrays.batch(np.arange(workload.rows)))
    if isinstance(workload, OneByOne | Transform):
        return _with_function(workload, folder)
    if isinstance(workload, Jpegs):
        return loadax.from_images(workload.folder(folder), size=SIZE)
    if isinstance(workload, Records):
        return loadax.from_array_record([str(path) for path in workload.paths(folder)], dtype=np.uint16).pad(LENGTH)
    if isinstance(workload, Stored) and workload.name != "windows":
        return loadax.from_zarr(folder / "store")
    return _tokens(workload, folder)


def _with_function(workload: OneByOne | Transform, folder: Path) -> "loadax.Dataset":
    if isinstance(workload, Transform):
        return loadax.from_npy(folder / "rows.npy").map(work)
    rows = loadax.from_source(workload.items(folder))
    return rows.map(scaled) if workload.mapped else rows


def _tokens(workload: Workload, folder: Path) -> "loadax.Dataset":
    if workload.name == "windows":
        return loadax.from_tokens(folder / "tokens.bin", SEQ_LEN, dtype=np.uint16)
    return loadax.from_npy(folder / "tokens.npy")


def _loader(data: Any, workload: Workload, sharding: NamedSharding, **options: Any) -> Open:
    return loadax.Dataloader(
        data, batch_size=workload.batch_size, partition=sharding, num_epochs=None, **options
    ).iterate


def _decoded(path: str) -> Any:
    return {"image": pillow(path), "label": np.int32(label(path))}
