"""JsonlSource: rows of JSON lines, found by an index of the lines and parsed many at a time."""

import io
import json
import logging
import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import json as arrow_json

from loadax.core.tree import Structure
from loadax.errors import SourceError
from loadax.protocols import Integers, Location, Tree, Visits
from loadax.sources.arrow.call import Call, column_names, naming_file
from loadax.sources.arrow.column_tree import ColumnTree
from loadax.sources.arrow.leaves import Leaf, columns_of, leaves_of, stated_classes
from loadax.sources.arrow.nulls import Nulls
from loadax.sources.arrow.table import attributes_of, leaves_text, stated_names
from loadax.sources.base import BaseSource
from loadax.sources.checks import check_rows
from loadax.sources.formats import FORMATS
from loadax.sources.io.disk_cache import open_cache
from loadax.sources.io.expand import expand
from loadax.sources.io.file_index import FileRecords, Scan, check_records, index_files, merge_records
from loadax.sources.io.files import Files
from loadax.sources.io.index_folder import Entry, check_array
from loadax.sources.shards.records import Records
from loadax.sources.text.decompress import decompressed
from loadax.sources.text.dtypes import arrow_types, with_types
from loadax.sources.text.encoding import BOM, encoding_of
from loadax.sources.text.integers import refuse_rounded

_log = logging.getLogger("loadax")

_WINDOW = 8 << 20  # bytes that are searched for ends of lines at a time
_SAMPLED = 1024  # rows from which types are inferred: the first ones, and as many evenly spaced ones
_NEWLINE = 10
_merge = partial(merge_records, counts="lines")
_OPEN, _CLOSE = b"{}"
_DEEPEST = 100  # levels of lists and objects: from some thousand on, Arrow's parser overflows the stack
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)


@final
class JsonlSource(BaseSource):
    """Row i: line i of the files that is not blank. Examples are dicts of the columns.

    Args:
        records: Reader of the files.
        begins: First byte of each line, in the concatenation of all files: int64[n].
        sizes: Bytes of each line, int64[n].
        schema: Arrow schema of the columns to read.
        inferred: Names of columns with floats, whose types are not stated by the user.
        leaves: Leaves to read.
        structure: Structure of their tree.
        nulls: What nulls become.
    """

    def __init__(
        self,
        records: Records,
        begins: Integers,
        sizes: Integers,
        schema: Any,
        inferred: Sequence[str],
        leaves: Sequence[Leaf],
        structure: Structure,
        nulls: Nulls,
    ):
        self._records, self._begins, self._sizes = records, begins, sizes
        self._schema, self._inferred, self._nulls = schema, inferred, nulls
        self._leaves, self._structure = leaves, structure
        self._empty = self._tree_of(schema.empty_table(), None)
        self.traits = self._empty.traits._replace(
            reads_columns=False, concurrent_reads=records.concurrent_reads, attributes=attributes_of(self._leaves)
        )

    def __len__(self) -> int:
        return len(self._begins)

    def __repr__(self) -> str:
        return f"JSON lines ({leaves_text(self._leaves)}) of {self._records.addresses[0]}"

    def held(self, most: int) -> list[NDArray[Any]]:  # noqa: ARG002
        return stated_names(self._leaves)

    @property
    def spec(self) -> Tree | None:
        return self._empty.spec

    @property
    def addresses(self) -> list[str]:
        return self._records.addresses

    def locate(self, row: int) -> list[Location]:
        """File of a row, with the bytes of its line."""
        row = int(check_rows([row], len(self))[0])
        return self._records.locate(int(self._begins[row]), int(self._sizes[row]))

    def read(self, rows: Integers) -> Tree:
        rows = check_rows(rows, len(self))
        if not len(rows) and len(self) and self._empty.is_ragged:
            return self._tree(np.zeros(1, np.int64)).read(rows)
        return self._tree(rows).read(np.arange(len(rows)), rows)

    def read_examples(self, visits: Visits) -> list[Tree]:
        rows = check_rows(visits.rows, len(self))
        return self._tree(rows).examples(np.arange(len(rows)))

    def read_parts(
        self, rows: Integers, starts: Integers, lengths: Integers, wanted: Sequence[bool]
    ) -> list[NDArray[Any] | None]:
        rows = check_rows(rows, len(self))
        return self._tree(rows).parts(np.arange(len(rows)), starts, lengths, wanted)

    def _tree(self, rows: Integers) -> ColumnTree:
        if not len(rows):
            return self._empty
        lines = self._records.read(self._begins[rows], self._sizes[rows])
        try:
            table = parse(lines, self._schema)
        except (pa.ArrowException, UnicodeDecodeError):
            self._refuse(rows, lines)
            raise
        refuse_rounded(lines, table.select(self._inferred), lambda index: self._line_text(int(rows[index])), False)
        return self._tree_of(table, lambda index: self._line_text(int(rows[index])))

    def _tree_of(self, table: Any, where: Callable[[int], str] | None) -> ColumnTree:
        batches = [batch for batch in table.to_batches() if len(batch)]
        columns = columns_of(self._leaves, batches, self._nulls, where)
        return ColumnTree(self._structure.build(columns), list(map(len, batches)))

    def _refuse(self, rows: Integers, lines: Sequence[memoryview]) -> None:
        """Raises the error of the first line that can't be parsed."""
        for row, line in zip(rows.tolist(), lines, strict=True):
            refuse_line(line, self._schema, lambda row=row: self._line_text(row))  # type: ignore[misc]

    def _line_text(self, row: int) -> str:
        return line_text(self._records, int(self._begins[row]))


