"""JsonlSource: rows of JSON lines, found by an index of the lines and parsed many at a time."""

import json
import os
import re
import threading
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, final

import numpy as np
import pyarrow as pa
from pyarrow import json as arrow_json

from loadax.core.formatting import count_text
from loadax.core.log import log
from loadax.errors import SourceError
from loadax.files.files import Files, files_with_cache
from loadax.files.remote_ranges import Wanted
from loadax.kept.index_folder import Entry, IndexFolder, check_array
from loadax.kept.kept_pass import PassOptions, kept_pass
from loadax.kept.parts import Arrays
from loadax.protocols import Array, Integers, LeafArrays, Location, Tree, Visits
from loadax.sources.base import BaseSource
from loadax.sources.checks import check_rows
from loadax.sources.expand import expand
from loadax.sources.file_index import (
    RecordFormat,
    Scan,
    check_records,
    identity_of,
    index_files,
    merge_records,
    record_entry,
)
from loadax.sources.format import RecordOptions
from loadax.sources.shards.records import Records
from loadax.sources.tables.arrow.call import Call, column_names, naming_file
from loadax.sources.tables.arrow.column_tree import ColumnTree
from loadax.sources.tables.arrow.table_leaves import TableLeaves
from loadax.sources.tables.text.column_types import arrow_types, with_types
from loadax.sources.tables.text.decompress import decompressed
from loadax.sources.tables.text.encoding import BOM, encoding_of
from loadax.sources.tables.text.exact_integers import refuse_rounded
from loadax.sources.tables.text.format import JSONL

if TYPE_CHECKING:
    from loadax.files.byte_ranges import KnownFiles
    from loadax.files.metadata import Metadata

WINDOW = 8 << 20  # bytes that are searched for ends of lines at a time
# rows from which types are inferred: the first ones, and as many evenly spaced ones
_SAMPLED = 1024
# Entry of the types in the index folder, and version of their inference.
_TYPES = "types"
_TYPES_KIND = "jsonl types 1"
_NEWLINE = 10
_OPEN, _CLOSE = b"{}"
# levels of lists and objects: from some thousand on, Arrow's parser overflows the stack
_DEEPEST = 100
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)


@final
class JsonlSource(BaseSource):
    """Row i: line i of the files that is not blank. Examples are dicts of the columns.

    Args:
        lines: The lines.
        schema: Arrow schema of the columns to read.
        inferred: Names of columns with floats, whose types are not stated by the user.
        leaves: Leaves to read.
    """

    def __init__(
        self,
        lines: "_Lines",
        schema: Any,
        inferred: Sequence[str],
        leaves: TableLeaves,
    ):
        self._lines = lines
        self._schema = schema
        self._inferred = inferred
        self._leaves = leaves
        self.traits = leaves.empty.traits._replace(
            reads_columns=False,
            concurrent_reads=lines.records.concurrent_reads,
            attributes=leaves.attributes,
        )

    def __len__(self) -> int:
        return len(self._lines.begins)

    def __repr__(self) -> str:
        return f"JSON lines ({self._leaves}) of {self.addresses[0]}"

    def held(self, most: int) -> list[Array]:  # noqa: ARG002
        return self._leaves.stated_names

    @property
    def spec(self) -> Tree | None:
        return self._leaves.empty.spec

    @property
    def known_files(self) -> "KnownFiles":
        return self._lines.records.known_files

    @property
    def addresses(self) -> list[str]:
        return self._lines.records.addresses

    def wanted(self, visits: Visits) -> list[Wanted]:
        rows = check_rows(visits.rows, len(self))
        return self._lines.records.wanted(
            self._lines.begins[rows], self._lines.sizes[rows]
        )

    def locate(self, row: int) -> list[Location]:
        """File of a row, with the bytes of its line."""
        row = int(check_rows([row], len(self))[0])
        return self._lines.records.locate(
            int(self._lines.begins[row]), int(self._lines.sizes[row])
        )

    def read(self, rows: Integers) -> Tree:
        rows = check_rows(rows, len(self))
        if not len(rows) and len(self) and self.spec is None:
            return self._tree(np.zeros(1, np.int64)).read(rows)
        return self._tree(rows).read(np.arange(len(rows)), rows)

    def read_examples(self, visits: Visits) -> list[Tree]:
        rows = check_rows(visits.rows, len(self))
        return self._tree(rows).examples(np.arange(len(rows)))

    def read_parts(
        self,
        rows: Integers,
        starts: Integers,
        lengths: Integers,
        wanted: Sequence[bool],
    ) -> LeafArrays:
        rows = check_rows(rows, len(self))
        return self._tree(rows).parts(np.arange(len(rows)), starts, lengths, wanted)

    def _tree(self, rows: Integers) -> ColumnTree:
        if not len(rows):
            return self._leaves.empty
        lines = self._lines.read(rows)
        where = partial(self._lines.text, rows)
        try:
            table = parse(lines, self._schema)
        except (pa.ArrowException, UnicodeDecodeError):
            index = _refused(lines, self._schema)
            try:
                refuse_line(lines[index], self._schema, partial(where, index))
            except SourceError as error:
                error.add_note(f"loadax: reading row {rows[index]}")
                raise
            raise
        refuse_rounded(lines, table.select(self._inferred), where, False)
        return self._leaves.columns(table, where)


