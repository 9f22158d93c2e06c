"""DatasetLanes: the rows of a dataset as lanes of a stream, each of which can be continued at any row."""

from collections.abc import Iterator
from typing import final

import numpy as np

from loadax.core.spec import leaf_arrays
from loadax.protocols import Order, Tree
from loadax.reader import Reader
from loadax.sources.wrappers.chunk_cache import with_chunks

# of one lane, that are read at once
_MOST_ROWS = 256
_MOST_BYTES = 1 << 20
# chunks to keep, as a multiple of those of a window: one ends while the next begins
_SPARE = 2


@final
class DatasetLanes:
    """Opens lanes: lane k of n has the positions k, k + n, k + 2n, … of each epoch of a dataset.

    So the first rows of all lanes are those of the dataset. The lanes of a block shuffle that has n lanes too are those
    of the stream: each reads its own chunks.

    Args:
        reader: `Reader` of the dataset.
        order: Order of its rows.
    """

    def __init__(self, reader: Reader, order: Order):
        self._reader = reader
        self._order = order

    def __call__(self, lane: int, lanes: int, epoch: int) -> "DatasetLane":
        reader = self._reader
        blocks = self._order.shuffle and self._order.shuffle.blocks
        if blocks is not None:
            chunks = _SPARE * blocks.window + _MOST_ROWS // blocks.rows
            reader = reader.over(
                lambda source, times: with_chunks(source, chunks, times)
            )
        return DatasetLane(reader, self._order, lane, lanes, epoch)


@final
class DatasetLane(Iterator[Tree]):
    """Rows of one lane in one epoch; see `DatasetLanes`. Its state is the position of the next one.

    Rows are read some at a time: few at first, so that the first one comes early. Lanes do this at different steps.
    """

    def __init__(
        self, reader: Reader, order: Order, lane: int, lanes: int, epoch: int
    ):
        self._reader = reader
        self._order = order
        self._lane = lane
        self._lanes = lanes
        self._epoch = epoch
        self._position = lane
        # which later epochs have no reason to wait for
        self._served = 2 * _MOST_ROWS if epoch else 0
        self._rows: list[Tree] = []  # the next ones, the last one first
        self._most = 1  # until the size of a row is known

    def __next__(self) -> Tree:
        if not self._rows:
            self._read()
        row = self._rows.pop()
        self._position += self._lanes
        self._served += 1
        return row

    def take(self, count: int) -> list[Tree]:
        """Some of the next rows; none at the end."""
        if not self._rows:
            try:
                self._read()
            except StopIteration:
                return []
        taken = self._rows[: -count - 1 : -1]
        del self._rows[-count:]
        self._position += self._lanes * len(taken)
        self._served += len(taken)
        return taken

    def skip(self, count: int) -> None:
        """Leaves rows out, without reading them."""
        self._position += count * self._lanes
        del self._rows[max(0, len(self._rows) - count) :]

    def get_state(self) -> int:
        return self._position

    def set_state(self, state: int) -> None:
        self._position = state
        self._served = 0
        self._rows = []

    def _read(self) -> None:
        index = self._position // self._lanes
        count = min(
            1 + self._served // 2,
            _MOST_ROWS - (index + self._lane) % _MOST_ROWS,
            self._most,
        )
        end = min(self._order.size, self._position + count * self._lanes)
        positions = np.arange(self._position, end, self._lanes)
        if not len(positions):
            raise StopIteration
        visits = self._order.visits(np.full_like(positions, self._epoch), positions)
        self._rows = self._reader.examples(visits)[::-1]
        row_bytes = sum(leaf.nbytes for leaf in leaf_arrays(self._rows[0]))
        self._most = max(1, _MOST_BYTES // max(1, row_bytes))