def open_jsonl(
    paths: Any,
    columns: Sequence[str] | str | None = None,
    dtypes: Any = None,
    nulls: Any = None,
    classes: Any = None,
    index: Any = None,
    cache: Any = None,
    cache_bytes: int = 16 << 30,
    progress: bool | None = None,
) -> JsonlSource:
    """Opens files of JSON lines; see `loadax.from_jsonl`.

    Raises:
        ArgumentError: When an argument is invalid.
        SourceError: When a file is missing or damaged, or a line is not JSON; names the file and the line.
        LeafTypeError: When a column has a type without an array.
    """
    types = arrow_types(dtypes, text=False)
    blocks = open_cache(cache, cache_bytes)
    files = Files()
    locations = decompressed(files, expand(paths, FORMATS["from_jsonl"], files), cache, progress)
    entry = index_files("jsonl 1", files, locations, _scan, _merge, _check, index, progress)
    counts, begins, sizes = (entry.arrays[name] for name in ("lines", "begins", "sizes"))
    if not len(begins):
        raise SourceError(f"{locations[0]}: there are no lines; a row is a line with a JSON object")
    records = Records(files, locations, blocks, index)
    begins = begins + np.repeat(records.file_begins, counts)
    schema = _infer(records, begins, sizes, columns, types)
    names = column_names(columns, schema.names)
    chosen = with_types(schema, types, names)
    inferred = [field.name for field in chosen if field.name not in types and "double" in str(field.type)]
    call = Call("from_jsonl", "paths", tuple(names), has_dtypes=True)
    with naming_file(locations[0]):
        leaves, structure = leaves_of(chosen, call, stated_classes(classes))
        filler = Nulls(nulls, leaves, call)
        return JsonlSource(records, begins, sizes, chosen, inferred, leaves, structure, filler)


def parse(lines: Sequence[memoryview], schema: Any = None) -> Any:
    """Parses lines to a table of the columns of a schema; None: of all columns, of the types that are inferred.

    Raises:
        pyarrow.ArrowException, UnicodeDecodeError: When a line is not an object, or has a value of another type.
    """
    lines = [line[len(BOM) :] if line[:1] == BOM[:1] and line[:3] == BOM else line for line in lines]
    content = b"\n".join(lines)
    if content.count(b"[") + content.count(b"{") > _DEEPEST and any(map(_is_deep, lines)):
        raise pa.ArrowInvalid(f"lists and objects are nested more than {_DEEPEST} levels deep")
    if not content.isascii():
        str(content, "utf-8")  # Arrow takes other bytes too, and fails when they become text
    # Arrow ignores the ends of lines: without braces at both ends of each, rows could come from other lines. This is
    # checked before, since Arrow crashes where there are only nulls.
    if not all(map(_is_braced, lines)):
        raise pa.ArrowInvalid("a line is not an object")
    table = arrow_json.read_json(
        io.BytesIO(content),
        arrow_json.ReadOptions(use_threads=False, block_size=len(content) + 1),
        arrow_json.ParseOptions(
            explicit_schema=schema, unexpected_field_behavior="infer" if schema is None else "ignore"
        ),
    )
    if table.num_rows != len(lines):
        raise pa.ArrowInvalid("a line has several values, or none")
    return table if schema is None else table.select(schema.names)


def _is_braced(line: memoryview) -> bool:
    if line[0] == _OPEN and line[-1] == _CLOSE:
        return True
    text = bytes(line).strip()
    return text.startswith(b"{") and text.endswith(b"}")


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
        problem, remedy = str(error), "correct the line, or leave it out"
        try:
            if not _is_deep(line) and isinstance(json.loads(bytes(line)), dict) and schema is not None:
                remedy = (
                    "correct the line, or state a type that all rows have by dtypes=, such as 'uint64' or 'float64'"
                )
        except ValueError as fault:
            problem = f"it is not JSON: {fault}"
        raise SourceError(f"{where()}: {problem}; {remedy}") from error


