"""RecordFiles: reads any rows of any number of ArrayRecord files through the format's own reader."""

import os
import re
import resource
from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, final

import numpy as np

from loadax.core.formatting import some
from loadax.core.threads import thread_pool
from loadax.errors import SourceError
from loadax.protocols import Integers, Location
from loadax.sources.checks import check_rows

if TYPE_CHECKING:
    from loadax.files.byte_ranges import KnownFiles

# recommended by the reader for random access
_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"
_TRIED = 8  # spans that are timed to tell whether the files are slow
SLOW = 200e-6  # seconds per span: a local file takes a hundredth, a remote one more
SCAN = 2e-9  # seconds per chunk of the file: overhead of one call for many records
_OPENERS = 8


class RecordFile(NamedTuple):
    """A file: its path, number of records, and number of records per chunk (`group_size`)."""

    path: str
    records: int
    group: int


class _Span(NamedTuple):
    """Records `[low, high)` of a file, all in one chunk."""

    file: int
    low: int
    high: int


@final
class RecordFiles:
    """The records of a sequence of files. Thread-safe; pickles as the list of files.

    Files are opened on first use; half of the process's open-file limit stay open, those that were used last.

    Args:
        files: Files, at least one.
    """

    def __init__(self, files: Sequence[RecordFile]):
        self.files = tuple(files)
        self.known_files: KnownFiles = {}  # none is remote
        self._ends = np.cumsum([file.records for file in self.files], dtype=np.int64)
        self._begins = self._ends - [file.records for file in self.files]
        self._groups = np.array([file.group for file in self.files], np.int64)
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if limit == resource.RLIM_INFINITY:
            most = 1 << 20
        else:
            most = max(1, limit // 2)
        paths = [file.path for file in self.files]
        # One that is dropped is closed when the last thread that reads from it drops its reference.
        self._reader = lru_cache(most)(lambda index: _open(paths[index]))

    def __reduce__(self) -> tuple[Any, ...]:
        return RecordFiles, (self.files,)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __repr__(self) -> str:
        if len(self.files) == 1:
            return "an ArrayRecord file"
        return f"{len(self.files)} ArrayRecord files"

    @property
    def first_records(self) -> Integers:
        """First record of each file that has some, int64[files]."""
        begins = np.asarray(self._begins, np.int64)
        return begins[self._ends > begins]

    @property
    def chunks(self) -> Integers | None:
        """First rows of the chunks; None if every record is a chunk."""
        if (self._groups == 1).all():
            return None
        files = zip(self._begins, self.files, strict=True)
        parts = [
            np.arange(begin, begin + file.records, file.group)
            for begin, file in files
        ]
        return np.concatenate(parts).astype(np.int64)

    def locate(self, row: int) -> list[Location]:
        """File of a row, and its record number in the file."""
        index, record = self._place(row)
        return [Location(self.files[index].path, part=f"record {record}")]

    def name(self, row: int) -> str:
        """Name of a row in error messages."""
        index, record = self._place(row)
        return f"row {row} ({self.files[index].path}, record {record})"

    def read(self, rows: Integers) -> list[bytes]:
        """Reads the records at `rows`, in any order, repeats allowed.

        Raises:
            SourceError: When a record can't be read; names the file and the record.
        """
        rows = check_rows(rows, len(self))
        if not len(rows):
            return []
        order = np.argsort(rows, kind="stable")
        ascending = rows[order]
        file = np.searchsorted(self._ends, ascending, side="right")
        record = ascending - self._begins[file]
        chunk = record // self._groups[file]
        first = np.ones(len(rows), bool)
        first[1:] = (np.diff(file) != 0) | (np.diff(chunk) != 0)
        starts = np.flatnonzero(first)
        low = record[starts]
        high = record[np.append(starts[1:], len(rows)) - 1] + 1
        records = self._read_spans(
            list(map(_Span, file[starts].tolist(), low.tolist(), high.tolist()))
        )
        # number of records before each span
        before = np.cumsum(high - low) - (high - low)
        indices = np.empty(len(rows), np.int64)
        span = np.cumsum(first) - 1
        indices[order] = before[span] + record - low[span]
        return [records[index] for index in indices.tolist()]

    def _read_spans(self, spans: list[_Span]) -> list[bytes]:
        """Reads spans and concatenates their records.

        The reader reads either one span, or any list of records. The latter visits every chunk of the file and runs
        each in a thread: on a local disk it is slower and takes twice the CPU time, on a slow disk it overlaps the
        waits. So the first spans are timed, and only slow files are read by lists.
        """
        began = perf_counter()
        records = self._one_by_one(spans[:_TRIED])
        span_seconds = (perf_counter() - began) / _TRIED
        rest = spans[_TRIED:]
        if span_seconds < SLOW:
            if rest:
                return records + self._one_by_one(rest)
            return records
        for index, group in groupby(rest, key=lambda span: span.file):
            file_spans = list(group)
            known = self.files[index]
            together = (
                span_seconds * len(file_spans) > SCAN * known.records / known.group
            )
            records += (
                self._together(index, file_spans)
                if together
                else self._one_by_one(file_spans)
            )
        return records

    def _one_by_one(self, spans: list[_Span]) -> list[bytes]:
        records: list[bytes] = []
        for index, low, high in spans:
            try:
                records += self._reader(index).read(low, high)
            except (RuntimeError, IndexError) as error:
                if high == low + 1:
                    asked = f"record {low}"
                else:
                    asked = f"records {low} to {high - 1}"
                raise SourceError(
                    f"{self.files[index].path}: {asked} can't be read: {error}; "
                    "the file is damaged or has changed: copy it again"
                ) from error
        return records

    def _together(self, index: int, spans: list[_Span]) -> list[bytes]:
        try:
            records: list[bytes] = self._reader(index).read(
                [record for _, low, high in spans for record in range(low, high)]
            )
        except RuntimeError:
            return self._one_by_one(spans)  # names the damaged record
        return records

    def _place(self, row: int) -> tuple[int, int]:
        row = int(check_rows([row], len(self))[0])
        index = int(np.searchsorted(self._ends, row, side="right"))
        return index, row - int(self._begins[index])


def open_record_files(paths: Sequence[str]) -> RecordFiles:
    """Reads the metadata of files and closes them again.

    Raises:
        SourceError: When a file is not an ArrayRecord file, or no file has a record; names it.
    """
    with thread_pool(min(len(paths), _OPENERS), "loadax-footers") as pool:
        files = list(pool.map(_look_into, paths))
    check_records(files)
    return RecordFiles(files)


def check_records(files: Sequence[RecordFile]) -> None:
    """Refuses files without a single record."""
    if not any(file.records for file in files):
        raise SourceError(
            f"{some([file.path for file in files], 1)} has no records; was its writer "
            "closed too early? Write it again"
        )


def _look_into(path: str) -> RecordFile:
    reader = _open(path)
    group = re.search(r"\bgroup_size:(\d+)", reader.writer_options_string() or "")
    # Files of 2022 and before don't have the option: then every record counts as a chunk, which is always correct.
    return RecordFile(path, reader.num_records(), int(group[1]) if group else 1)


def _open(path: str) -> Any:
    from array_record.python.array_record_module import ArrayRecordReader

    # a name may not be UTF-8
    reader = ArrayRecordReader(os.fsencode(path), options=_OPTIONS)
    if reader.ok():
        return reader
    raise SourceError(
        f"{path} can't be opened as ArrayRecord: it has another format, or its "
        "writer was never closed"
    )
