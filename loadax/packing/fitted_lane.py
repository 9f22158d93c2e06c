"""FittedLane: packed rows of one lane whose documents are fitted into rows, whole or cut to parts of a row."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, final

import numpy as np

from loadax.packing.document_chunks import Chunk, DocumentChunks
from loadax.packing.document_lane import DocumentState
from loadax.packing.planned_rows import PlannedRow
from loadax.plan.next_row import entries_wanted, is_enough, next_row
from loadax.plan.pack import PackOptions
from loadax.protocols import Array


class _Part(NamedTuple):
    """Part of a document that is not in a row yet.

    Args:
        document: Number of the document.
        row: Its row.
        leaves: Its leaves.
        skip: First entry of the part.
        lengths: Its lengths, by budget.
        base: State from which the document can be read again.
    """

    document: int
    row: int
    leaves: Sequence[Array]
    skip: int
    lengths: Sequence[int]
    base: DocumentState | None


class _Document(NamedTuple):
    """A document that was read, but whose parts are not held yet."""

    number: int
    base: DocumentState | None
    parts: list[_Part]


@final
class FittedLane(Iterator[PlannedRow]):
    """Packed rows of one lane in one epoch. At its end, the last documents fill rows with padding.

    Its state is that of the documents before the oldest one that is not packed yet, and number and first entry of every
    part that is held. These documents are read again.

    Args:
        documents: Documents of the lane.
        options: How they are packed.
    """

    def __init__(self, documents: DocumentChunks, options: PackOptions):
        self._documents = documents
        self._options = options
        self._parts: list[_Part] = []  # the oldest first
        self._entries = [0] * len(options.seq_lens)  # of these parts, by budget
        # Documents are read some at a time, but their parts are held one document after another: which row is next
        # depends on how many parts are held.
        self._ahead: deque[_Document] = deque()
        self._rows = 0

    def __next__(self) -> PlannedRow:
        wanted = entries_wanted(self._rows, self._options)
        while not is_enough(len(self._parts), self._entries, wanted, self._options):
            if not self._ahead and not self._read(wanted):
                break
            self._hold(self._ahead.popleft().parts)
        if not self._parts:
            if not self._rows and self._documents.number:
                raise self._documents.nothing_fits()
            raise StopIteration
        lengths = np.array([part.lengths for part in self._parts])
        taken = next_row(lengths, self._rows, self._options)
        chosen = [self._parts[index] for index in np.flatnonzero(taken).tolist()]
        left = [self._parts[index] for index in np.flatnonzero(~taken).tolist()]
        self._parts = []
        self._entries = [0] * len(self._entries)
        self._hold(left)
        self._rows += 1
        return PlannedRow(
            [part.row for part in chosen],
            [*zip(*(part.leaves for part in chosen), strict=True)],
            [part.skip for part in chosen],
            [*map(list, zip(*(part.lengths for part in chosen), strict=True))],
        )

    def get_state(self) -> dict[str, Any] | None:
        base = self._documents.state()
        read = self._documents.number
        if self._ahead:
            read, base, _ = self._ahead[0]
        if self._parts:
            base = self._parts[0].base
        if base is None:
            return None
        held = [[part.document, part.skip] for part in self._parts]
        return {"documents": base, "held": held, "read": read, "rows": self._rows}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self._rows = state["rows"]
        self._documents.set_state(state["documents"])
        read = _Document(-1, None, [])
        for document, skip in state["held"]:
            if read.number != document:
                self._open(self._documents.read_again(document, skip))
                read = self._ahead.pop()
            found = [part for part in read.parts if part.skip == skip]
            if not found:
                raise self._documents.lacks(document, skip)
            self._hold(found)
        self._documents.skip_to(state["read"])

    def _read(self, wanted: Sequence[int]) -> bool:
        """Reads documents. Returns False at the end of the epoch.

        Args:
            wanted: Entries to choose the next row from, by budget.
        """
        if self._options.window:
            lacking = self._options.window - len(self._parts)
            chunk = self._documents.read_documents(lacking)
        else:
            lacking = min(
                most - held for most, held in zip(wanted, self._entries, strict=True)
            )
            chunk = self._documents.read(lacking, self._rows)
        if chunk is not None:
            self._open(chunk)
        return chunk is not None

    def _open(self, chunk: Chunk) -> None:
        """Cuts the documents of a chunk into parts."""
        of, skips, sizes = self._options.parts(chunk.lengths)
        documents = [_Document(number, chunk.base, []) for number in chunk.numbers]
        leaves = [*zip(*chunk.columns, strict=True)]
        for index, skip, lengths in zip(
            of.tolist(), skips[:, 0].tolist(), sizes.tolist(), strict=True
        ):
            number, base, parts = documents[index]
            row = chunk.rows[index]
            parts.append(_Part(number, row, leaves[index], skip, lengths, base))
        self._ahead += documents

    def _hold(self, parts: Sequence[_Part]) -> None:
        self._parts += parts
        for part in parts:
            for budget, length in enumerate(part.lengths):
                self._entries[budget] += length
