"""The contestants: each the code that a careful user of that library would write, and nothing that another one could not have.

A contestant is `prepare(workload, folder, sharding) -> open`; `open()` gives an endless iterator over batches on the devices,
shuffled anew each epoch. What `prepare` does happens once a process; `open` is what the time to the first batch begins with.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, final

import jax
import numpy as np
from jax.sharding import NamedSharding
from numpy.typing import NDArray
from stores import Stored
from workloads import Workload

Open = Callable[[], Iterator[Any]]
Prepare = Callable[[Any, Path, NamedSharding], Open]  # of its own kind of workload

_MANY = 1 << 40  # steps: no run comes to their end


def loadax_defaults(workload: Workload, folder: Path, sharding: NamedSharding) -> Open:
    """Loadax, with every option that has a default left at it."""
    import loadax

    data = loadax.from_npy(folder / "tokens.npy") if workload.name == "tokens" else loadax.from_arrays(workload.load(folder))
    loader = loadax.Dataloader(data.shuffle(seed=0), batch_size=workload.batch_size, partition=sharding, num_epochs=None)
    return lambda: iter(loader)


def numpy_loop(workload: Workload | Stored, folder: Path, sharding: NamedSharding) -> Open:
    """The loop that one writes by hand."""
    arrays, batch_size = workload.load(folder), workload.batch_size

    def batches() -> Iterator[Any]:
        random = np.random.default_rng(0)
        while True:
            order = random.permutation(workload.rows)
            for step in range(workload.steps_per_epoch):
                rows = order[step * batch_size : (step + 1) * batch_size]
                yield jax.device_put(gather(arrays, rows), sharding)

    return batches


def grain_threads(workload: Workload, folder: Path, sharding: NamedSharding) -> Open:
    """Grain, a row an element, with its default threads."""
    return _grain_rows(workload, folder, sharding, None)


def grain_inline(workload: Workload, folder: Path, sharding: NamedSharding) -> Open:
    """Grain, a row an element, read on the caller's thread."""
    import grain

    return _grain_rows(workload, folder, sharding, grain.ReadOptions(num_threads=0, prefetch_buffer_size=0))


def grain_batches(workload: Workload, folder: Path, sharding: NamedSharding) -> Open:
    """Grain, a whole batch an element, gathered by NumPy on one thread; more threads were slower on two cores."""
    import grain

    return _grain_batches(workload, folder, sharding, grain.ReadOptions(num_threads=1, prefetch_buffer_size=4))


def grain_batches_inline(workload: Workload, folder: Path, sharding: NamedSharding) -> Open:
    """The same on the caller's thread: now this one is the faster, now the other."""
    import grain

    return _grain_batches(workload, folder, sharding, grain.ReadOptions(num_threads=0, prefetch_buffer_size=0))


def gather(arrays: Any, rows: NDArray[np.int64]) -> Any:
    """The rows of every leaf, copied out: what a batch is before it is placed."""
    if isinstance(arrays, dict):
        return {name: array[rows] for name, array in arrays.items()}
    return arrays[rows]


CONTESTANTS: dict[str, Prepare] = {
    "loadax": loadax_defaults,
    "numpy": numpy_loop,
    "grain-threads": grain_threads,
    "grain-inline": grain_inline,
    "grain-batches": grain_batches,
    "grain-batches-inline": grain_batches_inline,
}


def _grain_rows(workload: Workload, folder: Path, sharding: NamedSharding, options: Any) -> Open:
    import grain

    # Grain's repeat() shuffles each epoch anew.
    rows = grain.MapDataset.source(_Rows(workload, workload.load(folder))).shuffle(seed=0).repeat()
    dataset = rows.to_iter_dataset(options).batch(workload.batch_size, drop_remainder=True)
    return lambda: (jax.device_put(batch, sharding) for batch in dataset)


def _grain_batches(workload: Workload, folder: Path, sharding: NamedSharding, options: Any) -> Open:
    import grain

    dataset = grain.MapDataset.source(_Batches(workload, workload.load(folder))).to_iter_dataset(options)
    return lambda: (jax.device_put(batch, sharding) for batch in dataset)


@final
class _Rows:
    """A source whose elements are rows."""

    def __init__(self, workload: Workload, arrays: Any):
        self._rows = workload.rows
        self._arrays = arrays

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, row: int) -> Any:
        arrays = self._arrays
        if isinstance(arrays, dict):
            return {name: array[row] for name, array in arrays.items()}
        return arrays[row]


@final
class _Batches:
    """A source whose elements are the batches of all epochs, one after the other."""

    def __init__(self, workload: Workload, arrays: Any):
        self._workload = workload
        self._arrays = arrays
        self._order = lru_cache(2)(lambda epoch: np.random.default_rng(epoch).permutation(workload.rows))

    def __len__(self) -> int:
        return _MANY

    def __getitem__(self, step: int) -> Any:
        size = self._workload.batch_size
        epoch, inner = divmod(step, self._workload.steps_per_epoch)
        return gather(self._arrays, self._order(epoch)[inner * size : (inner + 1) * size])
