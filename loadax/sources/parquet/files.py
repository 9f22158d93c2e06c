"""ParquetFiles: row groups of local and remote Parquet files, whose footers are read once."""

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, Protocol, final

import numpy as np
import pyarrow as pa
from pyarrow import parquet as pq
from pyarrow.types import is_primitive as is_fixed_width

from loadax.core.memory import check_fits
from loadax.core.threads import thread_pool
from loadax.errors import SourceError
from loadax.protocols import Location
from loadax.sources.io.byte_ranges import ByteRange, changed
from loadax.sources.io.cached_files import CachedFiles
from loadax.sources.io.disk_cache import DiskCache
from loadax.sources.io.files import Files
from loadax.sources.io.paths import local_path
from loadax.sources.io.range_file import RangeFile

_TAIL = 64 << 10  # last bytes of a remote file, which contain most footers
_END = 8  # length of the footer, and "PAR1"
_OPEN = 32  # files that are kept open, and footers that are kept parsed
_TOGETHER = 256 << 20  # bytes that are requested of servers at a time
_THREADS = 8  # files that are opened at a time


class Reads(Protocol):
    """Reader of byte ranges."""

    def read(self, ranges: Sequence[ByteRange]) -> list[bytes]: ...


class Footer(NamedTuple):
    """What a footer says.

    Args:
        schema: Arrow schema of the file.
        rows: Rows of each row group.
        sizes: Bytes of each row group, decoded.
        remote: Bytes of the footer of a remote file; None for a local file.
    """

    schema: Any
    rows: list[int]
    sizes: list[int]
    remote: bytes | None


class RowGroup(NamedTuple):
    """A row group.

    Args:
        file: Index of its file.
        number: Index in the file.
        first_row: Row of the file that is its first.
        rows: Number of rows.
        size: Bytes, decoded.
    """

    file: int
    number: int
    first_row: int
    rows: int
    size: int


