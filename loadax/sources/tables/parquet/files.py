"""ParquetFiles: row groups of local and remote Parquet files, whose footers are read once."""

import os
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import accumulate, chain, groupby, product
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import pyarrow as pa
from pyarrow import parquet as pq
from pyarrow.types import is_primitive as is_fixed_width

from loadax.core.memory import check_fits
from loadax.core.threads import thread_pool
from loadax.errors import SourceError
from loadax.protocols import Location
from loadax.sources.io.byte_ranges import ByteRange, changed, waves
from loadax.sources.io.disk_cache import CachedFiles
from loadax.sources.io.files import Files
from loadax.sources.io.paths import local_path
from loadax.sources.io.range_file import RangeFile

_TAIL = 64 << 10  # last bytes of a remote file, which contain most footers
_END = 8  # length of the footer, and "PAR1"
_OPEN = 32  # files that are kept open, and footers that are kept parsed
_TOGETHER = 256 << 20  # bytes that are requested of servers at a time
_THREADS = 8  # files that are opened at a time
_ALIKE = 8  # schemas that one is compared with

# Name of a column, and of the member of each struct below it: names may contain dots.
Names = tuple[str, ...]


class Footer(NamedTuple):
    """What a footer says.

    Args:
        schema: Arrow schema of the file; files of equal schemas share one.
        leaves: Indices of the file's leaves in each column, and in each member of a struct; shared likewise.
        encrypted: Indices of the encrypted ones.
        rows: Rows of each row group.
        sizes: Bytes of each row group, decoded.
        remote: Bytes of the footer of a remote file; None for a local file.
    """

    schema: Any
    leaves: Mapping[Names, Sequence[int]]
    encrypted: frozenset[int]
    rows: list[int]
    sizes: list[int]
    remote: bytes | None

    def groups(self, file: int) -> "Iterator[RowGroup]":
        """Yields the row groups with rows; `file` is the index of the file."""
        spans = zip(accumulate(self.rows, initial=0), self.rows, self.sizes, strict=False)
        return (RowGroup(file, index, *span) for index, span in enumerate(spans) if span[1])


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
        partitions: Columns that are not in the files: of each an Arrow array with the value of each file.

    Raises:
        SourceError: When a file is missing, or is not Parquet; names it.
    """

    def __init__(self, locations: Sequence[str], files: Files, partitions: Mapping[str, Any]):
        self.locations, self.partitions = list(locations), partitions
        self._sizes = files.sizes(self.locations)
        far = [location for location in self.locations if local_path(location) is None]
        extents = dict(zip(self.locations, self._sizes, strict=True))
        self._files: Files | CachedFiles = files if files.cache is None or not far else CachedFiles(files, extents)
        self.far = bool(far)
        self._stamps = [
            None if local_path(location) is None else self._stamp(file) for file, location in enumerate(self.locations)
        ]
        self._reset()
        tails = dict(zip(far, self._tails(far, extents), strict=True))
        with thread_pool(_THREADS, "loadax-footers") as pool:
            read = pool.map(partial(self._footer, files), range(len(self.locations)), map(tails.get, self.locations))
            self._footers = list(_sharing(read))
        # Row groups with rows, in the order of the files.
        self.groups = [group for file, footer in enumerate(self._footers) for group in footer.groups(file)]

    def schemas(self) -> Iterator[tuple[str, Any]]:
        """Yields each Arrow schema of files with rows, with the location of the first; without rows, the first file's.

        Their fields are those of the files and of the partitions, which take the place of columns of their names.
        """
        added = [pa.field(name, values.type) for name, values in self.partitions.items()]
        seen: set[int] = set()
        for location, footer in zip(self.locations, self._footers, strict=True):
            if id(footer.schema) not in seen and (any(footer.rows) or not (self.groups or seen)):
                seen.add(id(footer.schema))
                fields = (field for field in footer.schema if field.name not in self.partitions)
                yield location, pa.schema([*fields, *added]) if added else footer.schema

    def encrypted(self) -> Iterator[tuple[str, set[str]]]:
        """Yields the location of each file with encrypted columns, and their names."""
        for location, footer in zip(self.locations, self._footers, strict=True):
            if footer.encrypted:
                yield location, {names[0] for names, leaves in footer.leaves.items() if footer.encrypted & {*leaves}}

    def location(self, group: RowGroup) -> str:
        """Path or URL of the file of a row group."""
        return self.locations[group.file]

    def read(self, groups: Sequence[RowGroup], columns: Sequence[Names]) -> Iterator[Any]:
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
                    # Not by names, which pyarrow takes for those of members too.
                    table = file.reader.read_row_group(group.number, column_indices=self._indices(group.file, columns))
                yield self._with_partitions(table, group, columns)

    def _with_partitions(self, table: Any, group: RowGroup, columns: Sequence[Names]) -> Any:
        added = [names[0] for names in columns if names[0] in self.partitions]
        if not added:
            return table
        places = pa.array(np.full(group.rows, group.file))
        arrays = [*table.columns, *(self.partitions[name].take(places) for name in added)]
        return pa.table(arrays, [*table.column_names, *added])

    def nulls(self, columns: Sequence[Names]) -> Iterator[tuple[Names, RowGroup, int]]:
        """Yields each flat column with nulls, a row group with some, and their number, where footers tell."""
        for file, groups in groupby(self.groups, attrgetter("file")):
            metadata = self._metadata(file)
            leaves = [(names, index) for names in columns for index in self._leaves(file, names)]
            flat = [leaf for leaf in leaves if metadata.schema.column(leaf[1]).max_repetition_level == 0]
            empty = [(name,) for name, values in self.partitions.items() if not values[file].is_valid]
            for group in groups:
                described = metadata.row_group(group.number)
                yield from ((names, group, group.rows) for names in empty if names in columns)
                for names, index in flat:
                    statistics = described.column(index).statistics
                    if statistics is not None and statistics.has_null_count and statistics.null_count:
                        yield names, group, int(statistics.null_count)

    def locate(self, group: RowGroup) -> Location:
        """Byte range of a row group."""
        metadata = self._metadata(group.file)
        chunks, encrypted = metadata.row_group(group.number), self._footers[group.file].encrypted
        spans = [_span(chunks.column(index)) for index in range(metadata.num_columns) if index not in encrypted]
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
        begins = [max(0, extents[locations[index]] - _footer_size(tails[index])) for index in long]
        longer = [ByteRange(locations[index], begin, starts[index]) for index, begin in zip(long, begins, strict=True)]
        for index, begin in zip(long, self._files.read(longer), strict=True):
            tails[index] = begin + tails[index]
        return [tail[-_footer_size(tail) :] for tail in tails]

    def _footer(self, files: Files, file: int, tail: bytes | None) -> Footer:
        location, size = self.locations[file], self._sizes[file]
        with self._named(file):
            opened = _reader(self._local(file) if tail is None else pa.BufferReader(tail))
            metadata, schema = opened.metadata, opened.schema_arrow
            opened.close(force=True)
        end = files.read([ByteRange(location, size - _END, size)])[0] if tail is None else tail
        # Only footers with encrypted columns are followed by a signature.
        signed = _footer_size(end) - _END > metadata.serialized_size
        groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
        with self._lock:
            self._remember(self._parsed, file, metadata)
        rows, sizes = [group.num_rows for group in groups], [group.total_byte_size for group in groups]
        return Footer(schema, {}, _encrypted(metadata) if signed else frozenset(), rows, sizes, tail)

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
                yield _reader(source, metadata)
            return
        with self._lock:
            reader = self._idle.pop(file, None)
        with self._named(file):
            if self._stamp(file) != self._stamps[file]:
                raise changed(location)
            if reader is None:
                reader = _reader(self._local(file), metadata)
            yield reader
        with self._lock:
            self._remember(self._idle, file, reader)

    def _requested(
        self, groups: Sequence[RowGroup], columns: Sequence[Names]
    ) -> dict[tuple[int, int], dict[int, bytes]]:
        """The bytes of column chunks of remote row groups, by file, number and offset, in one round of requests."""
        wanted = [(group, part) for group in groups for part in self._ranges(group, columns)]
        contents = self._files.read([part for _, part in wanted]) if wanted else []
        parts: dict[tuple[int, int], dict[int, bytes]] = {}
        for (group, part), content in zip(wanted, contents, strict=True):
            parts.setdefault((group.file, group.number), {})[part.start] = content
        return parts

    def _ranges(self, group: RowGroup, columns: Sequence[Names]) -> list[ByteRange]:
        """Byte ranges of column chunks of a row group; none for a local file."""
        if self._footers[group.file].remote is None:
            return []
        chunks = self._metadata(group.file).row_group(group.number)
        spans = [_span(chunks.column(index)) for index in self._indices(group.file, columns)]
        return [ByteRange(self.location(group), start, stop) for start, stop in spans]

    def _check_fits(self, group: RowGroup, columns: Sequence[Names]) -> None:
        """Refuses a row group that is larger than memory: by its pages, or by its rows, which may be all the same."""
        schema = self._footers[group.file].schema
        fields = [schema.field(name).type for name in {names[0] for names in columns} - self.partitions.keys()]
        rows = group.rows * sum(field.bit_width // 8 for field in fields if is_fixed_width(field))
        check_fits(
            max(group.size if len(fields) == len(schema) else 0, rows),
            f"{self.location(group)}: row group {group.number}",
            "if it is right, write the file again with smaller row groups: pyarrow.parquet.write_table(table, path, "
            "row_group_size=100_000)",
        )

    def _indices(self, file: int, columns: Sequence[Names]) -> list[int]:
        """Indices of the leaves of columns, or of members of columns, among all leaves of a file."""
        return sorted({index for names in columns for index in self._leaves(file, names)})

    def _leaves(self, file: int, names: Names) -> Sequence[int]:
        leaves = self._footers[file].leaves
        if names in leaves or names[0] in self.partitions:
            return () if names[0] in self.partitions else leaves[names]
        return self._leaves(file, names[:-1])  # a struct of nothing but nulls may have no members

    def _stamp(self, file: int) -> tuple[int, int]:
        """Size and time of the last change of a local file: another one may have its size, and its row groups."""
        status = Path(str(local_path(self.locations[file]))).stat()
        return status.st_size, status.st_mtime_ns

    def _local(self, file: int) -> Any:
        """A local file, open; by bytes, since names need not be UTF-8."""
        return pa.OSFile(os.fsencode(str(local_path(self.locations[file]))))

    @contextmanager
    def _named(self, file: int) -> Iterator[None]:
        """Names the file in pyarrow's errors."""
        try:
            yield
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            location = self.locations[file]
            if "crypt" in str(error).replace(location, ""):
                raise SourceError(encrypted_text(location, "the file is")) from error
            raise SourceError(
                f"{location}: the file can't be read as Parquet: {error}; copy it again, or write it again"
            ) from error

    def _remember(self, kept: OrderedDict[int, Any], file: int, value: Any) -> None:
        kept[file] = value
        kept.move_to_end(file)
        while len(kept) > _OPEN:
            _, dropped = kept.popitem(last=False)
            if kept is self._idle:
                dropped.close(force=True)


