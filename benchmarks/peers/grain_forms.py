"""Grain: a row an element or a whole batch an element, on threads, on the caller's thread or in worker processes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grain
import jax
from absl import flags
from jax.sharding import NamedSharding
from workloads.base import Workload

from peers.orders import BatchSource, row_source


def rows(
    workload: Workload,
    folder: Path,
    sharding: NamedSharding,
    threads: int | None = None,
    ahead: int | None = None,
    workers: int = 0,
) -> Any:
    """A row an element.

    Args:
        workload: what is fed.
        folder: where it lies.
        sharding: of a batch.
        threads: None: those that Grain starts by default. 0: on the caller's thread.
        ahead: elements read ahead by the threads; None: Grain's default.
        workers: processes, each of which does all that for its part of the batches.
    """
    # Grain's repeat() shuffles each epoch anew.
    source = grain.MapDataset.source(row_source(workload, folder)).shuffle(seed=0).repeat()
    dataset = source.to_iter_dataset(_options(threads, ahead)).batch(workload.batch_size, drop_remainder=True)
    return _placed(_in_processes(dataset, workers), sharding)


def batches(
    workload: Workload,
    folder: Path,
    sharding: NamedSharding,
    threads: int = 0,
    ahead: int | None = None,
    workers: int = 0,
) -> Any:
    """A whole batch an element, gathered by NumPy; more threads than one were slower on two cores."""
    source = BatchSource(workload.data(folder), workload.rows, workload.batch_size)
    dataset = grain.MapDataset.source(source).to_iter_dataset(_options(threads, ahead))
    return _placed(_in_processes(dataset, workers), sharding)


def placed_ahead(workload: Workload, folder: Path, sharding: NamedSharding) -> Any:
    """Whole batches that Grain itself places ahead, by its experimental `device_put`."""
    source = BatchSource(workload.data(folder), workload.rows, workload.batch_size)
    dataset = grain.MapDataset.source(source).to_iter_dataset(_options(0, 0))
    return grain.experimental.device_put(dataset, sharding).__iter__


def dataloader(workload: Workload, folder: Path, sharding: NamedSharding, workers: int = 0) -> Any:
    """Grain's `DataLoader`, which is older than its datasets."""
    if workers:
        _parse_flags()
    loader = grain.DataLoader(
        data_source=row_source(workload, folder),
        sampler=grain.samplers.IndexSampler(workload.rows, shuffle=True, seed=0),
        operations=[grain.transforms.Batch(workload.batch_size, drop_remainder=True)],
        worker_count=workers,
        worker_buffer_size=2,
        read_options=_options(0, 0),
    )
    return _placed(loader, sharding)


def _options(threads: int | None, ahead: int | None) -> grain.ReadOptions:
    chosen: dict[str, int] = {}
    if threads is not None:
        chosen["num_threads"] = threads
    if threads == 0 or ahead is not None:
        chosen["prefetch_buffer_size"] = 0 if threads == 0 else (ahead or 0)
    return grain.ReadOptions(**chosen)


def _in_processes(dataset: Any, workers: int) -> Any:
    if not workers:
        return dataset
    _parse_flags()
    return dataset.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=2))


def _parse_flags() -> None:
    """Grain's worker processes ask for flags of its own, which the main script of a user of absl parses."""
    if not flags.FLAGS.is_parsed():
        flags.FLAGS(["benchmark"])


def _placed(dataset: Any, sharding: NamedSharding) -> Any:
    def batches() -> Iterator[Any]:
        for batch in dataset:
            yield jax.device_put(batch, sharding)

    return batches
