"""jax-dataloader, with its own backend: it gathers whole batches on the caller's thread."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, final

import jax
import jax_dataloader
from jax.sharding import NamedSharding
from workloads.base import Data, Rows, Workload


def batches(workload: Workload, folder: Path, sharding: NamedSharding) -> Any:
    """Its loader asks the dataset for the rows of a whole batch at once."""
    loader = jax_dataloader.DataLoader(
        _Batches(workload.data(folder), workload.rows),
        "jax",
        batch_size=workload.batch_size,
        shuffle=True,
        drop_last=True,
    )

    def placed() -> Iterator[Any]:
        while True:
            for batch in loader:
                yield jax.device_put(batch, sharding)

    return placed


@final
class _Batches(jax_dataloader.Dataset):  # type: ignore[misc]
    """A dataset that is asked for arrays of rows."""

    def __init__(self, data: Data, rows: int):
        self._data, self._rows = data, rows

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, rows: Rows) -> Any:
        return self._data.batch(rows)