def encrypted_text(location: str, what: str) -> str:
    """The message for an encrypted file, or columns of one."""
    return (
        f"{location}: {what} encrypted, and loadax has no keys; let pyarrow decrypt it: loadax.from_arrow("
        f"pyarrow.parquet.read_table({location!r}, decryption_properties=…))"
    )


def _encrypted(metadata: Any) -> frozenset[int]:
    """Indices of the encrypted leaves. Asked for their metadata, pyarrow ends the process; reads of them raise."""

    def unread(start: int, stop: int) -> bytes:
        raise OSError(f"bytes {start} to {stop} are not read")

    reader, found = _reader(pa.PythonFile(RangeFile(1 << 62, {}, unread), mode="r"), metadata).reader, set()
    for group, index in product(range(metadata.num_row_groups), range(metadata.num_columns)):
        try:
            reader.read_row_group(group, column_indices=[index])
        except (pa.ArrowException, OSError) as error:
            found.update([index] if "crypt" in str(error) else [])
    return frozenset(found)


def _reader(source: Any, metadata: Any = None) -> Any:
    # INT96 times of the years 1 to 9999 fit in microseconds, and not in nanoseconds.
    return pq.ParquetFile(source, metadata=metadata, coerce_int96_timestamp_unit="us", page_checksum_verification=True)


