"""Windows within episodes, beside plain windows of the same rows, in turns.

python benchmarks/episodes.py [--episodes 100_000] [--rounds 15] [--json FILE]

Episodes of 50 to 500 steps, with 7 numbers of an action and 14 of a state, in memory. Windows of 16 steps at each step,
shuffled, in batches of 256, by the caller's own thread:

- "construction": seconds of `windows(16, within=…)`, of offsets and of a leaf, of which nothing is known before; and
  those of parts by episode, of a shuffle of whole episodes, and of draws by episode;
- "step": processor milliseconds of a placed batch. Each round measures all of them, one after the other; the ratio is
  the median of the rounds' ratios to plain windows.
- "memory": bytes of an episode that such a dataset holds beside the rows.
"""

import argparse
import json
import statistics
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
from turns import machine

from loadax import Dataloader, Dataset, from_arrays

_LENGTH, _BATCH, _STEPS = 16, 256, 100


def frames(episodes: int) -> tuple[Dataset, Any]:
    """Rows of episodes, and the offsets of these."""
    offsets = np.append(0, np.cumsum(np.random.default_rng(0).integers(50, 501, episodes)))
    rows = int(offsets[-1])
    numbers = np.repeat(np.arange(episodes, dtype=np.int32), np.diff(offsets))
    state = np.zeros((rows, 14), np.float32)
    return from_arrays({"episode_index": numbers, "action": np.zeros((rows, 7), np.float32), "state": state}), offsets


def constructions(data: Dataset, offsets: Any) -> dict[str, Callable[[], Any]]:
    """What is made of the rows, by name."""
    weights = np.ones(len(offsets) - 1, np.int64)
    return {
        "offsets": lambda: data.windows(_LENGTH, within=offsets),
        "leaf": lambda: data.windows(_LENGTH, within="episode_index"),
        "leaf, padded": lambda: data.windows(_LENGTH, within="episode_index", pad="edge"),
        "split": lambda: data.split(0.9, by=offsets),
        "split, windows": lambda: [
            part.windows(_LENGTH, within=part.offsets()) for part in data.split(0.9, by=offsets)
        ],
        "shuffle": lambda: data.shuffle(0, by=offsets),
        "sample": lambda: data.sample(weights, by=offsets),
    }


def contestants(data: Dataset, offsets: Any) -> dict[str, Dataset]:
    """Datasets whose steps are measured."""
    train, _ = data.split(0.9, by=offsets)
    return {
        "plain": data.windows(_LENGTH),
        "within": data.windows(_LENGTH, within=offsets),
        "edge": data.windows(_LENGTH, within=offsets, pad="edge"),
        "zeros": data.windows(_LENGTH, within=offsets, pad="zeros"),
        "part": train.windows(_LENGTH, within=train.offsets()),
    }


def held_bytes(make: Callable[[], Any]) -> int:
    """Bytes that are allocated while something is made, and held after."""
    tracemalloc.start()
    made = make()
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    del made
    return held


def main() -> None:
    """Prints the report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--episodes", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    data, offsets = frames(arguments.episodes)
    report: dict[str, Any] = {"machine": machine(), "rows": len(data), "construction": {}, "bytes an episode": {}}
    for name, make in constructions(data, offsets).items():
        begin = perf_counter()
        make()
        report["construction"][name] = round(perf_counter() - begin, 3)
        report["bytes an episode"][name] = round(held_bytes(make) / arguments.episodes, 1)
    loaders = {
        name: Dataloader(made.shuffle(0), _BATCH, num_workers=0) for name, made in contestants(data, offsets).items()
    }
    times: dict[str, list[float]] = {name: [] for name in loaders}
    for turn in range(arguments.rounds):
        for name, loader in loaders.items():
            with loader.iterate(turn * _STEPS) as batches:
                next(batches)
                begin = process_time()
                for _ in range(_STEPS):
                    next(batches)
                times[name].append((process_time() - begin) / _STEPS * 1e3)
    report["step"] = {
        name: {
            "ms": round(statistics.median(taken), 3),
            "ratio": round(statistics.median(own / plain for own, plain in zip(taken, times["plain"], strict=True)), 2),
        }
        for name, taken in times.items()
    }
    text = json.dumps(report, indent=1)
    print(text)
    if arguments.json:
        arguments.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