def _parses(lines: Sequence[memoryview], schema: Any = None) -> bool:
    """Whether lines can be parsed together, so that each column has one type."""
    try:
        parse(lines, schema)
    except (pa.ArrowException, UnicodeDecodeError):
        return False
    return True


def line_text(records: Records, begin: int) -> str:
    """File and number of a line, from 1, by its first byte in the concatenation of all files."""
    (location,) = records.locate(begin, 1)
    assert location.first is not None
    start, before = begin - location.first, 0
    for low in range(start, begin, _WINDOW):
        (window,) = records.read(np.array([low]), np.array([min(_WINDOW, begin - low)]))
        before += int(np.count_nonzero(np.frombuffer(window, np.uint8) == _NEWLINE))
    return f"{location.file}, line {before + 1}{records.by_index}"


def _infer(records: Records, begins: Integers, sizes: Integers, columns: Any, typed: Any, rows: Any = None) -> Any:
    """The schema of rows (None: of the first and of evenly spaced ones); texts that look like times stay texts.

    The user asks for `columns`, and states the types of those in `typed`.

    Lines that can't be parsed are logged; reading them is an error, as for lines that are not in the sample.
    """
    if rows is None:
        sampled = min(_SAMPLED, len(begins))
        rows = np.unique([*range(sampled), *np.linspace(0, len(begins) - 1, sampled).astype(np.int64)])
    lines = records.read(begins[rows], sizes[rows])
    try:
        table = parse(lines)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        whole = [_parses([line]) for line in lines]
        if not all(whole):
            first = whole.index(False)
            if not any(whole):
                refuse_line(lines[first], None, lambda: line_text(records, int(begins[rows[first]])))
            _log.warning(
                "%s can't be read%s; reading such a row is an error: correct the line, or leave it out",
                line_text(records, int(begins[rows[first]])),
                f", nor {whole.count(False) - 1} more of {len(whole)} lines" if whole.count(False) > 1 else "",
            )
            return _infer(records, begins, sizes, columns, typed, rows[np.array(whole)])
        # Each line is right by itself, so one has another type than a line before it.
        differing = bisect_left(range(1, len(lines)), True, key=lambda last: not _parses(lines[: last + 1])) + 1
        reason = str(error).partition(" in row ")[0]
        raise SourceError(
            f"{line_text(records, int(begins[rows[differing]]))}: {reason}; correct the line: all rows of a column "
            "must have one type"
        ) from error
    inferred = [name for name in column_names(columns, table.column_names) if name not in typed]
    refuse_rounded(lines, table.select(inferred), lambda index: line_text(records, int(begins[rows[index]])), True)
    return pa.schema([pa.field(field.name, _without_times(field.type)) for field in table.schema])


def _without_times(kind: Any) -> Any:
    if pa.types.is_timestamp(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_without_times(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _without_times(field.type)) for field in kind])
    return kind


def _scan(location: str, size: int) -> Scan[FileRecords]:
    """Finds the lines of a file that are not blank."""
    begins, sizes = [], []
    open_line, open_byte = 0, 0  # offset of the line that a window leaves open, and the first byte of it
    for low in range(0, size, _WINDOW):
        content = np.frombuffer((yield low, min(low + _WINDOW, size)), np.uint8)
        encoding = None if low else encoding_of(bytes(content[:4]))
        if encoding not in (None, "utf-8-sig"):
            name = encoding.upper()
            raise SourceError(
                f"{location}: the file is in {name}; write it in UTF-8: iconv -f {name} -t UTF-8 {location}"
            )
        ends = np.flatnonzero(content == _NEWLINE) + low
        if low + len(content) == size and (not len(ends) or ends[-1] < size - 1):
            ends = np.append(ends, size)
        starts = np.concatenate([[open_line], ends[:-1] + 1])[: len(ends)]
        lengths = ends - starts
        first = np.where(starts < low, open_byte, content[np.clip(starts - low, 0, len(content) - 1)])
        open_line = int(ends[-1]) + 1 if len(ends) else open_line
        if low <= open_line < low + len(content):
            open_byte = int(content[open_line - low])
        # "\r" is the whole of a blank line of Windows. Longer ones of spaces are refused when they are read.
        filled = (lengths > 1) | ((lengths == 1) & (first != ord("\r")))
        begins.append(starts[filled].astype(np.int64))
        sizes.append(lengths[filled].astype(np.int64))
    return FileRecords(*(np.concatenate(parts) if parts else np.empty(0, np.int64) for parts in (begins, sizes)))


def _check(entry: Entry, sizes: Integers) -> None:
    check_records(entry, sizes, "lines")
    check_array(entry, "sizes", np.int64, None, 1)
