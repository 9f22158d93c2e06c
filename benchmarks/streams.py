"""Compares a stream of 128 lanes with loops over its bare generators: `python benchmarks/streams.py`.

"generators" takes the rows of every lane in turn and drops them: what the lanes alone cost. "batches" also stacks the
rows of a batch and places it with `jax.device_put`, which is the shortest program that makes batches. Rounds alternate;
ratios are medians over rounds of the speeds of loadax and of a loop: in rows per second ("wall") and per second of
processor time ("cpu") with the default workers, and per second of processor time without workers ("inline"), which
other programs disturb least. A loader tries more threads in its first second, in which JSON's are slower; a shorter
measurement than the default consists of that.

With `--blocks ROWS`, lanes yield blocks of rows: the loops slice them, and concatenate the slices.

Lanes of "small", "vectors", "tokens" and "image" only view bytes as arrays: of whatever lanes can do, the least. Those
of "json" and "zlib" parse lines and decompress, as lanes over files do.
"""

import argparse
import json
import statistics
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from time import perf_counter, process_time
from typing import Any, NamedTuple

import jax
import numpy as np

from loadax import Dataloader, from_stream

_LANES, _BATCH = 128, 1024
_WARM = 16  # batches before a measurement: lanes are opened, and buffers get their memory
_POOL = 64  # rows that lanes yield in turn


class Rows(NamedTuple):
    """Rows of one kind: how many numbers each has, how it is written, and how a lane reads it."""

    size: int
    dtype: type[Any]
    encode: Callable[[Any], bytes] = lambda values: values.tobytes()
    decode: Callable[[bytes], Any] | None = None
    """None: as a view of the bytes."""


def _json(line: bytes) -> Any:
    return np.array(json.loads(line), np.int32)


def _zlib(compressed: bytes) -> Any:
    return np.frombuffer(zlib.decompress(compressed), np.int32)


_KINDS = {
    "small": Rows(16, np.float32),
    "vectors": Rows(256, np.float32),
    "tokens": Rows(2048, np.int32),
    "image": Rows(64 * 64 * 3, np.uint8),
    "json": Rows(512, np.int32, lambda values: json.dumps(values.tolist()).encode(), _json),
    "zlib": Rows(2048, np.int32, zlib.compress, _zlib),
}


def open_lane(kind: str, lane: int, lanes: int) -> Iterator[Any]:  # noqa: ARG001
    """Yields rows of numbers and a label, decoded from bytes as from a file."""
    rng, (size, dtype, encode, decode) = np.random.default_rng(lane), _KINDS[kind]
    encoded = [encode(rng.integers(0, 256, size).astype(dtype)) for _ in range(_POOL)]
    row = 0
    while True:
        bytes_of_row = encoded[row % _POOL]
        values = decode(bytes_of_row) if decode else np.frombuffer(bytes_of_row, dtype)
        yield {"x": values, "label": np.int32(lane)}
        row += 1


def open_blocks(kind: str, block: int, lane: int, lanes: int) -> Iterator[Any]:
    """Yields blocks of the rows."""
    rows = list(islice(open_lane(kind, lane, lanes), _POOL))
    values = np.resize(np.stack([row["x"] for row in rows]), (block, _KINDS[kind].size))
    while True:
        yield {"x": values, "label": np.full(block, lane, np.int32)}


def slices(block: int, lanes: list[Iterator[Any]], rests: list[Any], each: int) -> Iterator[Any]:
    """The next `each` rows of every lane, as slices of its blocks."""
    for index, lane in enumerate(lanes):
        needed = each
        while needed:
            begin, rest = rests[index] or (0, next(lane))
            end = min(block, begin + needed)
            yield {name: leaf[begin:end] for name, leaf in rest.items()}
            needed -= end - begin
            rests[index] = (end, rest) if end < block else None