@final
class ParquetFiles:
    """Parquet files and their row groups. Thread-safe; pickles with the footers.

    Args:
        locations: Paths and URLs.
        files: Reader of their bytes.
        cache: Local cache of remote bytes; None: no cache.

    Raises:
        SourceError: When a file is missing, or is not Parquet; names it.
    """

    def __init__(self, locations: Sequence[str], files: Files, cache: DiskCache | None = None):
        self.locations = list(locations)
        self._sizes = files.sizes(self.locations)
        far = [location for location in self.locations if local_path(location) is None]
        extents = dict(zip(self.locations, self._sizes, strict=True))
        self._files: Reads = files if cache is None or not far else CachedFiles(files, cache, extents)
        self.far = bool(far)
        self._stamps = [
            None if local_path(location) is None else self._stamp(file) for file, location in enumerate(self.locations)
        ]
        self._reset()
        tails = dict(zip(far, self._tails(far, extents), strict=True))
        with thread_pool(_THREADS, "loadax-footers") as pool:
            self._footers = list(pool.map(self._footer, range(len(self.locations)), map(tails.get, self.locations)))
        self.groups = [
            RowGroup(file, index, first, rows, size)
            for file, footer in enumerate(self._footers)
            for index, (first, rows, size) in enumerate(
                zip(accumulate(footer.rows, initial=0), footer.rows, footer.sizes, strict=False)
            )
            if rows
        ]
        """Row groups with rows, in the order of the files."""

    @property
    def schema(self) -> Any:
        """Arrow schema of the first file."""
        return self._footers[0].schema

    def schemas(self) -> Iterator[tuple[str, Any]]:
        """Yields the location and the Arrow schema of each file."""
        for location, footer in zip(self.locations, self._footers, strict=True):
            yield location, footer.schema

    def location(self, group: RowGroup) -> str:
        """Path or URL of the file of a row group."""
        return self.locations[group.file]

    def read(self, groups: Sequence[RowGroup], columns: Sequence[str]) -> Iterator[Any]:
        """Reads columns of row groups, one after the other, as tables; those of remote files are requested together.

        Raises:
            SourceError: When a file has changed or is damaged; names it.
        """
        sizes = [sum(part.stop - part.start for part in self._ranges(group, columns)) for group in groups]
        for wave in waves(sizes, _TOGETHER):
            parts = self._requested(groups[wave], columns)
            for group in groups[wave]:
                self._check_fits(group, columns)
                with self._opened(group.file, parts.get((group.file, group.number), {})) as file:
                    yield file.read_row_group(group.number, columns=list(columns))

    def nulls(self, columns: Sequence[str]) -> Iterator[tuple[str, RowGroup, int]]:
        """Yields each flat column with nulls, a row group with some, and their number, where footers tell."""
        for file, groups in groupby(self.groups, attrgetter("file")):
            metadata = self._metadata(file)
            indices = self._indices(metadata, columns)
            flat = [index for index in indices if metadata.schema.column(index).max_repetition_level == 0]
            for group in groups:
                described = metadata.row_group(group.number)
                for index in flat:
                    statistics = described.column(index).statistics
                    if statistics is not None and statistics.has_null_count and statistics.null_count:
                        yield described.column(index).path_in_schema, group, int(statistics.null_count)

    def locate(self, group: RowGroup) -> Location:
        """Byte range of a row group."""
        metadata = self._metadata(group.file)
        spans = [_span(metadata.row_group(group.number).column(index)) for index in range(metadata.num_columns)]
        first, last = min(span[0] for span in spans), max(span[1] for span in spans) - 1
        return Location(self.location(group), first, last, f"row group {group.number}")

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_idle", "_parsed", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._reset()

    def _reset(self) -> None:
        self._idle: OrderedDict[int, Any] = OrderedDict()  # open local files, by index, last used last
        self._parsed: OrderedDict[int, Any] = OrderedDict()
        self._lock = threading.Lock()

    def _tails(self, locations: Sequence[str], extents: dict[str, int]) -> list[bytes]:
        """The footers of remote files: one request for each, and another one for a footer of more than 64 KiB."""
        starts = [max(0, extents[location] - _TAIL) for location in locations]
        ranges = [ByteRange(*each) for each in zip(locations, starts, map(extents.get, locations), strict=True)]  # type: ignore[arg-type]
        tails = self._files.read(ranges)
        long = [index for index, tail in enumerate(tails) if _footer_size(tail) > len(tail)]
        longer = [
            ByteRange(locations[index], max(0, extents[locations[index]] - _footer_size(tails[index])), starts[index])
            for index in long
        ]
        for index, begin in zip(long, self._files.read(longer), strict=True):
            tails[index] = begin + tails[index]
        return [tail[-_footer_size(tail) :] for tail in tails]

    def _footer(self, file: int, tail: bytes | None) -> Footer:
        with self._named(file):
            if tail is None:
                opened = pq.ParquetFile(self._local(file))
                metadata, schema = opened.metadata, opened.schema_arrow
                opened.close()
            else:
                metadata = pq.read_metadata(pa.BufferReader(tail))
                schema = metadata.schema.to_arrow_schema()
        groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
        with self._lock:
            self._remember(self._parsed, file, metadata)
        return Footer(schema, [group.num_rows for group in groups], [group.total_byte_size for group in groups], tail)

    def _metadata(self, file: int) -> Any:
        with self._lock:
            metadata = self._parsed.get(file)
        if metadata is None:
            footer = self._footers[file]
            with self._named(file):
                metadata = pq.read_metadata(
                    self._local(file) if footer.remote is None else pa.BufferReader(footer.remote)
                )
            rows = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
            if rows != footer.rows:
                raise changed(self.locations[file])
            with self._lock:
                self._remember(self._parsed, file, metadata)
        return metadata

    @contextmanager
    def _opened(self, file: int, parts: dict[int, bytes]) -> Iterator[Any]:
        """A reader that no other thread uses, since pyarrow's have a position."""
        location, metadata = self.locations[file], self._metadata(file)
        if self._footers[file].remote is not None:

            def fetch(start: int, stop: int) -> bytes:
                return self._files.read([ByteRange(location, start, stop)])[0]

            source = pa.PythonFile(RangeFile(self._sizes[file], parts, fetch), mode="r")
            with self._named(file):
                yield pq.ParquetFile(source, metadata=metadata, page_checksum_verification=True)
            return
        with self._lock:
            reader = self._idle.pop(file, None)
        with self._named(file):
            if self._stamp(file) != self._stamps[file]:
                raise changed(location)
            if reader is None:
                reader = pq.ParquetFile(self._local(file), metadata=metadata, page_checksum_verification=True)
            yield reader
        with self._lock:
            self._remember(self._idle, file, reader)

    def _requested(self, groups: Sequence[RowGroup], columns: Sequence[str]) -> dict[tuple[int, int], dict[int, bytes]]:
        """The bytes of column chunks of remote row groups, by file, number and offset, in one round of requests."""
        wanted = [(group, part) for group in groups for part in self._ranges(group, columns)]
        contents = self._files.read([part for _, part in wanted]) if wanted else []
        parts: dict[tuple[int, int], dict[int, bytes]] = {}
        for (group, part), content in zip(wanted, contents, strict=True):
            parts.setdefault((group.file, group.number), {})[part.start] = content
        return parts

    def _ranges(self, group: RowGroup, columns: Sequence[str]) -> list[ByteRange]:
        """Byte ranges of column chunks of a row group; none for a local file."""
        if self._footers[group.file].remote is None:
            return []
        metadata = self._metadata(group.file)
        chunks = metadata.row_group(group.number)
        spans = [_span(chunks.column(index)) for index in self._indices(metadata, columns)]
        return [ByteRange(self.location(group), start, stop) for start, stop in spans]

    def _check_fits(self, group: RowGroup, columns: Sequence[str]) -> None:
        """Refuses a row group that is larger than memory: by its pages, or by its rows, which may be all the same."""
        fields = [field.type for field in self._footers[group.file].schema if field.name in columns]
        rows = group.rows * sum(field.bit_width // 8 for field in fields if is_fixed_width(field))
        check_fits(
            max(group.size if len(columns) == len(self._footers[group.file].schema) else 0, rows),
            f"{self.location(group)}: row group {group.number}",
            "if it is right, write the file again with smaller row groups: pyarrow.parquet.write_table(table, path, "
            "row_group_size=100_000)",
        )

    def _indices(self, metadata: Any, columns: Sequence[str]) -> list[int]:
        """Indices of the leaves of columns, or of members of columns, among all leaves of a file."""
        wanted = set(columns)
        paths = [metadata.schema.column(index).path.split(".") for index in range(metadata.num_columns)]
        return [
            index
            for index, path in enumerate(paths)
            if any(".".join(path[:depth]) in wanted for depth in range(1, len(path) + 1))
        ]

    def _stamp(self, file: int) -> tuple[int, int]:
        """Size and time of the last change of a local file: another one may have its size, and its row groups."""
        status = Path(self._local(file)).stat()
        return status.st_size, status.st_mtime_ns

    def _local(self, file: int) -> str:
        return str(local_path(self.locations[file]))

    @contextmanager
    def _named(self, file: int) -> Iterator[None]:
        """Names the file in pyarrow's errors."""
        try:
            yield
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise SourceError(
                f"{self.locations[file]}: the file can't be read as Parquet: {error}; copy it again, or write it again"
            ) from error

    def _remember(self, kept: OrderedDict[int, Any], file: int, value: Any) -> None:
        kept[file] = value
        kept.move_to_end(file)
        while len(kept) > _OPEN:
            _, dropped = kept.popitem(last=False)
            if kept is self._idle:
                dropped.close()


def waves(sizes: Sequence[int], most: int) -> Iterator[slice]:
    """Cuts parts of these sizes into runs of at most `most`, of at least one part each.

    Examples:
        >>> from loadax.sources.parquet.files import waves
        >>> list(waves([3, 4, 9, 1], 8))
        [slice(0, 2, None), slice(2, 3, None), slice(3, 4, None)]
    """
    first, total = 0, 0
    for position, size in enumerate(sizes):
        total += size
        if total > most and position > first:
            yield slice(first, position)
            first, total = position, size
    if len(sizes) > first:
        yield slice(first, len(sizes))


def _footer_size(tail: bytes) -> int:
    """Bytes of a footer, by its last eight."""
    if len(tail) < _END or tail[-4:] != b"PAR1":
        return _END
    return int(np.frombuffer(tail[-_END:-4], "<u4")[0]) + _END


def _span(chunk: Any) -> tuple[int, int]:
    """First byte of a column chunk, and the one behind its last."""
    start = chunk.data_page_offset
    if chunk.has_dictionary_page and chunk.dictionary_page_offset:
        start = min(start, chunk.dictionary_page_offset)
    return start, start + chunk.total_compressed_size
