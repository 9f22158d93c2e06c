"""Cost of statistics, timeline and profiler annotations: `python benchmarks/seeing.py [ROUNDS]`.

Feeds small batches with and without them, in turns.
"""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_NUM_CPU_DEVICES"] = "8"

import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

import numpy as np

from loadax import Dataloader, from_arrays
from loadax.loader.execution import producer, scheduler
from loadax.loader.iterator import DataIterator
from loadax.loader.metrics import stages, timeline
from loadax.loader.metrics.stats import Stats

_SECONDS = 0.1


def _nothing(*_: object) -> None:
    pass


@contextmanager
def blind() -> Iterator[None]:
    """Turns off annotations, CPU times, the timeline and the separate count of the first steps."""

    def counted(stats: Stats, _step: int, waited: float, _away: float, _rows: int) -> None:
        stats.steps += 1
        stats.wait += waited

    with ExitStack() as all_of:
        for module in (producer, scheduler):
            all_of.enter_context(mock.patch.object(module, "TraceAnnotation", stages.unmarked))
        all_of.enter_context(mock.patch.object(stages, "thread_time", float))
        for name in ("piece", "placed", "taken"):
            all_of.enter_context(mock.patch.object(timeline.Recorder, name, _nothing))
        all_of.enter_context(mock.patch.object(Stats, "took", counted))
        yield


def turn(batches: DataIterator) -> tuple[float, float]:
    """Wall-clock and CPU seconds per step."""
    steps, began, cpu = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() < began + _SECONDS:
        for _ in range(20):
            next(batches)
        steps += 20
    return (time.perf_counter() - began) / steps, (time.process_time() - cpu) / steps


def compare(batch_size: int, workers: int, rounds: int) -> None:
    """Prints the time per step, and the median overhead over the rounds."""
    data = from_arrays({"x": np.zeros((100_000, 16), np.float32), "y": np.zeros(100_000, np.int32)}).shuffle(seed=0)
    with Dataloader(data, batch_size, num_epochs=None, num_workers=workers).iterate() as batches:
        turn(batches)
        seen, unseen = [], []
        for round_number in range(rounds):
            for on in (True, False) if round_number % 2 else (False, True):
                if on:
                    seen.append(turn(batches))
                else:
                    with blind():
                        unseen.append(turn(batches))
    for label, which in (("time", 0), ("processor time", 1)):
        more = statistics.median(one[which] / other[which] for one, other in zip(seen, unseen, strict=True)) - 1
        step = statistics.median(one[which] for one in seen)
        print(
            f"batch {batch_size:>4}, {workers} workers: {label} {step * 1e6:7.1f} us a step, {more:+.2%} for seeing",
            flush=True,
        )


if __name__ == "__main__":
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else 31
    for size in (8, 64, 1024):
        for count in (0, 1, 2):
            compare(size, count, turns)