class _Lines(NamedTuple):
    """Lines of files.

    Args:
        records: Reader of the files.
        begins: First byte of each line, in the concatenation of all files: int64[n].
        sizes: Bytes of each line, int64[n].
    """

    records: Records
    begins: Integers
    sizes: Integers

    def read(self, rows: Integers) -> list[memoryview]:
        """Reads lines."""
        return self.records.read(self.begins[rows], self.sizes[rows])

    def text(self, rows: Integers, index: int) -> str:
        """File and number, from 1, of the line of one of these rows, for messages."""
        row = int(rows[index])
        begin = int(self.begins[row])
        (location,) = self.records.locate(begin, 1)
        assert location.first is not None
        start = begin - location.first
        first = int(np.searchsorted(self.begins, start))
        ends = self.begins[first:row] + self.sizes[first:row]
        # between the lines: a newline each, and blank lines, which alone are read
        gaps_from = np.append(start, ends)
        gaps = self.begins[first : row + 1] - gaps_from
        blank = np.flatnonzero(gaps > 1)
        before = int(np.count_nonzero(gaps == 1))
        for gap in self.records.read(gaps_from[blank], gaps[blank]):
            before += int(np.count_nonzero(np.frombuffer(gap, np.uint8) == _NEWLINE))
        return f"{location.file}, line {before + 1}{self.records.by_index}"


def open_jsonl(
    paths: Any,
    options: RecordOptions,
    columns: Any = None,
    dtypes: Any = None,
    nulls: Any = None,
    classes: Any = None,
    metadata: "Metadata | None" = None,
) -> JsonlSource:
    """Opens files of JSON lines; see `loadax.from_jsonl`.

    Raises:
        ArgumentError: When an argument is invalid.
        SourceError: When a file is missing or damaged, or a line is not JSON; names the file and the line.
        LeafTypeError: When a column has a type without an array.
    """
    types = arrow_types(dtypes, text=False)
    files = files_with_cache(options.cache, options.cache_bytes, metadata)
    locations = decompressed(
        files, expand(paths, JSONL, files), options.cache, options.progress
    )
    entry = index_files(RECORDS, files, locations, options)
    counts, begins, sizes = (
        entry.arrays[name] for name in ("lines", "begins", "sizes")
    )
    if not len(begins):
        raise SourceError(
            f"{locations[0]}: there are no lines; a row is a line with a JSON object"
        )
    records = Records(files, locations, options.index)
    lines = _Lines(records, begins + np.repeat(records.file_begins, counts), sizes)
    schema, rounded = _types(lines, files, locations, options)
    files.forget_whole()
    names = column_names(columns, schema.names)
    for name in names:
        if name in rounded and name not in types:
            raise SourceError(rounded[name])
    chosen = with_types(schema, types, names)
    inferred = [
        field.name
        for field in chosen
        if field.name not in types and "double" in str(field.type)
    ]
    call = Call(
        "from_jsonl",
        "paths",
        "pyarrow.json.read_json(paths)",
        tuple(names),
        has_dtypes=True,
    )
    with naming_file(locations[0]):
        return JsonlSource(
            lines,
            chosen,
            inferred,
            TableLeaves(chosen, call, nulls, classes, lambda _: ()),
        )


def parse(lines: Sequence[memoryview], schema: Any = None) -> Any:
    """Parses lines to a table of the columns of a schema; None: of all columns, of the types that are inferred.

    Raises:
        pyarrow.ArrowException, UnicodeDecodeError: When a line is not an object, or has a value of another type.
    """
    content = b"\n".join(lines)
    if not content.isascii():
        lines = [line[len(BOM) :] if line[:3] == BOM else line for line in lines]
        content = b"\n".join(lines)
        # Arrow takes other bytes too, and fails when they become text
        str(content, "utf-8")
    if _may_be_deep(content, max(map(len, lines))) and any(map(_is_deep, lines)):
        raise pa.ArrowInvalid(
            f"lists and objects are nested more than {_DEEPEST} levels deep"
        )
    # Arrow ignores the ends of lines: without braces at both ends of each, rows could come from other lines. This is
    # checked before, since Arrow crashes where there are only nulls.
    if not all(map(_is_braced, lines)):
        raise pa.ArrowInvalid("a line is not an object")
    table = arrow_json.read_json(
        pa.BufferReader(content),
        arrow_json.ReadOptions(use_threads=False, block_size=len(content) + 1),
        arrow_json.ParseOptions(
            explicit_schema=schema,
            unexpected_field_behavior="infer" if schema is None else "ignore",
        ),
    )
    if table.num_rows != len(lines):
        raise pa.ArrowInvalid("a line has several values, or none")
    if schema is None:
        return table
    return table.select(schema.names)


