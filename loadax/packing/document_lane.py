"""DocumentLane: the documents of one lane of a stream, numbered, with the states of their iterator."""

import copy
from collections.abc import Iterator
from itertools import islice
from typing import Any, final

import numpy as np

from loadax.composition.dataset_lanes import DatasetLane
from loadax.protocols import Integers, Tree, Visits
from loadax.reader import Reader
from loadax.sources.stream.lane import state_methods
from loadax.sources.stream.source import OpenStream, StreamSource

# Number of a document, and state of the iterator before it, as JSON.
DocumentState = tuple[int, Any]


@final
class DocumentLane:
    """Mapped documents of one lane in one epoch, numbered from 0.

    Document d is row `d * lanes + lane` to the maps, of this epoch.

    Args:
        reader: Reader of a stream.
        stream: Its source.
        lane: Number of the lane.
        epoch: The epoch.
        rows: Iterator over the rows of the lane, before the maps.
    """

    def __init__(
        self,
        reader: Reader,
        stream: StreamSource,
        lane: int,
        epoch: int,
        rows: Iterator[Any],
    ):
        self._opened = OpenStream(stream)
        self._reader = reader.with_source(self._opened)
        self.lane = lane
        self.lanes = stream.lanes
        self._epochs = np.array([epoch])
        self._rows = rows
        # What gives the iterator's state and sets it; None: it has no state.
        self.methods = state_methods(rows)
        self.number = 0  # of the next document

    def read(self) -> tuple[Tree, int] | None:
        """The next document, and its row. None: the epoch ends."""
        items = [*islice(self._rows, 1)]
        row = self.row_of(self.number)
        if not items:
            return None
        owned = isinstance(self._rows, DatasetLane) and not self._reader.maps
        if owned:
            document = items[0]
        else:
            document = self._mapped(items, np.array([row]))
        self.number += 1
        return document, row

    def row_of(self, number: int) -> int:
        """Row of a document."""
        return number * self.lanes + self.lane

    def _mapped(self, items: list[Tree], rows: Integers) -> Tree:
        """A document, mapped, in memory that the lane does not write to again."""
        piece = self._opened.keep(rows, items)
        try:
            return self._reader.examples(Visits(rows, self._epochs))[0]
        finally:
            self._opened.release(piece)

    def skip_to(self, number: int) -> None:
        """Skips documents, which are not mapped."""
        skipped = number - self.number
        self.number = number
        if isinstance(self._rows, DatasetLane):
            self._rows.skip(skipped)
        else:
            list(islice(self._rows, skipped))

    def state(self) -> DocumentState | None:
        """The state before the next document. None: there is none."""
        if self.methods is None:
            state = None
        else:
            state = self.methods[0]()
        # the iterator may change it
        if state is None:
            return None
        return (self.number, copy.deepcopy(state))

    def set_state(self, state: DocumentState) -> None:
        assert self.methods is not None
        self.number = state[0]
        self.methods[1](state[1])
