"""Grain, with rows or whole batches as elements, on threads, on the caller's thread or in worker processes."""

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
    """Rows as elements.

    Args:
        workload: Workload to feed.
        folder: Folder of its data.
        sharding: Sharding of a batch.
        threads: Number of threads; None: Grain's default; 0: the caller's thread.
        ahead: Number of elements that threads read ahead; None: Grain's default.
        workers: Number of worker processes, each with its share of the batches.
    """
    # Grain's repeat() shuffles each epoch differently.
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
    """Whole batches as elements, gathered by NumPy; more than one thread was slower on two cores."""
    source = BatchSource(workload.data(folder), workload.rows, workload.batch_size)
    dataset = grain.MapDataset.source(source).to_iter_dataset(_options(threads, ahead))
    return _placed(_in_processes(dataset, workers), sharding)


def placed_ahead(workload: Workload, folder: Path, sharding: NamedSharding) -> Any:
    """Whole batches that Grain places ahead with its experimental `device_put`."""
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
    """Parses Grain's absl flags, which its worker processes need, as a user's main script would."""
    if not flags.FLAGS.is_parsed():
        flags.FLAGS(["benchmark"])


def _placed(dataset: Any, sharding: NamedSharding) -> Any:
    def batches() -> Iterator[Any]:
        for batch in dataset:
            yield jax.device_put(batch, sharding)

    return batches
