"""loadax in Grain: a dataset as a `grain.MapDataset`, a loader's iterator as a `grain.DatasetIterator`."""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, final

import grain
import numpy as np

from loadax.core.formatting import type_text
from loadax.core.spec import leaf_arrays
from loadax.dataset import Dataset
from loadax.errors import ArgumentError
from loadax.io import as_dataset
from loadax.loader.iterator import DataIterator
from loadax.protocols import Tree

_BLOCK_ROWS = 256  # that are read at once
_BLOCK_BYTES = 4 << 20  # or fewer, where rows are large
_BLOCKS = 32  # that are kept for asks to come, whose rows several threads ask for, not quite in turn
_NEAR = 16  # rows from one ask to the next, where these follow each other: Grain has as many threads
_NOT_THERE: Any = object()


def to_map_dataset(data: Any) -> grain.MapDataset:
    """A dataset as a `grain.MapDataset`: element `position + epoch * len` is what the dataset has there in that epoch.

    Grain asks for rows one by one. Rows that follow each other are read at once and handed out when they are asked
    for, so shuffle with loadax (`data.shuffle(seed)`), not with Grain, which makes every ask a read of its own.

    Args:
        data: A `Dataset`, or what `loadax.as_dataset` makes one of.

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
    """A loader's iterator as a `grain.DatasetIterator`, for what asks for that type: checkpoint handlers and trainers.

    Its state is the loader's. Grain's checkpoint handler, and `save` and `load` of Orbax, write one file per process,
    which only the same number of processes can restore; where that matters, save `get_state()` with `JsonSave`.

    Args:
        batches: What `iter(loader)` or `loader.iterate(…)` gives.

    Raises:
        ArgumentError: When it is something else.

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
                f"batches is {type_text(batches)}; pass the iterator of a Dataloader: as_grain_iterator(iter(loader))"
            )
        super().__init__()
        self._batches = batches

    def __next__(self) -> Tree:
        return next(self._batches)

    def get_state(self) -> dict[str, Any]:
        """The loader's state: where the run is, equal on all hosts."""
        return self._batches.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes on from a state.

        Raises:
            StateError: When it is another loader's; names the field.
        """
        self._batches.set_state(state)

    def start_prefetch(self) -> None:
        """Nothing: a loader's iterator reads ahead from its beginning."""

    def close(self) -> None:
        """Closes the loader's iterator."""
        super().close()
        self._batches.close()

    def __del__(self) -> None:
        """Nothing: the loader's iterator closes itself, and may be used without this one."""

    def __str__(self) -> str:
        return f"GrainIterator({self._batches!r})"


@final
class LoadaxMapDataset(grain.MapDataset):  # type: ignore[misc] # Grain ships no types
    """A `grain.MapDataset` over a loadax dataset, whose single rows are read in blocks.

    The first ask for a row of a block reads that row alone, since the next may be for one far away; an ask nearby
    reads the block. Its rows are handed out once each, so that Grain's transforms may write to them.
    """

    def __init__(self, dataset: Dataset):
        super().__init__()
        self._dataset = dataset
        self._size = len(dataset)
        if not self._size:
            raise ArgumentError("the dataset has no rows, of which Grain makes nothing; hand over one that has")
        self._blocks: OrderedDict[tuple[int, int], _Block] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: Any) -> Any:
        """The example at `position + epoch * len`; of a slice a `grain.MapDataset`."""
        if isinstance(index, slice):
            return self.slice(index)
        # As of a sequence: there is no epoch before the first.
        epoch, position = divmod(int(index) if index >= 0 else int(index) % self._size, self._size)
        block = self._block(epoch, position // self._block_rows)
        example = block.rows.pop(position, _NOT_THERE)
        if example is _NOT_THERE:
            example = self._miss(block, epoch, position)
        if block.filled and not block.rows:  # asked for again, its rows are read at once again
            self._drop(block, epoch, position // self._block_rows)
        return example

    def __getitems__(self, indices: Sequence[int]) -> list[Tree]:
        """The examples at many indices, read at once."""
        epochs, positions = np.divmod(np.asarray(indices, np.int64), self._size)
        return self._dataset.reader.examples(self._dataset.order.visits(epochs, positions))

    _getitems = __getitems__
    """What Grain calls where it reads many rows at once."""

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
        return max(1, min(_BLOCK_ROWS, _BLOCK_BYTES // max(1, row_bytes)))

    def _block(self, epoch: int, number: int) -> "_Block":
        with self._lock:
            block = self._blocks.get((epoch, number))
            if block is None:
                block = self._blocks[epoch, number] = _Block()
                if len(self._blocks) > _BLOCKS:
                    self._blocks.popitem(last=False)
            return block

    def _drop(self, block: "_Block", epoch: int, number: int) -> None:
        with self._lock:
            if self._blocks.get((epoch, number)) is block:
                del self._blocks[epoch, number]

    def _miss(self, block: "_Block", epoch: int, position: int) -> Tree:
        with block.lock:
            if not block.read and block.last is not None and abs(position - block.last) <= _NEAR:
                self._fill(block, epoch, position)
            block.last = position
            example = block.rows.pop(position, _NOT_THERE)  # another thread may have read it meanwhile
        return self.__getitems__([position + epoch * self._size])[0] if example is _NOT_THERE else example

    def _fill(self, block: "_Block", epoch: int, position: int) -> None:
        block.read = True
        start = position - position % self._block_rows
        positions = [
            each for each in range(start, min(start + self._block_rows, self._size)) if each != block.last
        ]  # that one was handed out
        with suppress(Exception):  # the ask for the row that can't be read raises it again, and no other one
            examples = self.__getitems__([each + epoch * self._size for each in positions])
            block.rows.update(zip(positions, examples, strict=True))
            block.filled = True


@final
class _Block:
    """Rows that follow each other and were read at once, until they are asked for."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.rows: dict[int, Tree] = {}
        self.read = False  # or tried to
        self.filled = False
        self.last: int | None = None
