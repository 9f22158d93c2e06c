"""Compares a stream of 128 lanes with a loop over its bare generators: `python benchmarks/streams.py`.

Both make the same host batches. The loop takes rows of every lane in turn and stacks the leaves of a batch, which is
the shortest program that does so. Rounds alternate; ratios are medians over rounds of the speeds of loadax and of the
loop. "cpu" is the ratio of rows per second of processor time, without workers, which other programs disturb less.
"""

import argparse
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from time import perf_counter, process_time
from typing import Any

import numpy as np

from loadax import Dataloader, from_stream

_LANES, _BATCH = 128, 1024
_POOL = 64  # rows that lanes yield in turn
_SIZES = {"small": 16, "tokens": 2048, "image": 64 * 64 * 3}


def open_lane(size: int, block: int, lane: int, lanes: int) -> Iterator[Any]:  # noqa: ARG001
    """Yields rows of `size` numbers and a label, decoded from bytes as from a file, or blocks of `block` rows."""
    rng = np.random.default_rng(lane)
    if size > 4096:
        encoded = [rng.integers(0, 255, size, np.uint8).tobytes() for _ in range(_POOL)]
    else:
        encoded = [rng.standard_normal(size).astype(np.float32).tobytes() for _ in range(_POOL)]
    dtype = np.uint8 if size > 4096 else np.float32
    if block:
        joined = b"".join(encoded[:block])
        while True:
            yield {"x": np.frombuffer(joined, dtype).reshape(block, size), "label": np.full(block, lane, np.int32)}
    row = 0
    while True:
        yield {"x": np.frombuffer(encoded[row % _POOL], dtype), "label": np.int32(lane)}
        row += 1


def loop(size: int, block: int) -> Iterator[Any]:
    """Batches of the bare generators."""
    lanes = [open_lane(size, block, lane, _LANES) for lane in range(_LANES)]
    each = _BATCH // _LANES // max(1, block)
    while True:
        rows = [row for lane in lanes for row in islice(lane, each)]
        join = np.concatenate if block else np.stack
        yield {name: join([row[name] for row in rows]) for name in ("x", "label")}


def stream(size: int, block: int, workers: int | None) -> Iterator[Any]:
    """Host batches of loadax."""
    data = from_stream(partial(open_lane, size, block), lanes=_LANES, batched=bool(block))
    loader = Dataloader(data, _BATCH, num_epochs=None, num_workers=workers, shard_index=0, shard_count=1)
    return loader.host_batches()


def speed(batches: Iterator[Any], seconds: float) -> tuple[float, float]:
    """Rows per second, and per second of processor time."""
    began, cpu, count = perf_counter(), process_time(), 0
    while perf_counter() < began + seconds:
        next(batches)
        count += _BATCH
    return count / (perf_counter() - began), count / (process_time() - cpu)


def main() -> None:
    """Prints a line for each size of rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.5)
    args = parser.parse_args()
    print(f"{'rows':>14} {'bytes':>6} {'loop rows/s':>12} {'loadax / loop':>14} {'num_workers=0':>14} {'cpu':>5}")
    for name, size in _SIZES.items():
        for block in (0, 8):
            make: dict[str, Callable[[], Any]] = {
                "loop": partial(loop, size, block),
                "loadax": partial(stream, size, block, None),
                "inline": partial(stream, size, block, 0),
            }
            measured: dict[str, list[tuple[float, float]]] = {key: [] for key in make}
            for _ in range(args.rounds):
                for key, opened in make.items():
                    batches = opened()
                    next(batches)  # opens the lanes
                    measured[key].append(speed(batches, args.seconds))
                    batches.close()

            def ratio(key: str, which: int, measured: dict[str, list[tuple[float, float]]] = measured) -> float:
                pairs = zip(measured[key], measured["loop"], strict=True)
                return statistics.median(ours[which] / theirs[which] for ours, theirs in pairs)

            rate = statistics.median(wall for wall, _ in measured["loop"])
            print(
                f"{name + ', blocks' * bool(block):>14} {size * (1 if size > 4096 else 4) + 4:>6} {rate:>12,.0f} "
                f"{ratio('loadax', 0):>14.2f} {ratio('inline', 0):>14.2f} {ratio('inline', 1):>5.2f}"
            )


if __name__ == "__main__":
    main()
