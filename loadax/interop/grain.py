"""loadax in Grain: a dataset as a `grain.MapDataset`, a loader's iterator as a `grain.DatasetIterator`."""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, final

import numpy as np

from loadax.core.formatting import type_text
from loadax.core.spec import leaf_arrays
from loadax.dataset import Dataset
from loadax.errors import ArgumentError
from loadax.io import as_dataset
from loadax.loader.iterator import DataIterator
from loadax.protocols import Tree
from loadax.sources.library import require

require("loadax.interop.grain", {"grain": "grain"})
import grain  # noqa: E402 - after the error that names it

BLOCK_ROWS = 256  # rows to read at once
BLOCK_BYTES = 4 << 20  # and at most so many bytes
BLOCKS = 32  # blocks to keep: several threads request their rows, not quite in order
# most rows between consecutive requests, if these are sequential: Grain has as many threads
_NEAR = 16
_MISSING: Any = object()


def to_map_dataset(data: Any) -> grain.MapDataset:
    """A dataset as a `grain.MapDataset`: element `position + epoch * len` is that position of that epoch.

    Grain requests single rows. Consecutive rows are read at once, so shuffle with loadax (`data.shuffle(seed)`): after
    a shuffle by Grain, every request is a read of its own.

    Args:
        data: `Dataset`, or what `loadax.as_dataset` accepts.

    Examples:
        >>> import numpy as np
        >>> from loadax import from_arrays
        >>> from loadax.interop.grain import to_map_dataset
        >>> batches = to_map_dataset(from_arrays({"x": np.arange(10)}).shuffle(seed=0)).batch(5)
        >>> sorted(int(x) for batch in batches for x in batch["x"]) == list(range(10))
        True
    """
    return LoadaxMapDataset(as_dataset(data))


def as_grain_iterator(batches: DataIterator) -> "GrainIterator":
    """A loader's iterator as a `grain.DatasetIterator`, for checkpoint handlers and trainers that require that type.

    Its state is the loader's. Grain's checkpoint handler, and `save` and `load` of Orbax, write one file per process,
    which only the same number of processes can restore. If that matters, save `get_state()` with `JsonSave`.

    Args:
        batches: Iterator made by `iter(loader)` or `loader.iterate(…)`.

    Raises:
        ArgumentError: If it is something else.

    Examples:
        >>> import grain
        >>> import numpy as np
        >>> from loadax import Dataloader
        >>> from loadax.interop.grain import as_grain_iterator
        >>> batches = as_grain_iterator(iter(Dataloader({"x": np.arange(16)}, batch_size=8)))
        >>> isinstance(batches, grain.DatasetIterator), next(batches)["x"].shape
        (True, (8,))
    """
    return GrainIterator(batches)


@final
class GrainIterator(grain.DatasetIterator):  # type: ignore[misc] # Grain ships no types
    """A `grain.DatasetIterator` over a loader's iterator; `save` and `load` are Grain's."""

    def __init__(self, batches: DataIterator):
        if not isinstance(batches, DataIterator):
            raise ArgumentError(
                f"batches is {type_text(batches)}; pass the iterator of a "
                "Dataloader, iter(loader)"
            )
        super().__init__()
        self._batches = batches

    def __next__(self) -> Tree:
        return next(self._batches)

    def get_state(self) -> dict[str, Any]:
        """The loader's state: where the run is, equal on all hosts."""
        return self._batches.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        """Continues from a state.

        Raises:
            StateError: If it is another loader's; names the field.
        """
        self._batches.set_state(state)

    def start_prefetch(self) -> None:
        """Does nothing: a loader's iterator always reads ahead."""

    def close(self) -> None:
        """Closes the loader's iterator."""
        super().close()
        self._batches.close()

    def __del__(self) -> None:
        """Does nothing: the loader's iterator closes itself, and may be used without this one."""

    def __str__(self) -> str:
        return f"GrainIterator({self._batches!r})"


@final
class LoadaxMapDataset(grain.MapDataset):  # type: ignore[misc] # Grain ships no types
    """A `grain.MapDataset` over a loadax dataset, which reads single rows in blocks.

    The first request for a row of a block reads that row alone, since the next row may be far away. A second request
    nearby reads the block. Each of its rows is returned once, so that Grain's transforms may write to it.
    """

    def __init__(self, dataset: Dataset):
        super().__init__()
        self._dataset = dataset
        self._size = len(dataset)
        if not self._size:
            raise ArgumentError(
                "the dataset has no rows, which Grain does not support; pass one "
                "with rows"
            )
        self._blocks: OrderedDict[tuple[int, int], _Block] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: Any) -> Any:
        """The example at `position + epoch * len`; a slice gives a `grain.MapDataset`."""
        if isinstance(index, slice):
            return self.slice(index)
        # Negative indices count from the end of the first epoch, as in a sequence.
        epoch, position = divmod(
            int(index) if index >= 0 else int(index) % self._size, self._size
        )
        block = self._block(epoch, position // self._block_rows)
        example = block.rows.pop(position, _MISSING)
        if example is _MISSING:
            example = self._miss(block, epoch, position)
        # when its rows are requested again, they are read at once again
        if block.filled and not block.rows:
            with self._lock:
                self._blocks.pop((epoch, position // self._block_rows), None)
        return example

    def __getitems__(self, indices: Sequence[int]) -> list[Tree]:
        """The examples at many indices, read at once."""
        epochs, positions = np.divmod(np.asarray(indices, np.int64), self._size)
        return self._dataset.reader.examples(
            self._dataset.order.visits(epochs, positions)
        )

    # Grain calls this to read many rows at once.
    _getitems = __getitems__

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_blocks": OrderedDict(), "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    def __str__(self) -> str:
        return f"LoadaxMapDataset({self._dataset!r})"

    @cached_property
    def _block_rows(self) -> int:
        example = self.__getitems__([0])[0]
        row_bytes = sum(leaf.nbytes for leaf in leaf_arrays(example))
        return max(1, min(BLOCK_ROWS, BLOCK_BYTES // max(1, row_bytes)))

    def _block(self, epoch: int, number: int) -> "_Block":
        with self._lock:
            block = self._blocks.get((epoch, number))
            if block is None:
                block = self._blocks[epoch, number] = _Block()
                if len(self._blocks) > BLOCKS:
                    self._blocks.popitem(last=False)
            return block

    def _miss(self, block: "_Block", epoch: int, position: int) -> Tree:
        with block.lock:
            if (
                not block.read
                and block.last is not None
                and abs(position - block.last) <= _NEAR
            ):
                block.read = True
                start = position - position % self._block_rows
                stop = min(start + self._block_rows, self._size)
                positions = [row for row in range(start, stop) if row != block.last]
                # the request for the row that can't be read raises it again, and no other
                with suppress(Exception):
                    examples = self.__getitems__(
                        [row + epoch * self._size for row in positions]
                    )
                    block.rows.update(zip(positions, examples, strict=True))
                    block.filled = True
            block.last = position
            # another thread may have read it meanwhile
            example = block.rows.pop(position, _MISSING)
        if example is _MISSING:
            return self.__getitems__([position + epoch * self._size])[0]
        return example


@final
class _Block:
    """Consecutive rows that were read at once, until they are requested."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.rows: dict[int, Tree] = {}
        self.read = False  # or tried to
        self.filled = False
        self.last: int | None = None
