"""torch's `DataLoader` with single rows, or with whole batches through its sampler."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, final

import jax
import numpy as np
import torch
from jax.sharding import NamedSharding
from torch.utils.data import BatchSampler, DataLoader, RandomSampler
from workloads.base import Data, Workload

from peers.orders import row_source


def rows(workload: Workload, folder: Path, sharding: NamedSharding, workers: int = 0, collate: str = "torch") -> Any:
    """A row an element; torch stacks them, in the workers into memory that is shared.

    Or a function of the user's does, by NumPy.
    """
    loader: Any = DataLoader(
        row_source(workload, folder),
        batch_size=workload.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        collate_fn=_stacked if collate == "numpy" else None,
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


def _array(leaf: Any) -> Any:
    return leaf.numpy() if isinstance(leaf, torch.Tensor) else leaf


def _stacked(examples: list[Any]) -> Any:
    return {name: np.stack([example[name] for example in examples]) for name in examples[0]}


def _placed(loader: Any, sharding: NamedSharding) -> Any:
    def batches() -> Iterator[Any]:
        while True:
            for batch in loader:
                yield jax.device_put(jax.tree.map(_array, batch), sharding)

    return batches
