"""ParquetFiles: row groups of local and remote Parquet files, whose footers are read once."""

import os
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, groupby
from typing import Any, NamedTuple, final

import numpy as np
import pyarrow as pa
from pyarrow import parquet as pq
from pyarrow.types import is_nested, is_primitive as is_fixed_width

from loadax.core.memory import check_fits
from loadax.core.threads import thread_pool
from loadax.errors import SourceError
from loadax.files.byte_ranges import ByteRange, changed, waves
from loadax.files.files import Files, RangeReader
from loadax.files.paths import is_remote
from loadax.files.range_file import RangeFile
from loadax.files.remote_ranges import Wanted
from loadax.protocols import Location
from loadax.sources.tables.arrow.column_layout import arrow_ints

_TAIL = 64 << 10  # last bytes of a remote file, which contain most footers
_END = 8  # length of the footer, and "PAR1"
_OPEN = 32  # files that are kept open, and footers that are kept parsed
TOGETHER = 256 << 20  # bytes that are requested of servers at a time
# bytes of row groups that are decoded at a time, since each call has a cost of its own
JOINED = 16 << 20
_THREADS = 8  # files that are opened at a time
_SOME = 32  # files that a thread opens in turn
_ALIKE = 8  # schemas that one is compared with

# Name of a column, and of the member of each struct below it: names may contain dots.
Names = tuple[str, ...]


class Footer(NamedTuple):
    """Content of a footer.

    Args:
        columns: Columns of the file; files of equal schemas share them.
        nulls: Of each leaf with nulls, where statistics tell: the first row group with some, and their number.
    """

    columns: "FileColumns"
    nulls: Mapping[int, "tuple[RowGroup, int]"]


class FileColumns(NamedTuple):
    """Columns of files of one schema.

    Args:
        schema: Arrow schema.
        leaves: Indices of the files' leaves in each column, and in each member of a struct.
        flat: Indices of those that are no entries of lists, among the columns to read.
    """

    schema: Any
    leaves: Mapping[Names, Sequence[int]]
    flat: Sequence[int]


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


_GROUP = np.dtype([(name, np.int64) for name in RowGroup._fields])


