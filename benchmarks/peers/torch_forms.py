"""torch's `DataLoader`: row by row, and fed whole batches through its sampler; without and with worker processes."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, final

import jax
import numpy as np
import torch
from jax.sharding import NamedSharding
from torch.utils.data import BatchSampler, DataLoader, RandomSampler
from workloads.base import Data, Workload

from peers.orders import RowSource


def rows(workload: Workload, folder: Path, sharding: NamedSharding, workers: int = 0) -> Any:
    """A row an element; torch stacks them, in the workers into memory that is shared."""
    rows_one_by_one: Any = RowSource(workload.data(folder), workload.rows)
    loader: Any = DataLoader(
        rows_one_by_one,
        batch_size=workload.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        persistent_workers=workers > 0,
    )
    return _placed(loader, sharding)


def batches(workload: Workload, folder: Path, sharding: NamedSharding, workers: int = 0) -> Any:
    """The sampler gives the rows of a whole batch, and the dataset gathers them by NumPy."""
    source: Any = _Batches(workload.data(folder), workload.rows)
    loader: Any = DataLoader(
        source,
        sampler=BatchSampler(RandomSampler(source), workload.batch_size, drop_last=True),
        batch_size=None,
        num_workers=workers,
        persistent_workers=workers > 0,
    )
    return _placed(loader, sharding)


@final
class _Batches:
    """A dataset that is asked for lists of rows."""

    def __init__(self, data: Data, rows: int):
        self._data, self._rows = data, rows

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, rows: Sequence[int]) -> Any:
        return self._data.batch(np.asarray(rows))


def _placed(loader: Any, sharding: NamedSharding) -> Any:
    def batches() -> Iterator[Any]:
        while True:
            for batch in loader:
                yield jax.device_put(jax.tree.map(torch.Tensor.numpy, batch), sharding)

    return batches
