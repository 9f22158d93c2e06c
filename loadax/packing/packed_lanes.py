"""PackedLanes: lanes of packed rows, which pack the documents of a stream as they are read."""

from collections.abc import Iterator
from typing import final

from loadax.packing.document_chunks import DocumentChunks
from loadax.packing.document_lane import DocumentLane
from loadax.packing.fitted_lane import FittedLane
from loadax.packing.planned_rows import Packing, PlannedRow
from loadax.packing.split_lane import SplitLane
from loadax.reader import Reader
from loadax.sources.stream.lane import open_rows
from loadax.sources.stream.source import StreamSource


@final
class PackedLanes:
    """Opens lanes of packed rows, which `Packing.fill` fills.

    Args:
        reader: Reader of the documents of a stream.
        stream: Its source.
        packing: How they are packed.
    """

    def __init__(self, reader: Reader, stream: StreamSource, packing: Packing):
        self._reader = reader
        self._stream = stream
        self._packing = packing

    def __call__(self, lane: int, lanes: int, epoch: int) -> Iterator[PlannedRow]:
        rows = open_rows(self._stream.open_again, lane, lanes, epoch)
        documents = DocumentLane(self._reader, self._stream, lane, epoch, rows)
        chunks = DocumentChunks(documents, self._packing)
        packed: SplitLane | FittedLane
        if self._packing.options.method == "split":
            packed = SplitLane(chunks, self._packing.options)
        else:
            packed = FittedLane(chunks, self._packing.options)
        # a generator has no states
        if documents.methods is None:
            return (row for row in packed)
        return packed
