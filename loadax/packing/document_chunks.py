"""DocumentChunks: the documents of a lane, read and mapped some at a time, for the lanes of packed rows."""

from collections.abc import Sequence
from typing import NamedTuple, final

from loadax.core.formatting import count_text
from loadax.core.user_object import RAISED
from loadax.errors import SourceError, StateError
from loadax.packing.document_lane import DocumentLane, DocumentState
from loadax.packing.form import Column
from loadax.packing.planned_rows import Packing
from loadax.plan.pack import check_lengths
from loadax.protocols import Integers, Tree

# rows whose documents are read at once, about, and documents
_MOST_ROWS = 16
_MOST_DOCUMENTS = 256
_GROWTH = 8  # documents after which those of another row are read at once


class Chunk(NamedTuple):
    """Documents that were read at once.

    Args:
        numbers: Their numbers.
        rows: Their rows.
        columns: Their leaves, by leaf.
        lengths: Their lengths as they are packed, int64[documents, lengths].
        base: State before the first one, or before an earlier document.
    """

    numbers: Sequence[int]
    rows: Sequence[int]
    columns: list[Column]
    lengths: Integers
    base: DocumentState | None

    def of(self, indices: list[int]) -> "Chunk":
        """Some of the documents."""
        return Chunk(
            [self.numbers[index] for index in indices],
            [self.rows[index] for index in indices],
            [[column[index] for index in indices] for column in self.columns],
            self.lengths[indices],
            self.base,
        )


@final
class DocumentChunks:
    """Reads the documents of a lane in chunks: those of one row at first, then of more.

    Args:
        documents: Documents of the lane.
        packing: How they are packed.
    """

    def __init__(self, documents: DocumentLane, packing: Packing):
        self._documents = documents
        self._form = packing.form
        self._options = packing.options
        self._row = min(packing.options.sizes.tolist())
        # Documents before the maps: those behind one that failed in a chunk are read one by one.
        self._items: list[Tree] = []
        self._at_once = 0
        self._first = 0
        self._base: DocumentState | None = None
        self._failed: BaseException | None = None  # reading behind these
        # documents that were read, and their entries
        self._seen = (0, 0)

    @property
    def number(self) -> int:
        """Number of the next document."""
        return self._documents.number - len(self._items)

    def read(self, lacking: int, row: int) -> Chunk | None:
        """The next chunk. None: the epoch ends.

        Args:
            lacking: Entries that the next row lacks.
            row: Number of that row in the lane.

        Raises:
            Exception: Whatever the lane, its maps or the packing raise for the next document.
        """
        documents, entries = self._seen
        # lanes read many at different steps: up to the next such row, or the one after that
        left = _MOST_ROWS - (row + self._documents.lane) % _MOST_ROWS
        if left <= _MOST_ROWS // 2:
            left += _MOST_ROWS
        rows = min(left, 1 + documents // _GROWTH)
        entries_wanted = lacking + (rows - 1) * self._row
        wanted = -(-entries_wanted * documents // max(1, entries))
        return self._read(min(max(1, wanted), _MOST_DOCUMENTS))

    def read_documents(self, wanted: int) -> Chunk | None:
        """As `read`, for a number of documents."""
        return self._read(min(wanted, _MOST_DOCUMENTS))

    def set_state(self, state: DocumentState) -> None:
        """Goes on at a state of `state`."""
        self._documents.set_state(state)

    def skip_to(self, number: int) -> None:
        """Skips documents, which are not mapped. All that were read are in chunks."""
        self._documents.skip_to(number)

    def state(self) -> DocumentState | None:
        """The state before the next document, or before an earlier one. None: there is none."""
        if self._items:
            return self._base
        return self._documents.state()

    def read_again(self, document: int, skip: int) -> Chunk:
        """The document of a saved state, which is at this entry of it.

        Raises:
            StateError: If the lane lacks it.
        """
        self._documents.skip_to(document)
        chunk = self._read(1)
        if chunk is None or skip >= chunk.lengths.max():
            raise self.lacks(document, skip)
        return chunk

    def lacks(self, document: int, skip: int) -> StateError:
        """The error for a state that is at an entry of a document which the lane lacks."""
        what = (
            f"the state is at entry {skip} of document {document} of the lane, which "
            "lacks it now"
        )
        return StateError(
            f"{what}: documents differ from those of the saved run; restore them, or "
            "start again"
        )

    def nothing_fits(self) -> SourceError:
        """The error for a lane whose documents are all left out."""
        options = self._options
        documents = self._documents
        which = (
            f"none of the {count_text(documents.number, 'document')} of lane "
            f"{documents.lane} of {documents.lanes}"
        )
        if options.long != "drop" or options.method == "split":
            return SourceError(f"{which} has entries; check what opens the lane")
        if options.by_leaf:
            cut = ""
        else:
            cut = " or long='cut',"
        if documents.lanes == 1:
            others = ""
        else:
            others = " or fewer lanes, so that each has a shorter document,"
        return SourceError(
            f"{which} fits a row: they are empty, or longer than "
            f"seq_len={options.seq_len}, and long='drop' leaves them out; pass a "
            f"larger seq_len,{cut}{others} or leave them out where the lane is opened"
        )

    def _read(self, most: int) -> Chunk | None:
        if not self._items and self._failed is None:
            self._base = self._documents.state()
            self._first = self._documents.number
            self._items, self._failed = self._documents.take(most)
            self._at_once = len(self._items)
        if not self._items:
            if self._failed is not None:
                raise self._failed
            return None
        try:
            return self._chunk(self._at_once)
        except RAISED:
            if self._at_once == 1:
                raise
        # the documents before the one that fails are packed before its error is raised
        self._at_once = 1
        return self._chunk(1)

    def _chunk(self, count: int) -> Chunk:
        """The next documents, which were read, mapped and checked."""
        numbers = range(self._first, self._first + count)
        rows = self._documents.rows_of(numbers)
        mapped = self._documents.mapped(self._items[:count], rows)
        columns = self._form.columns(mapped, rows)
        lengths = self._options.lengths(self._form.lengths(columns))
        if self._options.method != "split":
            check_lengths(lengths, self._options, rows.__getitem__)
        del self._items[:count]
        chunk = Chunk(numbers, rows, columns, lengths, self._base)
        self._first += count
        documents, entries = self._seen
        total = int(lengths.max(axis=1).sum())
        self._seen = (documents + count, entries + total)
        return chunk