@final
class ParquetFiles:
    """Parquet files and their row groups. Thread-safe; pickles with what the footers say.

    Args:
        locations: Absolute paths, and URLs.
        files: Reader of their bytes.
        partitions: Columns that are not in the files: of each an Arrow array with the value of each file.
        columns: Names of the columns to read; None: all.

    Raises:
        SourceError: When a file is missing, or is not Parquet; names it.
    """

    def __init__(
        self,
        locations: Sequence[str],
        files: Files,
        partitions: Mapping[str, Any],
        columns: Collection[str] | None,
    ):
        self.locations = list(locations)
        self.partitions = partitions
        self.known_files = files.known
        self._infos = files.infos(self.locations)
        far = {
            file: location
            for file, location in enumerate(self.locations)
            if is_remote(location)
        }
        extents = {location: self._infos[file].size for file, location in far.items()}
        self._files: RangeReader = files
        if far and files.cache is not None:
            from loadax.files.disk_cache import CachedFiles

            self._files = CachedFiles(files, extents)
        self.far = bool(far)
        self._reset()
        # bytes of the footers of remote files
        footers = files.recall(
            "footer", list(far.values()), lambda urls: self._tails(urls, extents)
        )
        self._remote = dict(zip(far, footers, strict=True))
        known: list[FileColumns] = []

        def described(first: int) -> list[tuple[Footer, list[RowGroup]]]:
            some = range(first, min(first + _SOME, len(self.locations)))
            return [self._footer(file, columns, known) for file in some]

        with thread_pool(_THREADS, "loadax-footers") as pool:
            found = list(
                chain.from_iterable(
                    pool.map(described, range(0, len(self.locations), _SOME))
                )
            )
        self._footers = [footer for footer, _ in found]
        # Row groups with rows, in the order of the files: `RowGroup`s as a structured array, a tenth of their memory.
        self.groups = np.array(
            list(chain.from_iterable(groups for _, groups in found)), _GROUP
        )

    def group(self, index: int) -> RowGroup:
        """A row group, by its index among those of all files."""
        return RowGroup._make(self.groups[index].item())

    def schemas(self) -> Iterator[tuple[str, Any]]:
        """Yields each Arrow schema of files with rows, with the location of the first; without rows, the first file's.

        Their fields are those of the files and of the partitions, which take the place of columns of their names.
        """
        added = [
            pa.field(name, values.type) for name, values in self.partitions.items()
        ]
        seen: set[int] = set()
        for file in np.unique(self.groups["file"]).tolist() or [0]:
            schema = self._footers[file].columns.schema
            if id(schema) not in seen:
                seen.add(id(schema))
                fields = (
                    field for field in schema if field.name not in self.partitions
                )
                yield (
                    self.locations[file],
                    pa.schema([*fields, *added]) if added else schema,
                )

    def location(self, group: RowGroup) -> str:
        """Path or URL of the file of a row group."""
        return self.locations[group.file]

    def read(
        self, groups: Sequence[RowGroup], columns: Sequence[Names]
    ) -> Iterator[tuple[Sequence[RowGroup], Any]]:
        """Reads columns of row groups, one after the other; those of remote files are requested together.

        Yields a table of each row group, or of several small ones of a file if all columns have a fixed width.

        Raises:
            SourceError: When a file has changed or is damaged; names it.
        """
        sizes = [
            sum(part.stop - part.start for part in self._ranges(group, columns))
            for group in groups
        ]
        for wave in waves(sizes, TOGETHER):
            parts = self._requested(groups[wave], columns)
            for joined in self._joined(groups[wave], columns):
                file = joined[0].file
                numbers = [group.number for group in joined]
                known = [parts.get((file, number), {}) for number in numbers]
                with self._opened(
                    file, dict(chain.from_iterable(map(dict.items, known)))
                ) as reader:
                    # Not by names, which pyarrow takes for those of members too.
                    table = reader.read_row_groups(
                        numbers, column_indices=self._indices(file, columns)
                    )
                yield joined, self._with_partitions(table, file, columns)

    def wanted(self, groups: Sequence[RowGroup], columns: Sequence[Names]) -> Wanted:
        """What `read` will request of remote files."""
        return self._files.wanted(
            [part for group in groups for part in self._ranges(group, columns)],
            once=True,
        )

    def _joined(
        self, groups: Sequence[RowGroup], columns: Sequence[Names]
    ) -> Iterator[Sequence[RowGroup]]:
        """Row groups to decode at a time, of at most 16 MiB; refuses a row group that is larger than memory."""
        for file, neighbours in groupby(groups, lambda group: group.file):
            some = list(neighbours)
            schema = self._footers[file].columns.schema
            fields = [
                schema.field(name).type
                for name in {names[0] for names in columns} - self.partitions.keys()
            ]
            fixed = [field.bit_width for field in fields if is_fixed_width(field)]
            # By its pages, or by its rows, which may be all the same.
            pages = len(fields) == len(schema)
            sizes = [
                max(group.size if pages else 0, group.rows * sum(fixed) // 8)
                for group in some
            ]
            for group, size in zip(some, sizes, strict=True):
                check_fits(
                    size,
                    f"{self.location(group)}: row group {group.number}",
                    "if it is right, write the file again with smaller row groups: "
                    "pyarrow.parquet.write_table(table, path, "
                    "row_group_size=100_000)",
                )
            # Others may have dictionaries of their own, or too many bytes for one array.
            yield from (
                some[cut]
                for cut in waves(sizes, JOINED if len(fixed) == len(fields) else 0)
            )

    def _with_partitions(
        self, table: Any, file: int, columns: Sequence[Names]
    ) -> Any:
        added = [names[0] for names in columns if names[0] in self.partitions]
        if not added:
            return table
        places = arrow_ints(np.full(len(table), file))
        arrays = [
            *table.columns,
            *(self.partitions[name].take(places) for name in added),
        ]
        return pa.table(arrays, [*table.column_names, *added])

    def nulls(
        self, columns: Sequence[Names]
    ) -> Iterator[tuple[Names, RowGroup, int]]:
        """Yields each flat column with nulls, the first row group of a file with some, and their number in the file.

        Of what the footers tell.
        """
        for name, values in self.partitions.items():
            for file in (
                np.flatnonzero(values.is_null()).tolist() if values.null_count else ()
            ):
                groups = self.groups[self.groups["file"] == file]
                if (name,) in columns and len(groups):
                    yield (
                        (name,),
                        RowGroup._make(groups[0].item()),
                        int(groups["rows"].sum()),
                    )
        for file, footer in enumerate(self._footers):
            if footer.nulls:
                leaves = (
                    (names, index)
                    for names in columns
                    for index in self._leaves(file, names)
                )
                yield from (
                    (names, *footer.nulls[index])
                    for names, index in leaves
                    if index in footer.nulls
                )

    def locate(self, group: RowGroup) -> Location:
        """Byte range of a row group."""
        metadata = self._metadata(group.file)
        chunks = metadata.row_group(group.number)
        spans = [_span(chunks.column(index)) for index in range(metadata.num_columns)]
        first = min(span[0] for span in spans)
        last = max(span[1] for span in spans) - 1
        return Location(
            self.location(group), first, last, f"row group {group.number}"
        )

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: value
            for name, value in vars(self).items()
            if name not in ("_idle", "_parsed", "_lock")
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._reset()

    def _reset(self) -> None:
        # open local files, by index, last used last
        self._idle: OrderedDict[int, Any] = OrderedDict()
        self._parsed: OrderedDict[int, Any] = OrderedDict()
        self._lock = threading.Lock()

    def _tails(
        self, locations: Sequence[str], sizes: Mapping[str, int]
    ) -> list[bytes]:
        """The footers of remote files: one request for each, and another one for a footer of more than 64 KiB."""
        ends = [sizes[location] for location in locations]
        starts = [max(0, end - _TAIL) for end in ends]
        tails = self._files.read(list(map(ByteRange, locations, starts, ends)))
        long = [
            index
            for index, tail in enumerate(tails)
            if _footer_size(tail) > len(tail)
        ]
        begins = [max(0, ends[index] - _footer_size(tails[index])) for index in long]
        longer = [
            ByteRange(locations[index], begin, starts[index])
            for index, begin in zip(long, begins, strict=True)
        ]
        for index, begin in zip(long, self._files.read(longer), strict=True):
            tails[index] = begin + tails[index]
        return [tail[-_footer_size(tail) :] for tail in tails]

    def _footer(
        self, file: int, columns: Collection[str] | None, known: list[FileColumns]
    ) -> tuple[Footer, list[RowGroup]]:
        """Content of a footer, and the row groups with rows. `known` gets the columns of each schema."""
        with self._named(file), self._source(file) as source:
            opened = _reader(source)
            metadata = opened.metadata
            source.seek(source.size() - _END)
            # Only footers with encrypted columns are followed by a signature; asked for these, pyarrow ends the process
            if _footer_size(source.read(_END)) - _END > metadata.serialized_size:
                location = self.locations[file]
                others = (
                    f"loadax.from_arrow(pyarrow.parquet.read_table({location!r}, "
                    "columns=[…]))"
                )
                raise SourceError(
                    f"{_encrypted_text(location, 'some columns are')}, or read the "
                    f"others: {others}"
                )
            with self._lock:
                shared = _file_columns(opened.schema_arrow, columns, known)
                self._remember(self._parsed, file, metadata)
            groups = _row_groups(file, metadata)
        return Footer(shared, _nulls(metadata, groups, shared.flat)), groups

    def _metadata(self, file: int) -> Any:
        with self._lock:
            metadata = self._parsed.get(file)
        if metadata is None:
            with self._named(file):
                metadata = _reader(self._source(file)).metadata
                groups = _row_groups(file, metadata)
            first, end = np.searchsorted(self.groups["file"], [file, file + 1])
            if groups != self.groups[first:end].tolist():
                raise changed(self.locations[file])
            with self._lock:
                self._remember(self._parsed, file, metadata)
        return metadata

    @contextmanager
    def _opened(self, file: int, parts: dict[int, bytes]) -> Iterator[Any]:
        """A reader that no other thread uses, since pyarrow's have a position."""
        location = self.locations[file]
        metadata = self._metadata(file)
        if file in self._remote:

            def fetch(start: int, stop: int) -> bytes:
                return self._files.read([ByteRange(location, start, stop)])[0]

            source = pa.PythonFile(
                RangeFile(self._infos[file].size, parts, fetch), mode="r"
            )
            with self._named(file):
                yield _reader(source, metadata)
            return
        with self._lock:
            reader = self._idle.pop(file, None)
        with self._named(file):
            # Another file may have its size, and its row groups.
            status = os.stat(location)  # noqa: PTH116 - a Path takes longer
            if self._infos[file] != (
                status.st_size,
                str(status.st_mtime_ns).encode(),
            ):
                raise changed(location)
            if reader is None:
                reader = _reader(self._source(file), metadata)
            yield reader
        with self._lock:
            self._remember(self._idle, file, reader)

    def _requested(
        self, groups: Sequence[RowGroup], columns: Sequence[Names]
    ) -> dict[tuple[int, int], dict[int, bytes]]:
        """The bytes of column chunks of remote row groups, by file, number and offset, in one round of requests."""
        wanted = [
            (group, part) for group in groups for part in self._ranges(group, columns)
        ]
        if wanted:
            contents = self._files.read([part for _, part in wanted])
        else:
            contents = []
        parts: dict[tuple[int, int], dict[int, bytes]] = {}
        for (group, part), content in zip(wanted, contents, strict=True):
            parts.setdefault((group.file, group.number), {})[part.start] = content
        return parts

    def _ranges(self, group: RowGroup, columns: Sequence[Names]) -> list[ByteRange]:
        """Byte ranges of column chunks of a row group; none for a local file."""
        if group.file not in self._remote:
            return []
        chunks = self._metadata(group.file).row_group(group.number)
        spans = [
            _span(chunks.column(index))
            for index in self._indices(group.file, columns)
        ]
        return [ByteRange(self.location(group), start, stop) for start, stop in spans]

    def _indices(self, file: int, columns: Sequence[Names]) -> list[int]:
        """Indices of the leaves of columns, or of members of columns, among all leaves of a file."""
        return sorted(
            {index for names in columns for index in self._leaves(file, names)}
        )

    def _leaves(self, file: int, names: Names) -> Sequence[int]:
        leaves = self._footers[file].columns.leaves
        if names in leaves or names[0] in self.partitions:
            if names[0] in self.partitions:
                return ()
            return leaves[names]
        # a struct of nothing but nulls may have no members
        return self._leaves(file, names[:-1])

    def _source(self, file: int) -> Any:
        """A local file, open; by bytes, since names need not be UTF-8. Of a remote file its footer."""
        remote = self._remote.get(file)
        if remote is None:
            return pa.OSFile(os.fsencode(self.locations[file]))
        return pa.BufferReader(remote)

    @contextmanager
    def _named(self, file: int) -> Iterator[None]:
        """Names the file in pyarrow's errors."""
        try:
            yield
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            location = self.locations[file]
            if "crypt" in str(error).replace(location, ""):
                raise SourceError(_encrypted_text(location, "the file is")) from error
            raise SourceError(
                f"{location}: the file can't be read as Parquet: {error}; copy it "
                "again, or write it again"
            ) from error

    def _remember(self, kept: OrderedDict[int, Any], file: int, value: Any) -> None:
        kept[file] = value
        kept.move_to_end(file)
        while len(kept) > _OPEN:
            _, dropped = kept.popitem(last=False)
            if kept is self._idle:
                dropped.close()


def _encrypted_text(location: str, what: str) -> str:
    """The message for an encrypted file, or one with encrypted columns."""
    return (
        f"{location}: {what} encrypted, and loadax has no keys; let pyarrow decrypt "
        f"it: loadax.from_arrow(pyarrow.parquet.read_table({location!r}, "
        "decryption_properties=…))"
    )


def _reader(source: Any, metadata: Any = None) -> Any:
    # Not ParquetFile, which joins the names of all columns. INT96 times of the years 1 to 9999 fit in microseconds, and
    # not in nanoseconds. A buffer of pyarrow's own would join column chunks to a range that was not requested before,
    # and so request a remote row group twice.
    reader = pq.ParquetReader()
    reader.open(
        source,
        metadata=metadata,
        coerce_int96_timestamp_unit="us",
        page_checksum_verification=True,
        pre_buffer=False,
    )
    return reader


def _row_groups(file: int, metadata: Any) -> list[RowGroup]:
    """The row groups with rows."""
    found = []
    first = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        if rows := group.num_rows:
            found.append(RowGroup(file, number, first, rows, group.total_byte_size))
        first += rows
    return found


def _nulls(
    metadata: Any, groups: Sequence[RowGroup], leaves: Sequence[int]
) -> dict[int, tuple[RowGroup, int]]:
    """Of each leaf with nulls: the first row group with some, and their number."""
    found: dict[int, tuple[RowGroup, int]] = {}
    for group in groups:
        described = metadata.row_group(group.number)
        for index in leaves:
            statistics = described.column(index).statistics
            if statistics is not None and (count := statistics.null_count):
                first, before = found.get(index, (group, 0))
                found[index] = first, before + count
    return found


def _file_columns(
    schema: Any, wanted: Collection[str] | None, known: list[FileColumns]
) -> FileColumns:
    """The columns of a schema: those known of an equal one, or new ones, which become known."""
    for columns in known[-_ALIKE:]:
        if columns.schema.equals(schema):
            return columns
    leaves: dict[Names, list[int]] = {}  # which Parquet names by joined names
    flat = []
    below = chain.from_iterable(
        _leaves_below(field.type, (field.name,)) for field in schema
    )
    for index, (names, kind) in enumerate(below):
        for depth in range(1, len(names) + 1):
            leaves.setdefault(names[:depth], []).append(index)
        if not is_nested(getattr(kind, "storage_type", kind)) and (
            wanted is None or names[0] in wanted
        ):
            flat.append(index)
    known.append(FileColumns(schema, leaves, flat))
    return known[-1]


def _leaves_below(kind: Any, names: Names) -> Iterator[tuple[Names, Any]]:
    """Yields the names and the type of the column, or the member of structs, that each leaf is in."""
    if pa.types.is_struct(kind):
        for field in kind:
            yield from _leaves_below(field.type, (*names, field.name))
    else:
        yield from [(names, kind)] * _width(kind)


def _width(kind: Any) -> int:
    """Number of Parquet's leaves of an Arrow type."""
    if isinstance(kind, pa.BaseExtensionType):
        return _width(kind.storage_type)
    return (
        sum(_width(kind.field(index).type) for index in range(kind.num_fields)) or 1
    )


def _footer_size(tail: bytes) -> int:
    """Bytes of a footer, by its last eight."""
    # of which the latter is encrypted
    if len(tail) < _END or tail[-4:] not in (b"PAR1", b"PARE"):
        return _END
    return int(np.frombuffer(tail[-_END:-4], "<u4")[0]) + _END


def _span(chunk: Any) -> tuple[int, int]:
    """First byte of a column chunk, and the one after its last."""
    start = chunk.data_page_offset
    if chunk.has_dictionary_page and chunk.dictionary_page_offset:
        start = min(start, chunk.dictionary_page_offset)
    return start, start + chunk.total_compressed_size