def sliced(kind: str, lanes: int, block: int, place: bool) -> Iterator[Any]:
    """Slices of blocks, or placed batches of them."""
    opened = [open_blocks(kind, block, lane, lanes) for lane in range(lanes)]
    rests: list[Any] = [None] * lanes
    while True:
        parts = list(slices(block, opened, rests, _BATCH // lanes))
        if place:
            yield jax.device_put({name: np.concatenate([part[name] for part in parts]) for name in ("x", "label")})
        else:
            yield None


def block_stream(kind: str, lanes: int, block: int, workers: int | None) -> Iterator[Any]:
    """Placed batches of loadax, of blocks."""
    data = from_stream(partial(open_blocks, kind, block), lanes, batched=True)
    return iter(Dataloader(data, _BATCH, num_epochs=None, num_workers=workers))


def generators(kind: str) -> Iterator[Any]:
    """The rows of a batch, one after the other."""
    lanes = [open_lane(kind, lane, _LANES) for lane in range(_LANES)]
    each = _BATCH // _LANES
    while True:
        for lane in lanes:
            for _ in islice(lane, each):
                pass
        yield None


def batches(kind: str) -> Iterator[Any]:
    """Placed batches of the rows."""
    lanes = [open_lane(kind, lane, _LANES) for lane in range(_LANES)]
    each = _BATCH // _LANES
    while True:
        rows = [row for lane in lanes for row in islice(lane, each)]
        yield jax.device_put({name: np.stack([row[name] for row in rows]) for name in ("x", "label")})


def stream(kind: str, workers: int | None) -> Iterator[Any]:
    """Placed batches of loadax."""
    data = from_stream(partial(open_lane, kind), lanes=_LANES)
    return iter(Dataloader(data, _BATCH, num_epochs=None, num_workers=workers))


def speed(given: Iterator[Any], seconds: float) -> tuple[float, float]:
    """Rows per second, and per second of processor time."""
    began, cpu, count = perf_counter(), process_time(), 0
    while perf_counter() < began + seconds:
        jax.block_until_ready(next(given))
        count += _BATCH
    return count / (perf_counter() - began), count / (process_time() - cpu)


def main() -> None:
    """Prints a line for each kind of rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a measurement (default: 2)")
    parser.add_argument("--blocks", type=int, default=0, help="rows of a block (default: 0, lanes yield rows)")
    parser.add_argument("--lanes", type=int, default=_LANES, help="lanes of blocks (default: 128)")
    parser.add_argument("--only", nargs="+", choices=_KINDS, default=list(_KINDS), help="kinds of rows (default: all)")
    args = parser.parse_args()
    print(f"{'':>21} | {'µs/row':^20} | {'/ generators':^20} | {'/ batches':^20}")
    columns = f"{'wall':>6} {'cpu':>6} {'inline':>6}"
    print(f"{'rows':>14} {'bytes':>6} | {'gener.':>6} {'batch.':>6} {'inline':>6} | {columns} | {columns}")
    for kind in args.only:
        rows = _KINDS[kind]
        make: dict[str, Callable[[], Any]] = {
            "generators": partial(generators, kind),
            "batches": partial(batches, kind),
            "default": partial(stream, kind, None),
            "inline": partial(stream, kind, 0),
        }
        if args.blocks:
            given = kind, args.lanes, args.blocks
            make = {
                "generators": partial(sliced, *given, False),
                "batches": partial(sliced, *given, True),
                "default": partial(block_stream, *given, None),
                "inline": partial(block_stream, *given, 0),
            }
        measured: dict[str, list[tuple[float, float]]] = {key: [] for key in make}
        for _ in range(args.rounds):
            for key, opened in make.items():
                batches_of = opened()
                for _ in range(_WARM):
                    next(batches_of)
                measured[key].append(speed(batches_of, args.seconds))
                batches_of.close()

        def ratio(key: str, other: str, which: int, measured: Any = measured) -> float:
            pairs = zip(measured[key], measured[other], strict=True)
            return statistics.median(ours[which] / theirs[which] for ours, theirs in pairs)

        ratios = [
            " ".join(
                f"{ratio(key, other, which):>6.2f}" for key, which in (("default", 0), ("default", 1), ("inline", 1))
            )
            for other in ("generators", "batches")
        ]
        costs = " ".join(
            f"{statistics.median(1e6 / cpu for _, cpu in measured[key]):>6.2f}"
            for key in ("generators", "batches", "inline")
        )
        row_bytes = rows.size * np.dtype(rows.dtype).itemsize + 4
        print(f"{kind:>14} {row_bytes:>6} | {costs} | {' | '.join(ratios)}", flush=True)


if __name__ == "__main__":
    main()