def _is_braced(line: memoryview) -> bool:
    if line[0] == _OPEN and line[-1] == _CLOSE:
        return True
    text = bytes(line).strip()
    return text.startswith(b"{") and text.endswith(b"}")


def _may_be_deep(content: bytes, longest: int) -> bool:
    """Whether one of some lines can be nested too deep: it has more brackets than that within its length.

    Args:
        content: The lines.
        longest: Bytes of the longest one.
    """
    # "[" and "{" differ by one bit; NumPy finds them ten times as fast as `bytes.count`
    opened = np.flatnonzero((np.frombuffer(content, np.uint8) | 32) == ord("{"))
    return bool((opened[_DEEPEST:] - opened[:-_DEEPEST] < longest).any())


def _is_deep(line: memoryview) -> bool:
    """Whether lists and objects are nested too deep."""
    content = bytes(line)
    if content.count(b"[") + content.count(b"{") <= _DEEPEST:
        return False
    marks = np.frombuffer(_STRING.sub(b"", content), np.uint8)
    opened = (marks == ord("[")) | (marks == ord("{"))
    closed = (marks == ord("]")) | (marks == ord("}"))
    return bool((np.cumsum(opened) - np.cumsum(closed)).max(initial=0) > _DEEPEST)


def refuse_line(line: memoryview, schema: Any, where: Callable[[], str]) -> None:
    """Raises an error that names a line if it can't be parsed."""
    try:
        parse([line], schema)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        problem = str(error)
        remedy = "correct the line, or leave it out"
        try:
            if (
                not _is_deep(line)
                and isinstance(json.loads(bytes(line)), dict)
                and schema is not None
            ):
                remedy = (
                    "correct the line, or state a type that all rows have by "
                    "dtypes=, such as 'uint64' or 'float64'"
                )
        except ValueError as fault:
            problem = f"it is not JSON: {fault}"
        raise SourceError(f"{where()}: {problem}; {remedy}") from error


def _refused(lines: Sequence[memoryview], schema: Any) -> int:
    """Index of a line that can't be parsed, among lines that can't be parsed together."""
    for index, line in enumerate(lines):
        if line and not _is_braced(line):
            return index
    low = 0
    high = len(lines)
    while high - low > 1:
        middle = (low + high) // 2
        if _parses(lines[low:middle], schema):
            low = middle
        else:
            high = middle
    return low


def _parses(lines: Sequence[memoryview], schema: Any = None) -> bool:
    """Whether lines can be parsed together, so that each column has one type."""
    try:
        parse(lines, schema)
    except (pa.ArrowException, UnicodeDecodeError):
        return False
    return True


class _Types(NamedTuple):
    """Types of the columns of a sample of lines.

    Args:
        schema: Arrow schema of all columns.
        rounded: Of columns with integers that their inferred type rounds, the message that refuses them.
    """

    schema: Any
    rounded: dict[str, str]

    @classmethod
    def of(cls, parts: Arrays) -> "_Types":
        """The types that `arrays` returned.

        Raises:
            ValueError: When they are others.
        """
        schema = pa.ipc.read_schema(pa.py_buffer(parts["schema"].tobytes()))
        rounded = dict(json.loads(parts["rounded"].tobytes()))
        return cls(schema, rounded)

    def arrays(self) -> Arrays:
        """The types as arrays of bytes."""
        return {
            "schema": np.frombuffer(self.schema.serialize(), np.uint8),
            "rounded": np.frombuffer(json.dumps(self.rounded).encode(), np.uint8),
        }


@final
@dataclass(frozen=True)
class _TypesWork:
    """Inference of the types in one part; see `loadax.kept.pass_work.Work`."""

    lines: _Lines
    sizes: Sequence[int] = (1,)
    label: str = _TYPES
    unit: str = "row"

    def compute(self, part: int, over: threading.Event) -> Arrays:  # noqa: ARG002
        """Arrays of the types."""
        return _infer(self.lines).arrays()


def _types(
    lines: _Lines, files: Files, locations: Sequence[str], options: RecordOptions
) -> _Types:
    """Types of all columns, from the index, which gets them if it has none."""
    folder = None if options.index is None else IndexFolder(options.index)
    # as that of an earlier version, which is only read
    if folder is None or not (
        folder.path(_TYPES).exists() or os.access(folder.path(_TYPES).parent, os.W_OK)
    ):
        return _infer(lines)
    entry = kept_pass(
        folder,
        _TYPES,
        partial(identity_of, _TYPES_KIND, files, locations),
        lambda entry: _Types.of(entry.arrays),
        lambda: _TypesWork(lines),
        lambda parts: Entry(next(parts), {}),
        PassOptions(1, None, False),
        shared=False,
    )
    return _Types.of(entry.arrays)


