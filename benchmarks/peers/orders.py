"""Orders of rows and batches, for peers that take them as input."""

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, final

import numpy as np
from workloads.base import Data, Rows, Workload, steps_per_epoch

_MANY = 1 << 40  # steps: no run comes to their end


def row_source(workload: Workload, folder: Path) -> Any:
    """A sequence of rows: the data themselves, where they are one."""
    data = workload.data(folder)
    return data if hasattr(data, "__getitem__") else RowSource(data, workload.rows)


@final
class RowSource:
    """A sequence of rows."""

    def __init__(self, data: Data, rows: int):
        self._data, self._rows = data, rows

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, row: int) -> Any:
        return self._data.row(int(row))


@final
class BatchSource:
    """A sequence of the batches of all epochs, one after the other."""

    def __init__(self, data: Data, rows: int, batch_size: int):
        self._data, self._rows, self._size = data, rows, batch_size
        self._order = _orders(rows)

    def __len__(self) -> int:
        return _MANY

    def __getitem__(self, step: int) -> Any:
        epoch, inner = divmod(step, self._rows // self._size)
        return self._data.batch(self._order(epoch)[inner * self._size : (inner + 1) * self._size])

    def __reduce__(self) -> tuple[Any, ...]:
        return (BatchSource, (self._data, self._rows, self._size))


def batches_of_rows(workload: Workload, random: np.random.Generator) -> Iterator[Rows]:
    """Rows of each batch, endlessly."""
    while True:
        order = random.permutation(workload.rows)
        for step in range(steps_per_epoch(workload)):
            yield order[step * workload.batch_size : (step + 1) * workload.batch_size]


def _orders(rows: int) -> Any:
    return lru_cache(2)(lambda epoch: np.random.default_rng(epoch).permutation(rows))
