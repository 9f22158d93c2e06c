"""The bare work of each workload, without a loader: `prepare(workload, folder, sharding)` (see contestants.py)."""

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count, cycle
from pathlib import Path
from typing import Any

import jax
import numpy as np
from examples_of_rows import audio_contestants
from jax.sharding import NamedSharding
from numpy.typing import NDArray
from peers.orders import batches_of_rows
from workloads.base import Workload
from workloads.jpegs import SIZE, Jpegs
from workloads.rows import OneByOne, scaled
from workloads.tables import GROUP, Table

import loadax
from loadax.sources.images.decode import Rendering

Open = Callable[[], Iterator[Any]]

_BLOCKS = 16  # that are written in turn, as a loader that reads ahead must
_LINE = 64  # bytes: JAX on CPU takes over memory that begins there, and copies other memory
_OPEN = 32  # row groups that are shuffled together


def gather(workload: Workload, folder: Path, sharding: NamedSharding) -> Open:
    """Rows of arrays are copied into sixteen blocks in turn, laid out as the devices want them, and placed."""
    data: Any = workload.data(folder)
    leaves, structure = jax.tree.flatten(data.whole)

    def batches() -> Iterator[Any]:
        shards = len(sharding.device_set)
        blocks = cycle([[_block(leaf, workload.batch_size, shards) for leaf in leaves] for _ in range(_BLOCKS)])
        for rows in batches_of_rows(workload, np.random.default_rng(0)):
            pairs = zip(leaves, next(blocks), strict=True)
            yield jax.tree.unflatten(
                structure, [_placed(_gathered(leaf, rows, block), sharding) for leaf, block in pairs]
            )

    return batches


def place(workload: Workload, _folder: Path, sharding: NamedSharding) -> Open:
    """A batch that never changes is placed again and again."""
    _, tiles = _block(np.zeros((1,), np.int32), workload.batch_size, len(sharding.device_set))
    return lambda: iter(lambda: _placed(tiles, sharding), None)


def decoded(workload: Jpegs, folder: Path, _sharding: NamedSharding) -> Open:
    """The files, in memory, go through loadax's decoder on all cores; their pixels go nowhere."""
    files = [Path(path).read_bytes() for path in workload.paths(folder)]
    rendering, cores = Rendering((SIZE, SIZE), "crop", fast=False, strict=True), os.cpu_count() or 1

    def batches() -> Iterator[Any]:
        under_way: deque[Any] = deque()
        with ThreadPoolExecutor(cores) as pool:
            for rows in batches_of_rows(workload, np.random.default_rng(0)):
                parts = np.array_split(rows, cores)
                under_way.append(
                    [pool.submit(lambda part: [rendering(files[row]) for row in part], part) for part in parts]
                )
                if len(under_way) > 2:
                    yield [part.result() for part in under_way.popleft()]

    return batches


def table(workload: Table, folder: Path, sharding: NamedSharding) -> Open:
    """Row groups in random order, 32 at a time, are decoded by pyarrow, permuted and copied by NumPy, and placed."""
    from pyarrow import parquet

    def batches() -> Iterator[Any]:
        random, size, groups = np.random.default_rng(0), workload.batch_size, workload.rows // GROUP
        while True:
            file = parquet.ParquetFile(workload.path(folder))
            for chosen in np.array_split(random.permutation(groups), -(-groups // _OPEN)):
                part = file.read_row_groups(chosen.tolist())
                columns = {name: part[name].to_numpy() for name in part.column_names}
                order = random.permutation(len(part))
                for first in range(0, len(part) - size + 1, size):
                    rows = order[first : first + size]
                    yield jax.device_put({name: column[rows] for name, column in columns.items()}, sharding)

    return batches


def ours_of_table(workload: Table, folder: Path, sharding: NamedSharding) -> Open:
    """The same by loadax; opened again each epoch, since decoded row groups are kept."""

    def batches() -> Iterator[Any]:
        for epoch in count():
            data = loadax.from_parquet(workload.path(folder)).shuffle(epoch, block="chunks", lanes=8)
            yield from loadax.Dataloader(data, workload.batch_size, partition=sharding)

    return batches


def ours_of_array(workload: Workload, folder: Path, sharding: NamedSharding, **options: Any) -> Open:
    """An array in memory, by loadax."""
    data: Any = workload.data(folder)
    rows = loadax.from_arrays(data.whole).shuffle(0)
    return loadax.Dataloader(rows, workload.batch_size, partition=sharding, num_epochs=None, **options).iterate


def function(workload: OneByOne, folder: Path, _sharding: NamedSharding) -> Open:
    """The user's object and function, and nothing else: examples are not stacked."""
    items = workload.items(folder)

    def batches() -> Iterator[Any]:
        for rows in batches_of_rows(workload, np.random.default_rng(0)):
            yield [scaled(items[row]) for row in rows.tolist()]

    return batches


def speech(_workload: Workload, folder: Path, sharding: NamedSharding, name: str = "loadax") -> Open:
    """Features of overlapping chunks of audio, two workers each."""
    recordings = audio_contestants(folder / "audio.npy", np.load(folder / "ends.npy"))

    def batches() -> Iterator[Any]:
        while True:
            for batch in recordings[name]():
                yield batch if name == "loadax" else jax.device_put(batch.numpy(), sharding)

    return batches


def _block(leaf: NDArray[Any], rows: int, shards: int) -> tuple[Any, list[NDArray[Any]]]:
    """Memory of a batch: an array a device, each from a line of the caches on, and all as one if there are no gaps."""
    shape = (rows // shards, *leaf.shape[1:])
    size = int(np.prod(shape)) * leaf.itemsize
    stride = -(-size // _LINE) * _LINE
    memory = np.empty(stride * shards + _LINE, np.uint8)
    memory = memory[-memory.ctypes.data % _LINE :][: stride * shards]
    tiles = [memory[first : first + size].view(leaf.dtype).reshape(shape) for first in range(0, len(memory), stride)]
    return memory.view(leaf.dtype).reshape(rows, *leaf.shape[1:]) if stride == size else None, tiles


def _gathered(leaf: NDArray[Any], rows: NDArray[np.int64], block: tuple[Any, list[NDArray[Any]]]) -> list[NDArray[Any]]:
    whole, tiles = block
    if not leaf.flags.c_contiguous:  # overlapping windows: `take` would copy all of them first
        return np.split(leaf[rows], len(tiles))
    parts = [(rows, whole)] if whole is not None else zip(rows.reshape(len(tiles), -1), tiles, strict=True)
    for part, tile in parts:
        np.take(leaf, part, axis=0, out=tile, mode="clip")
    return tiles


def _placed(tiles: list[NDArray[Any]], sharding: NamedSharding) -> jax.Array:
    """Places a batch by the public call that takes least."""
    rows = len(tiles[0])
    shape = (rows * len(tiles), *tiles[0].shape[1:])
    return jax.make_array_from_callback(
        shape, sharding, lambda index: tiles[((index or (slice(0),))[0].start or 0) // rows]
    )
