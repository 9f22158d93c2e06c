"""Opens CSV files as tables in memory."""

import io
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import compute, csv as arrow_csv

from loadax.core.arguments import shown
from loadax.errors import ArgumentError, SourceError
from loadax.sources.io.byte_ranges import ByteRange
from loadax.sources.io.compression import compression_of, decompress
from loadax.sources.io.expand import expand, file_name
from loadax.sources.io.files import Files
from loadax.sources.tables.arrow.call import Call, column_names, naming_file, refuse_repeated
from loadax.sources.tables.arrow.table import TableSource, open_table
from loadax.sources.tables.arrow.table_leaves import stated_classes
from loadax.sources.tables.arrow.unify import unified_schema
from loadax.sources.tables.text.dialect import refuse_other_delimiter, refuse_stray_quotes, refuse_swallowed_rows
from loadax.sources.tables.text.dtypes import arrow_types, check_columns
from loadax.sources.tables.text.encoding import UTF_8, encoding_of
from loadax.sources.tables.text.format import CSV
from loadax.sources.tables.text.integers import FIRST_ROUNDED, has_large, is_rounded

_BLOCKS = 16  # blocks of a large file, of which rows with newlines are parsed
_BLOCK, _MOST_BLOCK = 1 << 26, (1 << 31) - 1  # bytes of such a block
_BLANK_LINE = re.compile(rb"\A[\r\n]|\n\r?\n|\r\r")
_INTEGER = "^ *[+-]?[0-9]+ *$"


class _Text(NamedTuple):
    """A CSV file that was read.

    Args:
        location: Its path or URL.
        content: Its content, decompressed, in UTF-8, without a byte order mark.
        delimiter: Character between entries.
        quote: Character around entries; None: quotes are part of entries.
        has_blank_rows: Whether a blank line is a row with an empty entry.
    """

    location: str
    content: bytes
    delimiter: str
    quote: str | None
    has_blank_rows: bool = False


def open_csv(
    paths: Any, columns: Any, dtypes: Any, nulls: Any, classes: Any, delimiter: str | None, quote: str | None
) -> TableSource:
    """Opens CSV files; see `loadax.from_csv`.

    Raises:
        ArgumentError: When an argument is invalid.
        SourceError: When a file is missing, a line is damaged, columns differ, or one has nulls; names file and row.
    """
    types = arrow_types(dtypes, text=True)
    texts = dict.fromkeys(stated_classes(classes), pa.string())
    for name, character, advice in (("delimiter", delimiter, ""), ("quote", quote, ", or None for none")):
        if character is not None and not (isinstance(character, str) and re.fullmatch(r"[\t -~]", character)):
            raise ArgumentError(f"{name}={shown(character)}: pass a single ASCII character{advice}", argument=name)
    files = Files()
    locations = expand(paths, CSV, files)
    tables = [_table(_read(files, location, delimiter, quote), {**texts, **types}) for location in locations]
    names = column_names(columns, tables[0].column_names)
    check_columns(types, tables[0].column_names)
    for location, table in zip(locations, tables, strict=True):
        for field in table.schema:
            if field.name in names and pa.types.is_binary(field.type):  # as the parser takes them
                raise SourceError(f"{location}: column {field.name!r} has texts that are not UTF-8; {UTF_8}")
    schemas = zip(locations, (table.schema for table in tables), strict=True)
    schema = unified_schema(schemas, names, columns is not None, "state its type by dtypes=")
    tables = [table.select(schema.names).cast(schema) for table in tables]
    starts = np.cumsum([0, *map(len, tables)])

    def where(row: int) -> str:
        file = int(np.searchsorted(starts, row, side="right")) - 1
        return f"row {row - int(starts[file])} of {locations[file]}"

    call = Call("from_csv", "paths", "pyarrow.csv.read_csv(paths)", tuple(names), has_dtypes=True)
    with naming_file(locations[0]):
        return open_table(pa.concat_tables(tables), nulls, call, locations, where, classes)


