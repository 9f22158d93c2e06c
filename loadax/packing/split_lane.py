"""SplitLane: packed rows of one lane whose documents are cut wherever a row ends."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any, final

import numpy as np

from loadax.packing.document_chunks import Chunk, DocumentChunks
from loadax.packing.planned_rows import PlannedRow
from loadax.plan.pack import PackOptions


@final
class SplitLane(Iterator[PlannedRow]):
    """Packed rows of one lane in one epoch, all full but the last one.

    Its state is that of the documents before the next one, and its number; and the number and the first entry of the
    document that the next row begins in. That one is read again.

    Args:
        documents: Documents of the lane.
        options: How they are packed.
    """

    def __init__(self, documents: DocumentChunks, options: PackOptions):
        self._documents = documents
        (self._size,) = options.sizes.tolist()
        self._rows = 0
        self._chunk: Chunk | None = None
        # Entries of each document of the chunk, those up to its end, and those that are in rows.
        self._lengths: list[int] = []
        self._ends = [0]
        self._taken = 0

    def __next__(self) -> PlannedRow:
        row = PlannedRow([], [], [], [[]])
        room = self._size
        while room and self._has_entries(room):
            room -= self._take(row, room)
        if room == self._size:
            if not self._rows and self._documents.number:
                raise self._documents.nothing_fits()
            raise StopIteration
        self._rows += 1
        return row

    def get_state(self) -> dict[str, Any] | None:
        held = []
        if self._chunk is None or self._taken == self._ends[-1]:
            base = self._documents.state()
            read = self._documents.number
        else:
            base = self._chunk.base
            index, skip = self._place()
            read = self._chunk.numbers[index]
            if skip:
                held = [[read, skip]]
                read += 1
        if base is None:
            return None
        return {"documents": base, "held": held, "read": read, "rows": self._rows}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self._rows = state["rows"]
        self._documents.set_state(state["documents"])
        for document, skip in state["held"]:  # one at most
            self._open(self._documents.read_again(document, skip))
            self._taken = skip
        if not state["held"]:
            self._documents.skip_to(state["read"])

    def _place(self) -> tuple[int, int]:
        """Index of the next document of the chunk, and the number of its entries that are in rows."""
        index = bisect_right(self._ends, self._taken)
        return index, self._taken - self._begin(index)

    def _begin(self, index: int) -> int:
        """Entries of the chunk before a document."""
        if index:
            return self._ends[index - 1]
        return 0

    def _has_entries(self, room: int) -> bool:
        """Whether there are entries left; reads chunks."""
        while self._taken == self._ends[-1]:
            chunk = self._documents.read(room, self._rows)
            if chunk is None:
                return False
            self._open(chunk)
        return True

    def _open(self, chunk: Chunk) -> None:
        if not chunk.lengths.all():
            chunk = chunk.of(np.flatnonzero(chunk.lengths[:, 0]).tolist())
        self._chunk = chunk
        self._lengths = chunk.lengths[:, 0].tolist()
        self._ends = [*accumulate(self._lengths)] or [0]
        self._taken = 0

    def _take(self, row: PlannedRow, room: int) -> int:
        """Appends the next documents of the chunk to a row, and returns the number of their entries."""
        assert self._chunk is not None
        first, skip = self._place()
        begin = self._taken
        end = min(begin + room, self._ends[-1])
        last = bisect_left(self._ends, end)
        documents = slice(first, last + 1)
        lengths = self._lengths[documents]
        lengths[0] -= skip
        lengths[-1] -= self._ends[last] - end
        row.rows += self._chunk.rows[documents]
        row.skips += [skip] + [0] * (last - first)
        row.lengths[0] += lengths
        columns = [column[documents] for column in self._chunk.columns]
        if row.columns:
            columns = [
                [*before, *column]
                for before, column in zip(row.columns, columns, strict=True)
            ]
        row.columns = columns
        self._taken = end
        return end - begin
