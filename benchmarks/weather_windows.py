"""Windows of weather fields, beside a shuffled reader: `python benchmarks/weather_windows.py [--rounds 7]`.

Hourly fields in a compressed zarr store with chunks along time, and windows of four frames, six hours apart, in
shuffled batches:

- "loadax": `from_zarr(path).windows(4, every=6).shuffle(0, block=16, window=1, lanes=8)`, whose open chunks fit the
  memory of the reader's buffer;
- "reader": the reading pattern of NeuralGCM's training reader. Windows that follow each other are grouped into blocks,
  of which `DIVERSITY` fill the shuffle buffer. Blocks are read in random order through xarray, whole, a thread for each
  variable and one block ahead; windows are cut from them and leave the buffer in random order.

The store is larger than the buffer. Rounds alternate, each from its beginning: "windows/s" are windows on the device a
second, from the first batch on, "ratio" the median over rounds of loadax's speed by the reader's, and "bytes" what the
process read from files for each byte of a batch.
"""

import argparse
import json
import random
import statistics
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

import jax
import numpy as np
import xarray

import loadax

_LENGTH, _EVERY, _BATCH = 4, 6, 16
_DIVERSITY = 10
_SPAN = (_LENGTH - 1) * _EVERY + 1
_VARIABLES = ("temperature", "wind", "humidity", "pressure")

Batch = dict[str, Any]


def write_store(path: Path, hours: int, chunk: int) -> int:
    """Writes smooth fields with noise, hour by hour. Returns the bytes of an hour."""
    generator = np.random.default_rng(0)
    latitude, longitude = np.meshgrid(np.linspace(0, 3, 64), np.linspace(0, 6, 128), indexing="ij")
    time = np.arange(hours)[:, None, None] / 24
    fields = {
        name: (np.sin(latitude + time + number) * np.cos(longitude - time)).astype(np.float32).round(2)
        + generator.integers(0, 4, (hours, 64, 128), dtype=np.int8).astype(np.float32) / 64
        for number, name in enumerate(_VARIABLES)
    }
    store = xarray.Dataset({name: (("time", "latitude", "longitude"), field) for name, field in fields.items()})
    store.to_zarr(path, encoding={name: {"chunks": (chunk, 64, 128)} for name in fields}, consolidated=False)
    return sum(field[0].nbytes for field in fields.values())


def loadax_batches(path: Path, buffer: int) -> Iterator[Batch]:
    """Batches of an epoch, by loadax."""
    windows = loadax.from_zarr(path).windows(_LENGTH, every=_EVERY).shuffle(0, block=16, window=1, lanes=8)
    yield from loadax.Dataloader(windows, _BATCH, cache_bytes=buffer)


def reader_batches(path: Path, buffer: int) -> Iterator[Batch]:
    """Batches of an epoch, by the reader."""
    with ThreadPoolExecutor(len(_VARIABLES)) as threads, ThreadPoolExecutor(1) as ahead:
        windows = shuffled(reader_windows(path, buffer, threads, ahead), buffer_windows(path, buffer))
        while len(some := list(islice(windows, _BATCH))) == _BATCH:
            yield jax.device_put({name: np.stack([window[name] for window in some]) for name in _VARIABLES})


def buffer_windows(path: Path, buffer: int) -> int:
    """Windows that fit the buffer."""
    return buffer // (_LENGTH * xarray.open_zarr(path, chunks=None, consolidated=False).isel({"time": slice(1)}).nbytes)


def reader_windows(path: Path, buffer: int, threads: Any, ahead: Any) -> Iterator[Batch]:
    """Windows of blocks in random order."""
    store = xarray.open_zarr(path, chunks=None, consolidated=False)
    size = max(1, buffer_windows(path, buffer) // _DIVERSITY)
    last = store.sizes["time"] - _SPAN
    blocks = [range(first, min(first + size, last + 1)) for first in range(0, last + 1, size)]
    random.Random(0).shuffle(blocks)

    def load(block: range) -> Batch:
        chosen = store.isel(time=slice(block[0], block[-1] + _SPAN))
        return dict(zip(_VARIABLES, threads.map(lambda name: chosen[name].values, _VARIABLES), strict=True))

    coming = [ahead.submit(load, block) for block in blocks[:2]]
    for number, block in enumerate(blocks):
        fields = coming.pop(0).result()
        coming += [ahead.submit(load, later) for later in blocks[number + 2 : number + 3]]
        for first in range(len(block)):
            yield {name: field[first : first + _SPAN : _EVERY] for name, field in fields.items()}


def shuffled(windows: Iterator[Batch], size: int) -> Iterator[Batch]:
    """Fills a buffer, and empties it in random order."""
    generator = random.Random(1)
    while held := list(islice(windows, size)):
        generator.shuffle(held)
        yield from held


def bytes_read() -> int:
    """Bytes that this process has read, by Linux."""
    return int(Path("/proc/self/io").read_text().split()[1])


def measure(make: Callable[[Path, int], Iterator[Batch]], path: Path, buffer: int) -> tuple[float, float]:
    """Windows a second over an epoch, and bytes read for each byte of a batch."""
    batches, before = make(path, buffer), bytes_read()
    jax.block_until_ready(next(batches))
    begin, count, given = perf_counter(), 0, 0
    for batch in batches:
        jax.block_until_ready(batch)
        count += 1
        given += sum(leaf.nbytes for leaf in batch.values())
    seconds = perf_counter() - begin
    return count * _BATCH / seconds, (bytes_read() - before) / given


def main() -> None:
    """Measures both, and prints what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--hours", type=int, default=2400)
    parser.add_argument("--chunk", type=int, default=8, help="hours of a chunk, at most 16")
    parser.add_argument("--buffer", type=int, default=64, help="MiB that the reader's buffer holds")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    buffer = arguments.buffer << 20
    makes = {"loadax": loadax_batches, "reader": reader_batches}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in makes}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "weather.zarr"
        hour = write_store(path, arguments.hours, arguments.chunk)
        stored = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        print(f"{arguments.hours * hour >> 20} MiB of fields, {stored >> 20} MiB stored, buffer {arguments.buffer} MiB")
        for turn in range(arguments.rounds):
            for name in list(makes)[:: 1 if turn % 2 else -1]:
                found[name].append(measure(makes[name], path, buffer))
    for name, rounds in found.items():
        speed, read = (statistics.median(column) for column in zip(*rounds, strict=True))
        print(f"{name:8} {speed:10,.0f} windows/s   {read:6.2f} bytes read for each byte given")
    ratios = [ours[0] / theirs[0] for ours, theirs in zip(found["loadax"], found["reader"], strict=True)]
    print(f"ratio    {statistics.median(ratios):.2f}   ({min(ratios):.2f} to {max(ratios):.2f})")
    if arguments.json:
        arguments.json.write_text(json.dumps({"rounds": found, "ratio": statistics.median(ratios)}))


if __name__ == "__main__":
    main()