def _read(files: Files, location: str, delimiter: str | None, quote: str | None) -> _Text:
    """Reads a file, and recognises its compression, encoding and delimiter.

    Raises:
        SourceError: When it is empty, damaged, not text, or written with another delimiter or quotes; names it.
    """
    (size,) = files.sizes([location])
    (content,) = files.read([ByteRange(location, 0, size)])
    if compression_of(content):
        content = b"".join(decompress(io.BytesIO(content), location, size))
    encoding = encoding_of(content)
    try:
        content = content if encoding is None else content.decode(encoding).encode()
    except UnicodeDecodeError as error:
        raise SourceError(f"{location}: {error}; copy it again") from error
    stated = re.match(rb"sep=([\t -~])\r?\n", content)  # a first line by which Excel knows the delimiter
    between = delimiter or (stated and stated[1].decode()) or ("\t" if ".tsv" in file_name(location).lower() else ",")
    content = content[stated.end() :] if stated else content
    if not content.strip():
        raise SourceError(f"{location}: the file is empty; its first line must name the columns")
    if between == quote:
        raise ArgumentError(f"quote={quote!r} is the delimiter too; pass another one, or None for none")
    if delimiter is None and stated is None:
        refuse_other_delimiter(content, location, between, quote)
    if quote is not None and quote.encode() in content:
        refuse_stray_quotes(content, location, between, quote)
    # Arrow takes a header without an end for an empty file.
    return _Text(location, content if content.endswith((b"\n", b"\r")) else content + b"\n", between, quote)


def _table(text: _Text, types: Mapping[str, Any]) -> Any:
    """The table of a file.

    A file that can't be parsed is parsed again by one thread, which knows the row, and the ends of quoted entries that
    contain newlines.
    """
    for newlines in (False, True):
        try:
            table = _parsed(text, types, newlines=newlines)
            if table.num_columns == 1 and _BLANK_LINE.search(text.content):
                text = text._replace(content=text.content.lstrip(b"\r\n"), has_blank_rows=True)
                table = _parsed(text, types, newlines=newlines)
            refuse_repeated(table.column_names, text.location)
        except UnicodeDecodeError as error:
            raise SourceError(f"{text.location}: {error}; {UTF_8}") from error
        except pa.ArrowException as error:
            if newlines:
                typed = ", or state the type of its column by dtypes=" if "conversion" in str(error) else ""
                remedy = UTF_8 if "invalid UTF8" in str(error) else f"correct that row{typed}"
                raise SourceError(f"{text.location}: {error}; {remedy}") from error
        else:
            if text.quote is not None and text.quote.encode() in text.content:
                refuse_swallowed_rows(table, text.location, text.delimiter)
            _refuse_rounded_integers(table, types, text)
            return table
    raise AssertionError(text.location)


def _parsed(text: _Text, types: Mapping[str, Any], columns: Sequence[str] | None = None, newlines: bool = False) -> Any:
    """The table of a file, or some of its columns; with `newlines` by one thread, for quoted texts of several lines."""
    return arrow_csv.read_csv(
        pa.BufferReader(text.content),
        arrow_csv.ReadOptions(use_threads=not newlines, block_size=_block_size(text.content) if newlines else None),
        arrow_csv.ParseOptions(
            delimiter=text.delimiter,
            quote_char=text.quote or False,
            newlines_in_values=newlines,
            ignore_empty_lines=not text.has_blank_rows,
        ),
        arrow_csv.ConvertOptions(column_types=types, include_columns=columns),
    )


def _block_size(content: bytes) -> int:
    """Bytes of blocks of which none ends within CRLF: Arrow would lose one of them in a quoted entry (arrow#51368)."""
    largest = min(max(_BLOCK, len(content) // _BLOCKS + 1), _MOST_BLOCK)

    for size in range(largest, 0, -1):
        if all(content[end - 1 : end + 1] != b"\r\n" for end in range(size, len(content), size)):
            return size
    return largest


def _refuse_rounded_integers(table: Any, types: Mapping[str, Any], text: _Text) -> None:
    """Raises an error if integers would be rounded to float64, or fit no int64."""
    columns = zip(table.column_names, table.columns, strict=True)
    names = [name for name, column in columns if name not in types and any(map(has_large, column.chunks))]
    if not names:
        return
    entries = _parsed(text, dict.fromkeys(names, pa.string()), names, newlines=True)
    for name in names:
        large = compute.greater_equal(compute.abs(table.column(name)), FIRST_ROUNDED).fill_null(False)
        rows = np.flatnonzero(compute.and_(large, compute.match_substring_regex(entries.column(name), _INTEGER)))
        for row, entry in zip(rows.tolist(), entries.column(name).take(rows).to_pylist(), strict=True):
            if is_rounded(entry, alone=True):
                raise SourceError(
                    f"{text.location}: row {row} of column {name!r} is {shown(entry)}, which float64 may round; state "
                    f"the type of its column: dtypes={{{name!r}: 'uint64'}} if all fit it, or str, or 'float64' to "
                    "round it"
                )
