"""What each stage of a batch costs by itself, on one thread: `python benchmarks/micro.py [PART ...]`. See README.md in this folder."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_NUM_CPU_DEVICES"] = "8"

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import jax
import numpy as np
from contestants import gather
from workloads import FULL, Workload

from loadax import Dataset, from_arrays, from_npy, seeds
from loadax.loader.feed import Feed
from loadax.loader.share import batch_spec, resolve_share
from loadax.plan.batches import BatchPlan
from loadax.plan.blocks import BlockShuffled
from loadax.plan.mix import Mixed, Segment
from loadax.plan.order import Concatenated, Repeated, Sequential, Shuffled, Sliced
from loadax.protocols import Order
from loadax.sharding import data_parallel

_BATCHES = (256, 1024, 4096, 65_536)
_ROWS = 10**9  # of the orders: what a step costs does not depend on it
_RUN = 8  # steps that are read together


def show(what: str, rows: int, work: Callable[..., Any], *arguments: Any) -> None:
    """Prints what `work(*arguments)` takes, and what that is for a row: the median over 0.2 s, and over three calls at least."""
    work(*arguments)
    taken: list[float] = []
    stop = time.perf_counter() + 0.2
    while time.perf_counter() < stop or len(taken) < 3:
        began = time.perf_counter()
        work(*arguments)
        taken.append(time.perf_counter() - began)
    cost = statistics.median(taken)
    print(f"{what:<52}{cost * 1e6:>12,.1f} us{cost / rows * 1e9:>12,.1f} ns/row", flush=True)


def permute() -> None:
    """`seeds.permute`, which every shuffle goes through."""
    for indices in (1, *_BATCHES):
        for size in (1000, 50_000, _ROWS):
            show(f"permute {indices:,} of {size:,}", indices, seeds.permute, np.arange(indices) % size, size, 7)


def plan() -> None:
    """A step's rows, for some orders, one step a call and many."""
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
                show(f"plan {run} x {size:,}, {name}", run * size, visits, range(5, 5 + run), np.arange(size))


def stages() -> None:
    """Assembling and placing the batches of the side-by-side workloads, and the same by hand; other rows each time."""
    for workload in FULL.values():
        with _feed(workload) as (feed, arrays, sharding):
            size, name = workload.batch_size, workload.name
            order = np.random.default_rng(0).permutation(workload.rows)
            steps = count()

            def assemble(run: int, feed: Feed = feed, size: int = size, steps: Iterator[int] = steps) -> None:
                feed.fill(feed.memory(next(steps) * run, run), 0, run * size)

            def gathered(
                workload: Workload = workload, arrays: Any = arrays, order: Any = order, steps: Iterator[int] = steps
            ) -> Any:
                first = next(steps) % workload.steps_per_epoch * workload.batch_size
                return gather(arrays, order[first : first + workload.batch_size])

            for run in (1, _RUN):
                show(f"assemble {run} x {size:,} {name}", run * size, assemble, run)
            memory = feed.memory(0, 1)
            feed.fill(memory, 0, size)
            show(f"place {size:,} {name}", size, lambda *at: jax.block_until_ready(feed.place(*at)[0]), memory, 0)
            show(f"by hand: gather {size:,} {name}", size, gathered)
            batch = gathered()
            show(
                f"by hand: device_put {size:,} {name}",
                size,
                lambda *at: jax.block_until_ready(jax.device_put(*at)),
                batch,
                sharding,
            )


@contextmanager
def _feed(workload: Workload) -> Iterator[tuple[Feed, Any, Any]]:
    """What turns steps into batches, the rows it reads, and their sharding."""
    with tempfile.TemporaryDirectory(prefix="loadax-benchmark-") as name:
        folder = Path(name)
        workload.write(folder)
        arrays = workload.load(folder)
        rows: Dataset = from_npy(folder / "tokens.npy") if workload.name == "tokens" else from_arrays(arrays)
        dataset = rows.shuffle(seed=0)
        share = resolve_share(batch_spec(dataset.spec, made=[]), workload.batch_size, data_parallel(), None, None)
        yield (
            Feed(BatchPlan(dataset.order, workload.batch_size, num_epochs=None), dataset.reader, share, keep=256 << 20, end=None),
            arrays,
            share.shardings[0],
        )


PARTS = {"permute": permute, "plan": plan, "stages": stages}

if __name__ == "__main__":
    for part in sys.argv[1:] or PARTS:
        PARTS[part]()
