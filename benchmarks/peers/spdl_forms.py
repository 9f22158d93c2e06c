"""SPDL: a pipeline of stages on threads, or with a stage in worker processes."""

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from spdl.pipeline import PipelineBuilder
from workloads.base import Data, Rows, Workload

from peers.orders import batches_of_rows

_THREADS = 2
_read: Any = None  # a worker process's own data


def batches(workload: Workload, folder: Path, sharding: NamedSharding) -> Any:
    """Whole batches, gathered by NumPy on two threads."""
    data = workload.data(folder)
    return _placed(
        workload,
        sharding,
        lambda builder: builder.pipe(data.batch, concurrency=_THREADS, output_order="input"),
        _THREADS,
    )


def rows(workload: Workload, folder: Path, sharding: NamedSharding) -> Any:
    """Rows one by one on two threads, and stacked on a third."""
    data = workload.data(folder)

    def staged(builder: Any) -> Any:
        builder = builder.disaggregate().pipe(
            lambda row: data.row(int(row)), concurrency=_THREADS, output_order="input"
        )
        return builder.aggregate(workload.batch_size).pipe(_stacked)

    return _placed(workload, sharding, staged, _THREADS + 1)


def processes(workload: Workload, folder: Path, sharding: NamedSharding) -> Any:
    """Whole batches, each made by one of two processes."""
    pools: list[ProcessPoolExecutor] = []

    def staged(builder: Any) -> Any:
        pool = ProcessPoolExecutor(
            _THREADS, get_context("forkserver"), initializer=partial(_begin, workload.data(folder))
        )
        pools.append(pool)
        return builder.pipe(_read_there, executor=pool, concurrency=2 * _THREADS, output_order="input")

    return _placed(workload, sharding, staged, _THREADS, pools)


def _begin(data: Data) -> None:
    global _read  # noqa: PLW0603 - a pool has no other place for what its process keeps
    _read = data.batch


def _read_there(rows: Rows) -> Any:
    return _read(rows)


def _stacked(examples: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *examples)


def _placed(
    workload: Workload,
    sharding: NamedSharding,
    staged: Any,
    threads: int,
    pools: list[ProcessPoolExecutor] | None = None,
) -> Any:
    def batches() -> Iterator[Any]:
        source = batches_of_rows(workload, np.random.default_rng(0))
        pipeline = staged(PipelineBuilder().add_source(source)).add_sink(3).build(num_threads=threads)
        try:
            with pipeline.auto_stop():
                for batch in pipeline:
                    yield jax.device_put(batch, sharding)
        finally:
            for pool in pools or ():
                pool.shutdown(cancel_futures=True)
            (pools or []).clear()

    return batches