def _sharing(footers: Iterable[Footer]) -> Iterator[Footer]:
    """Yields the footers with their leaves; those of equal schemas share them."""
    known: list[Footer] = []
    for footer in footers:
        same = next((each for each in known[-_ALIKE:] if each.schema.equals(footer.schema)), None)
        if same is None:
            leaves: dict[Names, list[int]] = {}  # which Parquet names by joined names
            below = chain.from_iterable(_leaves_below(field.type, (field.name,)) for field in footer.schema)
            for index, names in enumerate(below):
                for depth in range(1, len(names) + 1):
                    leaves.setdefault(names[:depth], []).append(index)
            same = footer._replace(leaves=leaves)
            known.append(same)
        yield footer._replace(schema=same.schema, leaves=same.leaves)


def _leaves_below(kind: Any, names: Names) -> Iterator[Names]:
    if pa.types.is_struct(kind):
        for field in kind:
            yield from _leaves_below(field.type, (*names, field.name))
    else:
        yield from [names] * _width(kind)


def _width(kind: Any) -> int:
    """Number of Parquet's leaves of an Arrow type."""
    if isinstance(kind, pa.BaseExtensionType):
        return _width(kind.storage_type)
    return sum(_width(kind.field(index).type) for index in range(kind.num_fields)) or 1


def _footer_size(tail: bytes) -> int:
    """Bytes of a footer, by its last eight."""
    if len(tail) < _END or tail[-4:] not in (b"PAR1", b"PARE"):  # of which the latter is encrypted
        return _END
    return int(np.frombuffer(tail[-_END:-4], "<u4")[0]) + _END


def _span(chunk: Any) -> tuple[int, int]:
    """First byte of a column chunk, and the one after its last."""
    start = chunk.data_page_offset
    if chunk.has_dictionary_page and chunk.dictionary_page_offset:
        start = min(start, chunk.dictionary_page_offset)
    return start, start + chunk.total_compressed_size