def _infer(all_lines: _Lines, rows: Any = None) -> _Types:
    """Types in rows (None: in the first and in evenly spaced ones); texts that look like times stay texts.

    Lines that can't be parsed are logged; reading them is an error, as for lines that are not in the sample.
    """
    if rows is None:
        count = len(all_lines.begins)
        sampled = min(_SAMPLED, count)
        rows = np.unique(
            [*range(sampled), *np.linspace(0, count - 1, sampled).astype(np.int64)]
        )
    lines = all_lines.read(rows)
    where = partial(all_lines.text, rows)
    try:
        table = parse(lines)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        whole = [_parses([line]) for line in lines]
        if not all(whole):
            first = whole.index(False)
            if not any(whole):
                refuse_line(lines[first], None, partial(where, first))
            log.warning(
                "%s can't be read%s; reading such a row is an error: correct the "
                "line, or leave it out",
                where(first),
                f", nor {whole.count(False) - 1} more of "
                f"{count_text(len(whole), 'line')}"
                if whole.count(False) > 1
                else "",
            )
            return _infer(all_lines, rows[np.array(whole)])
        # Each line parses alone, so one has another type than a line before it.
        differing = (
            bisect_left(
                range(1, len(lines)),
                True,
                key=lambda last: not _parses(lines[: last + 1]),
            )
            + 1
        )
        reason = str(error).partition(" in row ")[0]
        raise SourceError(
            f"{where(differing)}: {reason}; correct the line: all rows of a column "
            "must have one type"
        ) from error
    schema = pa.schema(
        [pa.field(field.name, _without_times(field.type)) for field in table.schema]
    )
    return _Types(schema, _rounded(lines, table, where))


def _rounded(
    lines: Sequence[memoryview], table: Any, where: Callable[[int], str]
) -> dict[str, str]:
    """Messages of `refuse_rounded`, by column."""
    try:
        refuse_rounded(lines, table, where, True)
    except SourceError as error:
        if len(set(table.column_names)) == 1:
            return {table.column_names[0]: str(error)}
        return {
            name: message
            for column in table.column_names
            for name, message in _rounded(
                lines, table.select([column]), where
            ).items()
        }
    return {}


def _without_times(kind: Any) -> Any:
    if pa.types.is_timestamp(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_without_times(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct(
            [pa.field(field.name, _without_times(field.type)) for field in kind]
        )
    return kind


def _scan(location: str, size: int) -> Scan[Entry]:
    """Finds the lines of a file that are not blank."""
    begins = []
    sizes = []
    # offset of the line that a window leaves open, and the first byte of it
    open_line = 0
    open_byte = 0
    for low in range(0, size, WINDOW):
        content = np.frombuffer(
            (yield low, min(low + WINDOW, size))[:WINDOW], np.uint8
        )
        if low:
            encoding = None
        else:
            encoding = encoding_of(bytes(content[:4]))
        if encoding not in (None, "utf-8-sig"):
            name = encoding.upper()
            raise SourceError(
                f"{location}: the file is in {name}; write it in UTF-8: iconv -f "
                f"{name} -t UTF-8 {location}"
            )
        ends = np.flatnonzero(content == _NEWLINE) + low
        if low + len(content) == size and (not len(ends) or ends[-1] < size - 1):
            ends = np.append(ends, size)
        starts = np.concatenate([[open_line], ends[:-1] + 1])[: len(ends)]
        lengths = ends - starts
        first = np.where(
            starts < low,
            open_byte,
            content[np.clip(starts - low, 0, len(content) - 1)],
        )
        if len(ends):
            open_line = int(ends[-1]) + 1
        if low <= open_line < low + len(content):
            open_byte = int(content[open_line - low])
        # "\r" is the whole of a blank line of Windows. Longer ones of spaces are refused when they are read.
        filled = (lengths > 1) | ((lengths == 1) & (first != ord("\r")))
        begins.append(starts[filled].astype(np.int64))
        sizes.append(lengths[filled].astype(np.int64))
    return record_entry(
        "lines",
        *(
            np.concatenate([np.empty(0, np.int64), *parts])
            for parts in (begins, sizes)
        ),
    )


def _check(entry: Entry, sizes: Integers) -> None:
    check_records(entry, sizes, "lines")
    check_array(entry, "sizes", np.int64, None, 1)


# The format of JSON lines.
RECORDS = RecordFormat("from_jsonl", "jsonl 1", _scan, merge_records, _check)
