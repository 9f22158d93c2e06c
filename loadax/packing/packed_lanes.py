"""PackedLanes: lanes of packed rows, which pack the documents of a stream as they are read."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, final

import numpy as np

from loadax.core.formatting import count_text
from loadax.core.tree import map_leaves
from loadax.errors import SourceError, StateError
from loadax.packing.document_lane import DocumentLane, DocumentState
from loadax.packing.documents import PartsRequest, cut_documents
from loadax.packing.form import Form
from loadax.packing.rows import PackedRows
from loadax.plan.next_row import document_parts, is_enough, next_row
from loadax.plan.pack import PackOptions
from loadax.protocols import Array, Integers, Segments, Tree
from loadax.reader import Reader
from loadax.sources.stream.lane import open_rows
from loadax.sources.stream.source import StreamSource


class Packing(NamedTuple):
    """How documents are packed: their form, the options, and the leaves of rows."""

    form: Form
    options: PackOptions
    rows: PackedRows


@final
class PackedLanes:
    """Opens lanes of packed rows.

    Args:
        reader: Reader of the documents of a stream.
        stream: Its source.
        packing: How they are packed.
    """

    def __init__(self, reader: Reader, stream: StreamSource, packing: Packing):
        self._reader = reader
        self._stream = stream
        self._packing = packing

    def __call__(self, lane: int, lanes: int, epoch: int) -> Iterator[Tree]:
        rows = open_rows(self._stream.open_again, lane, lanes, epoch)
        documents = DocumentLane(self._reader, self._stream, lane, epoch, rows)
        packed = PackedLane(documents, self._packing)
        # a generator has no states
        if documents.methods is None:
            return (row for row in packed)
        return packed


class _Part(NamedTuple):
    """Part of a document that is not in a row yet.

    Args:
        document: Number of the document.
        skip: Its first entry.
        lengths: Its lengths, int64[lengths].
        leaves: Leaves of the document.
        base: State from which the document can be read again.
    """

    document: int
    skip: int
    lengths: Integers
    leaves: list[Array]
    base: DocumentState | None

    def after(self, entries: Integers | int) -> "_Part":
        """The rest of the part, after these entries."""
        skipped = int(np.max(entries))
        if skipped:
            return self._replace(
                skip=self.skip + skipped, lengths=self.lengths - entries
            )
        return self


@final
class PackedLane(Iterator[Tree]):
    """Packed rows of one lane in one epoch. At its end, the last documents fill rows with padding.

    Its state is that of the documents before the oldest one that is not packed yet, and number and first entry of every
    part that is not. These documents are read again.

    Args:
        documents: Documents of the lane.
        packing: How they are packed.
    """

    def __init__(self, documents: DocumentLane, packing: Packing):
        self._documents = documents
        self._packing = packing
        self._parts: list[_Part] = []  # the oldest first
        self._rows = 0

    def __next__(self) -> Tree:
        base = self._documents.state()
        options = self._packing.options
        parts = self._parts
        held = sum((part.lengths for part in parts), np.zeros_like(options.sizes))
        while not is_enough(len(parts), held, self._rows, options):
            read = self._read_document(base)
            if read is None:
                break
            parts += read
            held = sum((part.lengths for part in read), held)
        if not parts:
            if not self._rows and self._documents.number:
                raise self._nothing_fits()
            raise StopIteration
        lengths = np.array([part.lengths for part in parts])
        used = next_row(lengths, self._rows, options)
        row = self._row(used)
        unfinished = np.any(used < lengths, axis=1).tolist()
        self._parts = [
            part.after(count)
            for part, count, left in zip(parts, used, unfinished, strict=True)
            if left
        ]
        self._rows += 1
        return row

    def get_state(self) -> dict[str, Any] | None:
        if self._parts:
            base = self._parts[0].base
        else:
            base = self._documents.state()
        if base is None:
            return None
        held = [[part.document, part.skip] for part in self._parts]
        return {
            "documents": base,
            "held": held,
            "read": self._documents.number,
            "rows": self._rows,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        base = state["documents"]
        self._rows = state["rows"]
        self._documents.set_state(base)
        parts: list[_Part] = []
        for document, skip in state["held"]:
            if self._documents.number <= document:
                self._documents.skip_to(document)
                parts = self._read_document(base) or []
            found = [
                part
                for part in parts
                if part.skip <= skip < part.skip + part.lengths.max()
            ]
            if not found:
                what = (
                    f"the state is at entry {skip} of document {document} of the "
                    "lane, which lacks it now"
                )
                raise StateError(
                    f"{what}: documents differ from those of the saved run; restore "
                    "them, or start again"
                )
            self._parts.append(found[0].after(skip - found[0].skip))
        self._documents.skip_to(state["read"])

    def _read_document(self, base: DocumentState | None) -> list[_Part] | None:
        """Parts of the next document. None: the epoch ends."""
        number = self._documents.number
        options = self._packing.options
        read = self._documents.read()
        if read is None:
            return None
        document, row = read
        leaves = self._packing.form.leaves(document, row)
        lengths = self._packing.form.lengths([[leaf] for leaf in leaves])[0]
        skips, sizes = document_parts(lengths, options, row)
        return [
            _Part(number, skip, size, leaves, base)
            for skip, size in zip(skips.tolist(), sizes, strict=True)
        ]

    def _nothing_fits(self) -> SourceError:
        """The error for a lane whose documents are all left out."""
        options = self._packing.options
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

    def _row(self, used: Integers) -> Tree:
        """The row of the used entries of all parts, int64[parts, lengths]."""
        form, options, rows = self._packing
        chosen = np.flatnonzero(used.any(axis=1))
        skips = np.array([self._parts[index].skip for index in chosen.tolist()])
        columns = [*zip(*(part.leaves for part in self._parts), strict=True)]
        numbers = np.arange(1, len(chosen) + 1)
        segments = []
        ones = [np.ones_like(chosen)] * form.one_value
        for lengths, widths in zip(
            [*used[chosen].T, *ones],
            [*options.aligned(used[chosen]).T, *ones],
            strict=True,
        ):
            begins = np.cumsum(widths) - widths
            segments.append(
                Segments(
                    np.zeros_like(chosen), chosen, skips, begins, lengths, numbers
                )
            )

        def read(requests: Sequence[PartsRequest]) -> list[list[Array | None]]:
            return [cut_documents(request, columns, form) for request in requests]

        def row_of(part: int) -> int:
            return self._documents.row_of(self._parts[part].document)

        return map_leaves(lambda leaf: leaf[0], rows.read(1, segments, read, row_of))
