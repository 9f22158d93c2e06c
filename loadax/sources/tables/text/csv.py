"""Opens CSV files as tables in memory."""

import io
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import compute, csv as arrow_csv

from loadax.core.arguments import shown
from loadax.errors import ArgumentError, SourceError
from loadax.files.byte_ranges import ByteRange
from loadax.files.compression import compression_of, decompress
from loadax.files.files import Files
from loadax.sources.expand import expand, file_name
from loadax.sources.tables.arrow.call import (
    Call,
    column_names,
    naming_file,
    refuse_repeated,
)
from loadax.sources.tables.arrow.table import TableSource, open_table
from loadax.sources.tables.arrow.table_leaves import stated_classes
from loadax.sources.tables.arrow.unify import unified_schema
from loadax.sources.tables.text.column_types import arrow_types, check_columns
from loadax.sources.tables.text.dialect import (
    has_several_lines,
    refuse_other_delimiter,
    refuse_swallowed_rows,
)
from loadax.sources.tables.text.encoding import UTF_8, encoding_of
from loadax.sources.tables.text.exact_integers import FIRST_ROUNDED, has_large
from loadax.sources.tables.text.format import CSV

_BLOCKS = 16  # blocks of a large file that is parsed by one thread
# bytes of such a block
_BLOCK = 1 << 26
_MOST_BLOCK = (1 << 31) - 1
_LONG_BLOCKS = 32  # blocks of a large file with entries of several lines
_LONG_BLOCK = 1 << 20  # bytes of such a block
_BLANK_LINE = re.compile(rb"\A[\r\n]|\n\r?\n|\r\r")


class _Text(NamedTuple):
    """A CSV file that was read.

    Args:
        location: Its path or URL.
        content: Its content, decompressed, in UTF-8, without a byte order mark.
        delimiter: Character between entries.
        quote: Character around entries; None: quotes are part of entries.
        read_options: Options of `pyarrow.csv.ReadOptions` by which pyarrow reads the file itself.
        has_several_lines: Whether an entry in quotes has several lines.
        has_blank_rows: Whether a blank line is a row with an empty entry.
    """

    location: str
    content: bytes
    delimiter: str
    quote: str | None
    read_options: Mapping[str, Any]
    has_several_lines: bool
    has_blank_rows: bool = False


def open_csv(
    paths: Any,
    columns: Any,
    dtypes: Any,
    nulls: Any,
    classes: Any,
    delimiter: str | None,
    quote: str | None,
) -> TableSource:
    """Opens CSV files; see `loadax.from_csv`.

    Raises:
        ArgumentError: When an argument is invalid.
        SourceError: When a file is missing, a line is damaged, columns differ, or one has nulls; names file and row.
    """
    types = arrow_types(dtypes, text=True)
    texts = dict.fromkeys(stated_classes(classes), pa.string())
    for name, character, advice in (
        ("delimiter", delimiter, ""),
        ("quote", quote, ", or None for none"),
    ):
        if character is not None and not (
            isinstance(character, str) and re.fullmatch(r"[\t -~]", character)
        ):
            raise ArgumentError(
                f"{name}={shown(character)}: pass a single ASCII character{advice}",
                argument=name,
            )
    files = Files()
    locations = expand(paths, CSV, files)
    tables = [
        _table(_read(files, location, delimiter, quote), {**texts, **types})
        for location in locations
    ]
    names = column_names(columns, tables[0].column_names)
    check_columns(types, tables[0].column_names)
    for location, table in zip(locations, tables, strict=True):
        for field in table.schema:
            # as the parser takes them
            if field.name in names and pa.types.is_binary(field.type):
                raise SourceError(
                    f"{location}: column {field.name!r} has texts that are not "
                    f"UTF-8; {UTF_8}"
                )
    schemas = zip(locations, (table.schema for table in tables), strict=True)
    schema = unified_schema(
        schemas, names, columns is not None, "state its type by dtypes="
    )
    tables = [table.select(schema.names).cast(schema) for table in tables]
    starts = np.cumsum([0, *map(len, tables)])

    def where(row: int) -> str:
        file = int(np.searchsorted(starts, row, side="right")) - 1
        return f"row {row - int(starts[file])} of {locations[file]}"

    call = Call(
        "from_csv",
        "paths",
        "pyarrow.csv.read_csv(paths)",
        tuple(names),
        has_dtypes=True,
    )
    with naming_file(locations[0]):
        return open_table(
            pa.concat_tables(tables), nulls, call, locations, where, classes
        )


