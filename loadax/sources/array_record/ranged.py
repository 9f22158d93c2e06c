"""RangedRecords: reads rows of ArrayRecord files in buckets by the byte ranges of their chunks."""

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from itertools import chain, pairwise
from typing import Any, final

import numpy as np

from loadax.core.memory import check_fits
from loadax.errors import SourceError
from loadax.files.byte_ranges import ByteRange
from loadax.files.files import Files
from loadax.files.remote_ranges import Wanted
from loadax.protocols import Integers, Location
from loadax.sources.array_record.chunks import (
    BLOCK,
    ChunkError,
    RecordChunk,
    TransposedError,
    chunks_of,
    decode,
    footer_offset,
    without_headers,
)
from loadax.sources.array_record.record_files import RecordFile
from loadax.sources.checks import check_rows

_TAIL = 2 * BLOCK  # last bytes of a file, which have most footers
KEPT = 64 << 20  # bytes of decoded chunks that are kept
OVERHEAD = 2 << 10  # bytes of objects of a chunk, which may be more than its records
_SIZE = 8  # bytes of the offset that is kept with a footer


@final
class RangedRecords:
    """The records of a sequence of files. Thread-safe; pickles without the chunks that it keeps.

    A chunk is requested and decoded once by all threads, and kept until 64 MiB of others were used since.

    Args:
        locations: URLs and paths of the files.
        files: Reader of their bytes.

    Raises:
        SourceError: When a file is not an ArrayRecord file; names it.
    """

    def __init__(self, locations: Sequence[str], files: Files):
        self._reader = files
        self.known_files = files.known
        sizes = dict(zip(locations, files.sizes(locations), strict=True))
        footers = files.recall(
            "footer", locations, lambda urls: _footers(urls, sizes, files)
        )
        found = [
            _chunks(location, footer)
            for location, footer in zip(locations, footers, strict=True)
        ]
        self._chunks = [*chain.from_iterable(chunks for chunks, _ in found)]
        self._stops = [
            *chain.from_iterable(
                [*(later.offset for _, later in pairwise(chunks)), end][: len(chunks)]
                for chunks, end in found
            )
        ]
        self._file_of = np.repeat(
            np.arange(len(found)), [len(chunks) for chunks, _ in found]
        )
        counts = [chunk.records for chunk in self._chunks]
        self._starts = np.cumsum([0, *counts], dtype=np.int64)
        # Files may have millions of chunks: not summed up in each step.
        decoded = sum(chunk.nbytes for chunk in self._chunks)
        self._mean = OVERHEAD + decoded / max(1, len(self._chunks))
        self.files = tuple(
            RecordFile(location, sum(chunk.records for chunk in chunks), 1)
            for location, (chunks, _) in zip(locations, found, strict=True)
        )
        self._firsts = np.cumsum([0, *(file.records for file in self.files)])
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        # by index, last used last
        self._kept: OrderedDict[int, Future[list[bytes]]] = OrderedDict()
        self._bytes = 0

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_lock": None, "_kept": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._reset()

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def first_records(self) -> Integers:
        """First record of each file that has some, int64[files]."""
        return self._firsts[:-1][np.diff(self._firsts) > 0]

    def __repr__(self) -> str:
        if len(self.files) == 1:
            return "an ArrayRecord file"
        return f"{len(self.files)} ArrayRecord files"

    @property
    def chunks(self) -> Integers | None:
        """First rows of the chunks; None if every record is a chunk."""
        if len(self._chunks) == len(self):
            return None
        return self._starts[:-1]

    def locate(self, row: int) -> list[Location]:
        """File of a row, and its record number in the file."""
        row = int(check_rows([row], len(self))[0])
        file = int(np.searchsorted(self._firsts, row, side="right")) - 1
        number = row - int(self._firsts[file])
        return [Location(self.files[file].path, part=f"record {number}")]

    def name(self, row: int) -> str:
        """Name of a row in error messages."""
        (location,) = self.locate(row)
        return f"row {row} ({location.file}, {location.part})"

    def wanted(self, rows: Integers) -> list[Wanted]:
        """What `read` will request."""
        indices = np.unique(self._chunk_of(check_rows(rows, len(self)))).tolist()
        with self._lock:
            ranges = [self._range(each) for each in indices if each not in self._kept]
        wanted = self._reader.wanted(ranges, once=True)
        return [wanted._replace(kept=max(1, KEPT // self._mean))]

    def read(self, rows: Integers) -> list[bytes]:
        """Reads the records at `rows`, in any order, repeats allowed.

        Raises:
            SourceError: When a chunk can't be read; names the file.
        """
        rows = check_rows(rows, len(self))
        indices = self._chunk_of(rows)
        chunks = self._decoded(np.unique(indices).tolist())
        within = (rows - self._starts[indices]).tolist()
        return [
            chunks[index][number]
            for index, number in zip(indices.tolist(), within, strict=True)
        ]

    def _chunk_of(self, rows: Integers) -> Integers:
        found: Integers = np.searchsorted(self._starts, rows, side="right") - 1
        return found

    def _decoded(self, indices: list[int]) -> dict[int, list[bytes]]:
        """The records of chunks; those that no thread has are requested together."""
        mine: dict[int, Future[list[bytes]]] = {}
        with self._lock:
            futures = {}
            for index in indices:
                if index not in self._kept:
                    self._kept[index] = mine[index] = Future()
                    self._bytes += self._size(index)
                self._kept.move_to_end(index)
                futures[index] = self._kept[index]
            while self._bytes > KEPT and len(self._kept) > 1:
                dropped, _ = self._kept.popitem(last=False)
                self._bytes -= self._size(dropped)
        try:
            self._load(mine)
        except BaseException as error:
            with self._lock:
                for index, future in mine.items():
                    if self._kept.get(index) is future:
                        del self._kept[index]
                        self._bytes -= self._size(index)
            for future in mine.values():
                if not future.done():
                    future.set_exception(error)
            raise
        return {index: future.result() for index, future in futures.items()}

    def _load(self, chunks: "Mapping[int, Future[list[bytes]]]") -> None:
        """Requests chunks, decodes them, and gives their records to the futures."""
        ranges = [self._range(index) for index in chunks]
        for index, content in zip(chunks, self._reader.read(ranges), strict=True):
            chunk = self._chunks[index]
            location = self.files[self._file_of[index]].path
            check_fits(
                chunk.nbytes,
                f"{location}: the chunk at byte {chunk.offset}",
                "if it is right, write the file again with a smaller group_size",
            )
            try:
                records = decode(content, chunk)
            except ChunkError as error:
                raise SourceError(
                    f"{location}: the chunk at byte {chunk.offset} can't be read: "
                    f"{error}; {_remedy(error)}"
                ) from error
            chunks[index].set_result(records)

    def _size(self, index: int) -> int:
        """Bytes that a decoded chunk takes."""
        return self._chunks[index].nbytes + OVERHEAD

    def _range(self, index: int) -> ByteRange:
        location = self.files[self._file_of[index]].path
        return ByteRange(location, self._chunks[index].offset, self._stops[index])


def _remedy(error: ChunkError) -> str:
    if isinstance(error, TransposedError):
        return "download the file, since ArrayRecord's own reader is for local files"
    return "the file is damaged or has changed: copy it again"


def _footers(
    locations: Sequence[str], sizes: Mapping[str, int], files: Files
) -> list[bytes]:
    """Offset and bytes of the footer of each file: one request, and another one for a footer of more than 64 KiB."""
    starts = {each: max(0, sizes[each] - _TAIL) for each in locations}
    ranges = [ByteRange(each, starts[each], sizes[each]) for each in locations]
    tails = dict(zip(locations, files.read(ranges), strict=True))
    offsets = {}
    for location, tail in tails.items():
        try:
            offsets[location] = footer_offset(tail[-BLOCK:])
        except ChunkError as error:
            raise _not_array_record(location, error) from error
    longer = [
        ByteRange(each, offsets[each], starts[each])
        for each in locations
        if offsets[each] < starts[each]
    ]
    for wanted, begin in zip(longer, files.read(longer), strict=True):
        tails[wanted.location] = begin + tails[wanted.location]
        starts[wanted.location] = wanted.start
    return [
        offsets[each].to_bytes(_SIZE, "little")
        + without_headers(tails[each][offsets[each] - starts[each] :], offsets[each])
        for each in locations
    ]


def _chunks(location: str, footer: bytes) -> tuple[list[RecordChunk], int]:
    """The chunks of a file that have records, and where the last one ends at most."""
    end = int.from_bytes(footer[:_SIZE], "little")
    try:
        return [each for each in chunks_of(footer[_SIZE:], end) if each.records], end
    except ChunkError as error:
        raise _not_array_record(location, error) from error


def _not_array_record(location: str, error: ChunkError) -> SourceError:
    return SourceError(
        f"{location} can't be opened as ArrayRecord: {error}; it has another format, or "
        "its writer was never closed"
    )
