"""Opens ArrayRecord files, whose records are bytes, or arrays of one dtype, padded or equally long."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, final

import numpy as np

from loadax.core.arguments import dtype as checked_dtype
from loadax.core.casting import fill_value
from loadax.core.formatting import count_text, with_article
from loadax.errors import ArgumentError, LeafError, SourceError
from loadax.files.files import Files
from loadax.protocols import (
    Array,
    ArraySpec,
    Boxes,
    Integers,
    Location,
    Outputs,
    Source,
    Tree,
    Visits,
)
from loadax.sources.array_record.format import FORMAT
from loadax.sources.array_record.record_files import (
    RecordFiles,
    check_records,
    open_record_files,
)
from loadax.sources.base import BaseSource, Traits
from loadax.sources.checks import read_columns
from loadax.sources.expand import expand
from loadax.sources.shards.records import objects

if TYPE_CHECKING:
    from loadax.files.byte_ranges import KnownFiles
    from loadax.files.metadata import Metadata
    from loadax.files.remote_ranges import Wanted
    from loadax.sources.array_record.ranged import RangedRecords

DATA = "data"
LENGTH = "length"
_LENGTH_DTYPE = np.dtype(np.int32)


class _Records(BaseSource):
    """Records of files."""

    spec: Tree = None
    chunks: Integers | None = None
    addresses: Sequence[str] = ()

    def __init__(self, files: "RecordFiles | RangedRecords"):
        self._files = files
        self.addresses = [file.path for file in files.files]
        if not isinstance(files, RecordFiles):  # they wait for the network
            self.traits = self.traits._replace(concurrent_reads=4)

    def __len__(self) -> int:
        return len(self._files)

    @property
    def groups(self) -> Integers:
        """First rows of the files that have some."""
        return self._files.first_records

    @property
    def known_files(self) -> "KnownFiles":
        return self._files.known_files

    def locate(self, row: int) -> list[Location]:
        return self._files.locate(row)

    def wanted(self, visits: Visits) -> "list[Wanted]":
        if isinstance(self._files, RecordFiles):
            return []
        return self._files.wanted(visits.rows)


@final
class PaddedRecords(_Records):
    """Records that are arrays of any length, padded: `{"data": dtype[pad_to], "length": int32}`, or the data alone.

    Args:
        files: Files of the records.
        dtype: Stored dtype of the entries.
        pad: The `Pad` whose arguments say how.
    """

    traits = Traits(owns_memory=True, reads_columns=True)

    def __init__(
        self, files: "RecordFiles | RangedRecords", dtype: np.dtype[Any], pad: Any
    ):
        super().__init__(files)
        self._dtype = dtype
        self._left = pad.left
        self._truncate = pad.function.truncate
        self._pad_to = pad.function.lengths
        self._value = fill_value(DATA, pad.function.value, dtype)
        data = ArraySpec((self._pad_to,), dtype.newbyteorder("="))
        if pad.add_lengths:
            self.spec = {DATA: data, LENGTH: ArraySpec((), _LENGTH_DTYPE)}
        else:
            self.spec = data
        self.chunks = files.chunks
        self.described = [["pad", "left"]] * self._left

    def __repr__(self) -> str:
        return (
            f"{self._files!r}, padded to {self._pad_to}{' on the left' * self._left}"
        )

    read = read_columns

    def read_into(self, rows: Integers, boxes: Boxes, out: Outputs) -> None:
        data, length = (*out, None)[:2]
        if data is None and length is None:
            return
        records = self._files.read(rows)
        lengths = _entries(records, self._dtype, rows, self._files)
        if not self._truncate and len(rows) and lengths.max() > self._pad_to:
            worst = int(np.argmax(lengths))
            raise LeafError(
                f"{self._files.name(int(rows[worst]))} has "
                f"{count_text(lengths[worst], 'entry', 'entries')}, more than "
                f"{self._pad_to}, the length of padded rows; pass a larger length, "
                "or truncate=True to drop the excess entries"
            )
        if length is not None:
            length[...] = np.minimum(lengths, self._pad_to)
        if data is not None:
            assert boxes[0] is not None
            (start, stop) = boxes[0][0]
            self._pad(records, start, stop, data)

    def _pad(self, records: list[bytes], start: int, stop: int, data: Array) -> None:
        """Writes the entries `[start, stop)` of each record to `data`, padded with zeros."""
        straight = data.flags.c_contiguous and self._dtype.isnative
        if straight:
            room = data
        else:
            room = np.empty(data.shape, self._dtype)
        if room.size:
            # As bytes through a memoryview: one copy per record, without NumPy's larger overhead.
            room.fill(self._value)
            target: Any = room.view(np.uint8).reshape(-1)
            view = memoryview(target)
            size = self._dtype.itemsize
            first = start * size
            last = stop * size
            width = (stop - start) * size
            for offset, record in zip(
                range(0, len(view), width), records, strict=True
            ):
                if self._left:
                    before = self._pad_to * size - len(record)
                    part = record[max(0, first - before) : max(0, last - before)]
                    view[offset + width - len(part) : offset + width] = part
                    continue
                if first == 0 and len(record) <= last:
                    part = record
                else:
                    part = record[first:last]
                view[offset : offset + len(part)] = part
        if not straight:
            data[...] = room


@final
class RecordSource(_Records):
    """Records as `bytes`, for a map to decode, or as arrays: equally long where they are stacked, else of any length.

    Args:
        files: Files of the records.
        dtype: Stored dtype of the entries; None: rows are `bytes`.
    """

    traits = Traits(owns_memory=True, reads_examples=True)

    def __init__(
        self, files: "RecordFiles | RangedRecords", dtype: np.dtype[Any] | None
    ):
        super().__init__(files)
        self._dtype = dtype
        if dtype is None:
            self.spec = ArraySpec((), np.dtype(object))
        else:  # `bytes` have no chunks, because the chunk cache holds only numbers
            self.chunks = files.chunks

    def __repr__(self) -> str:
        return repr(self._files)

    def padded(self, pad: Any) -> PaddedRecords | None:
        if self._dtype is None or not isinstance(pad.function.lengths, int):
            return None
        return PaddedRecords(self._files, self._dtype, pad)

    def read(self, rows: Integers) -> Array:
        """Reads the examples at `rows`; arrays must be equally long."""
        records = self._files.read(rows)
        if self._dtype is None:
            return objects(records)
        if not len(rows):
            return self.read(np.zeros(1, np.int64))[:0]
        lengths = _entries(records, self._dtype, rows, self._files)
        expected = lengths[0]
        wrong = np.flatnonzero(lengths != expected)
        if len(wrong):
            row = int(rows[wrong[0]])
            raise LeafError(
                f"{self._files.name(row)} has "
                f"{count_text(lengths[wrong[0]], 'entry', 'entries')} and row "
                f"{rows[0]} has {expected}: the rows are ragged; pad them with "
                ".pad(length), crop them in a map, or pack them with .pack(seq_len)"
            )
        flat = np.frombuffer(b"".join(records), self._dtype).reshape(
            len(rows), expected
        )
        return flat.astype(self._dtype.newbyteorder("="))

    def read_examples(self, visits: Visits) -> list[Tree]:
        records = self._files.read(visits.rows)
        if self._dtype is None:
            return list(records)
        _entries(records, self._dtype, visits.rows, self._files)
        return [
            np.frombuffer(record, self._dtype).astype(self._dtype.newbyteorder("="))
            for record in records
        ]


def _entries(
    records: list[bytes],
    dtype: np.dtype[Any],
    rows: Integers,
    files: "RecordFiles | RangedRecords",
) -> Integers:
    """Number of entries of each record, int64[n]."""
    sizes = np.fromiter(map(len, records), np.int64, len(records))
    lengths, left = np.divmod(sizes, dtype.itemsize)
    if left.any():
        wrong = int(np.flatnonzero(left)[0])
        raise SourceError(
            f"{files.name(int(rows[wrong]))} has "
            f"{count_text(sizes[wrong], 'byte')}, not a multiple of "
            f"{dtype.itemsize}, the size of {with_article(str(dtype))} entry; check "
            "dtype=, or decode the records in a map if they are encoded"
        )
    return lengths


def open_array_record(
    paths: Any, *, dtype: Any = None, metadata: "Metadata | None" = None
) -> Source:
    """Opens ArrayRecord files; see `loadax.from_array_record`.

    Raises:
        ArgumentError: When an argument is invalid.
        SourceError: When a file is missing, has another format, or has no records; names it.
        UnsupportedError: When `array_record` is not installed.
    """
    if dtype is None:
        entries = None
    else:
        entries = _dtype(dtype)
    files = Files(None, metadata)
    locations = expand(paths, FORMAT, files)
    for path, size in zip(locations, files.sizes(locations), strict=True):
        if not size:
            raise SourceError(
                f"{path}: the file is empty (an ArrayRecord file without records is "
                "not); write it again"
            )
    if not files.far(locations):
        return RecordSource(open_record_files(locations), entries)
    from loadax.sources.array_record.ranged import RangedRecords

    ranged = RangedRecords(locations, files)
    check_records(ranged.files)
    return RecordSource(ranged, entries)


def _dtype(value: Any) -> np.dtype[Any]:
    dtype = checked_dtype("dtype", value)
    if (
        dtype.hasobject
        or not dtype.itemsize
        or dtype.kind in "SUmM"
        or dtype.fields is not None
    ):
        raise ArgumentError(
            f"dtype={value!r} is {dtype}, but entries are numbers; pass 'uint16' or "
            "another numeric dtype, or decode the bytes in a map"
        )
    return dtype
