"""DocumentLane: the documents of one lane of a stream, numbered, with the states of their iterator."""

import copy
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, final

import numpy as np

from loadax.composition.dataset_lanes import DatasetLane
from loadax.core.spec import own
from loadax.core.user_object import RAISED
from loadax.protocols import Tree, Visits
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
        self._epoch = epoch
        self._rows = rows
        # What gives the iterator's state and sets it; None: it has no state.
        self.methods = state_methods(rows)
        self.number = 0  # of the next document

    def take(self, most: int) -> tuple[list[Tree], BaseException | None]:
        """The next documents before the maps, at most as many as asked for, and the error that ended them, if any.

        No documents and no error: the epoch ends.
        """
        items: list[Tree] = []
        failed = None
        try:
            if isinstance(self._rows, DatasetLane):
                items += self._rows.take(most)
            else:
                # one by one: a lane may write the next document over the last one
                items.extend(map(own, islice(self._rows, most)))
        except RAISED as error:
            failed = error
        self.number += len(items)
        return items, failed

    def read(self) -> tuple[Tree, int] | None:
        """The next document, and its row. None: the epoch ends."""
        row = self.row_of(self.number)
        items, failed = self.take(1)
        if failed is not None:
            raise failed
        if not items:
            return None
        return self.mapped(items, [row])[0], row

    def row_of(self, number: int) -> int:
        """Row of a document."""
        return number * self.lanes + self.lane

    def rows_of(self, numbers: range) -> range:
        """Rows of consecutive documents."""
        return range(
            self.row_of(numbers.start), self.row_of(numbers.stop), self.lanes
        )

    def mapped(self, items: list[Tree], rows: Sequence[int]) -> list[Tree]:
        """Documents of these rows, mapped, in memory that the lane does not write to again."""
        if isinstance(self._rows, DatasetLane) and not self._reader.maps:
            return items
        visits = Visits(np.array(rows), np.full(len(rows), self._epoch))
        piece = self._opened.add(visits.rows, items)
        try:
            return self._reader.examples(visits)
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
