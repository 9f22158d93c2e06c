"""Cost of each stage of a batch in isolation, on one thread: `python benchmarks/micro.py [PART ...]`.

See README.md in this folder.
"""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_NUM_CPU_DEVICES"] = "8"

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, final

import jax
import numpy as np
from ours import dataset
from turns import machine
from workloads import find
from workloads.base import Data, Workload, steps_per_epoch

from loadax import seeds
from loadax.loader.assembly.host_shard import batch_specs, resolve_shard
from loadax.loader.execution.executor import ThreadExecutor
from loadax.loader.execution.producer import BatchProducer
from loadax.loader.options import LoaderOptions
from loadax.plan.batches import BatchPlan
from loadax.plan.block_shuffle import BlockShuffled
from loadax.plan.concat import Concatenated
from loadax.plan.mix import Mixed, Segment
from loadax.plan.repeat import Repeated
from loadax.plan.sequential import Sequential
from loadax.plan.shuffle import Shuffled
from loadax.plan.slice import Sliced
from loadax.protocols import Order
from loadax.sharding import data_parallel

_BATCHES = (256, 1024, 4096, 65_536)
_ROWS = 10**9  # of the orders: what a step costs does not depend on it
_RUN = 8  # steps that are read together
_WORKLOADS = ("tokens", "images", "records")


@final
class Clock:
    """Measures, prints and records the time of functions.

    Args:
        seconds: Seconds for which each function is repeated, at least three times.
        quick: Whether to use little data.
    """

    def __init__(self, seconds: float, quick: bool):
        self.taken: dict[str, dict[str, float]] = {}
        self.quick = quick
        self._seconds = seconds

    def show(self, what: str, rows: int, work: Callable[..., Any], *arguments: Any) -> None:
        """Measures the median time of `work(*arguments)`, also per row."""
        work(*arguments)
        taken: list[float] = []
        stop = time.perf_counter() + self._seconds
        while time.perf_counter() < stop or len(taken) < 3:
            began = time.perf_counter()
            work(*arguments)
            taken.append(time.perf_counter() - began)
        cost = statistics.median(taken)
        self.taken[what] = {"rows": rows, "seconds": float(f"{cost:.4g}")}
        print(f"{what:<52}{cost * 1e6:>12,.1f} us{cost / rows * 1e9:>12,.1f} ns/row", flush=True)


def permute(clock: Clock) -> None:
    """`seeds.permute`, which every shuffle goes through."""
    for indices in (1, *_BATCHES):
        for size in (1000, 50_000, _ROWS):
            clock.show(f"permute {indices:,} of {size:,}", indices, seeds.permute, np.arange(indices) % size, size, 7)


def plan(clock: Clock) -> None:
    """Rows of steps for several orders, with one step per call and with many."""
    rows = Sequential(_ROWS)
    orders: dict[str, Order] = {
        "sequential": rows,
        "shuffled": Shuffled(rows, 0),
        "shuffled, repeated, cut": Sliced(Repeated(Shuffled(rows, 0), 3), 5, 2, _ROWS),
        "shuffled in blocks of 64": BlockShuffled(rows, 0, 64, 4, 128),
        "two shuffled, concatenated": Concatenated((Shuffled(rows, 0), Shuffled(rows, 1)), (_ROWS, _ROWS)),
        "a mixture of ten": Mixed(
            tuple(Shuffled(Sequential(_ROWS - part), part) for part in range(10)),
            (_ROWS,) * 10,
            tuple("abcdefghij"),
            (Segment(0, tuple(range(1, 11))),),
            seed=0,
            stop="first",
        ),
    }
    for name, order in orders.items():
        for size in _BATCHES:
            for run in (1, _RUN) if size < 10_000 else (1,):
                visits = BatchPlan(order, size).visits_of
                clock.show(f"plan {run} x {size:,}, {name}", run * size, visits, range(5, 5 + run), np.arange(size))


def stages(clock: Clock) -> None:
    """Assembling and placing batches of the compared workloads, and the same in plain NumPy; other rows each time."""
    for name in _WORKLOADS:
        with _producer(find(name, clock.quick)) as (workload, producer, data, sharding):
            size, steps = workload.batch_size, count()
            order = np.random.default_rng(0).permutation(workload.rows)

            def assemble(
                run: int, producer: BatchProducer = producer, size: int = size, steps: Iterator[int] = steps
            ) -> None:
                producer.fill(next(steps) * run, producer.buffers(run), 0, size)

            def gathered(
                workload: Workload = workload, data: Data = data, order: Any = order, steps: Iterator[int] = steps
            ) -> Any:
                first = next(steps) % steps_per_epoch(workload) * workload.batch_size
                return data.batch(order[first : first + workload.batch_size])

            for run in (1, _RUN):
                clock.show(f"assemble {run} x {size:,} {name}", run * size, assemble, run)
            buffers = producer.buffers(1)
            producer.fill(0, buffers, 0, size)
            clock.show(
                f"place {size:,} {name}", size, lambda *at: jax.block_until_ready(producer.place(*at)[0]), buffers, 0
            )
            clock.show(f"by hand: gather {size:,} {name}", size, gathered)
            clock.show(
                f"by hand: device_put {size:,} {name}",
                size,
                lambda *at: jax.block_until_ready(jax.device_put(*at)),
                gathered(),
                sharding,
            )


@contextmanager
def _producer(workload: Workload) -> Iterator[tuple[Workload, BatchProducer, Data, Any]]:
    """The batch producer of a workload, the rows that it reads, and their sharding."""
    with tempfile.TemporaryDirectory(prefix="loadax-benchmark-") as name:
        folder = Path(name)
        workload.write(folder)
        rows = dataset(workload, folder).shuffle(seed=0)
        shard = resolve_shard(batch_specs(rows.spec, generated=[])[0], workload.batch_size, data_parallel(), None, None)
        order = BatchPlan(rows.order, workload.batch_size, num_epochs=None)
        yield (
            workload,
            BatchProducer(order, rows.reader, shard, LoaderOptions(), ThreadExecutor(), end=None),
            workload.data(folder),
            shard.shardings[0],
        )


PARTS = {"permute": permute, "plan": plan, "stages": stages}


def main() -> None:
    """Runs the parts that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"parts to run: {', '.join(PARTS)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="smoke test with little data; ignore its figures")
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    options = parser.parse_args()
    clock = Clock(0.0 if options.quick else 0.2, options.quick)
    for part in options.parts or PARTS:
        PARTS[part](clock)
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(), "stages": clock.taken}, indent=1) + "\n")


if __name__ == "__main__":
    main()