def _read(
    files: Files, location: str, delimiter: str | None, quote: str | None
) -> _Text:
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
        if encoding is not None:
            content = content.decode(encoding).encode()
    except UnicodeDecodeError as error:
        raise SourceError(f"{location}: {error}; copy it again") from error
    # a first line by which Excel knows the delimiter
    stated = re.match(rb"sep=([\t -~])\r?\n", content)
    between = (
        delimiter
        or (stated and stated[1].decode())
        or ("\t" if ".tsv" in file_name(location).lower() else ",")
    )
    if stated:
        content = content[stated.end() :]
    if not content.strip():
        raise SourceError(
            f"{location}: the file is empty; its first line must name the columns"
        )
    if between == quote:
        raise ArgumentError(
            f"quote={quote!r} is the delimiter too; pass another one, or None for "
            "none"
        )
    if delimiter is None and stated is None:
        refuse_other_delimiter(content, location, between, quote)
    several_lines = False
    if quote is not None and quote.encode() in content:
        several_lines = has_several_lines(content, location, between, quote)
    if not content.endswith((b"\n", b"\r")):
        content += b"\n"  # Arrow takes a header without an end for an empty file
    options = {
        "block_size": min(len(content), _MOST_BLOCK),
        "encoding": encoding or "utf8",
        "skip_rows": int(stated is not None),
    }
    return _Text(location, content, between, quote, options, several_lines)


def _table(text: _Text, types: Mapping[str, Any]) -> Any:
    """The table of a file. One that can't be parsed is parsed again by one thread, which knows the row."""
    for threads in (True, False):
        try:
            table = _parsed(text, types, threads)
            if table.num_columns == 1 and _BLANK_LINE.search(text.content):
                text = text._replace(
                    content=text.content.lstrip(b"\r\n"), has_blank_rows=True
                )
                table = _parsed(text, types, threads)
            refuse_repeated(table.column_names, text.location)
        except UnicodeDecodeError as error:
            raise SourceError(f"{text.location}: {error}; {UTF_8}") from error
        except pa.ArrowException as error:
            if not threads:
                if "conversion" in str(error):
                    typed = ", or state the type of its column by dtypes="
                else:
                    typed = ""
                if "invalid UTF8" in str(error):
                    remedy = UTF_8
                else:
                    remedy = f"correct that row{typed}"
                raise SourceError(f"{text.location}: {error}; {remedy}") from error
        else:
            if text.has_several_lines and text.quote is not None:
                refuse_swallowed_rows(
                    table,
                    text.location,
                    text.delimiter,
                    text.quote,
                    text.read_options,
                )
            _refuse_rounded_integers(table, types, text)
            return table
    raise AssertionError(text.location)


def _parsed(text: _Text, types: Mapping[str, Any], threads: bool) -> Any:
    """The table of a file; by one thread, lines may be long, and types are inferred from more of them."""
    block = None
    if not threads:
        block = min(max(_BLOCK, len(text.content) // _BLOCKS + 1), _MOST_BLOCK)
    if text.has_several_lines:
        block = _between_crlf(
            text.content,
            block or max(_LONG_BLOCK, len(text.content) // _LONG_BLOCKS + 1),
        )
    return arrow_csv.read_csv(
        pa.BufferReader(text.content),
        arrow_csv.ReadOptions(use_threads=threads, block_size=block),
        arrow_csv.ParseOptions(
            delimiter=text.delimiter,
            quote_char=text.quote or False,
            newlines_in_values=text.has_several_lines,
            ignore_empty_lines=not text.has_blank_rows,
        ),
        arrow_csv.ConvertOptions(column_types=types),
    )


def _between_crlf(content: bytes, largest: int) -> int:
    """Bytes of blocks of which none ends within a CRLF: in quotes, Arrow would lose a byte of it (arrow#51368)."""
    for size in range(largest, largest // 2, -1):
        if all(
            content[end - 1 : end + 1] != b"\r\n"
            for end in range(size, len(content), size)
        ):
            return size
    return min(len(content), _MOST_BLOCK)


def _refuse_rounded_integers(
    table: Any, types: Mapping[str, Any], text: _Text
) -> None:
    """Raises an error for floats that may be rounded integers, or integers that fit no int64."""
    edge = re.escape(f"{text.delimiter}{text.quote or ''}".encode())
    # digits of 2**53
    long_integer = rb"(?:(?<![\w.])|(?<=[%b]))\d{16,}(?:(?![\w.])|(?=[%b]))" % (
        edge,
        edge,
    )
    for name, column in zip(table.column_names, table.columns, strict=True):
        if (
            name not in types
            and any(map(has_large, column.chunks))
            and re.search(long_integer, text.content)
        ):
            row = np.argmax(
                compute.greater_equal(compute.abs(column), FIRST_ROUNDED).fill_null(
                    False
                )
            )
            raise SourceError(
                f"{text.location}: column {name!r} has numbers from 2**53 on, which "
                f"float64 rounds if they are integers: {column[row].as_py()!r} in "
                f"row {row}; state the type of its column: dtypes={{{name!r}: "
                "'uint64'} if all fit it, or str, or 'float64' to round them"
            )
