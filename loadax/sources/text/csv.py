"""Opens CSV files as tables in memory."""

import csv
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute
from pyarrow import csv as arrow_csv

from loadax.core.arguments import shown
from loadax.errors import ArgumentError, SourceError
from loadax.sources.arrow.call import Call, column_names, naming_file, refuse_repeated
from loadax.sources.arrow.leaves import stated_classes
from loadax.sources.arrow.table import ArrowSource
from loadax.sources.file_names import compression, is_csv
from loadax.sources.io.byte_ranges import ByteRange
from loadax.sources.io.expand import FileKind, expand, file_name
from loadax.sources.io.files import Files
from loadax.sources.text.dtypes import arrow_types

_HEADER_BYTES = 1 << 16
_UTF_8 = "write the file in UTF-8, as `iconv -f LATIN1 -t UTF-8` does for Latin-1"
_FIRST_TOO_LARGE = 2.0**63  # for int64
_FILES = FileKind(
    "paths",
    "a CSV file",
    is_csv,
    (".csv file", "the files, or a pattern such as *.txt"),
)


def open_csv(
    paths: Any,
    columns: Sequence[str] | str | None = None,
    dtypes: Any = None,
    nulls: Any = None,
    classes: Any = None,
    delimiter: str | None = None,
) -> ArrowSource:
    """Opens CSV files; see `loadax.from_csv`.

    Raises:
        ArgumentError: When an argument is invalid.
        SourceError: When a file is missing, a line is damaged, columns differ, or one has nulls; names file and row.
    """
    types = arrow_types(dtypes, text=True)
    texts = dict.fromkeys(stated_classes(classes), pa.string())
    if delimiter is not None and (not isinstance(delimiter, str) or len(delimiter) != 1):
        raise ArgumentError(f"delimiter={shown(delimiter)}: pass a single character", argument="delimiter")
    files = Files()
    locations = expand(paths, _FILES, files)
    tables = [_read(files, location, {**texts, **types}, delimiter) for location in locations]
    names = column_names(columns, tables[0].column_names)
    for name in types:
        if name not in tables[0].column_names:
            raise ArgumentError(
                f"dtypes: there is no column {name!r}; there are {tables[0].column_names}", argument="dtypes"
            )
    tables = [_with_types(table, tables) for table in tables]
    _check_schemas(locations, tables, names)
    for location, table in zip(locations, tables, strict=True):
        _refuse_other_encodings(location, table, names)
    starts = np.cumsum([0, *map(len, tables)])

    def where(row: int) -> str:
        file = int(np.searchsorted(starts, row, side="right")) - 1
        return f"row {row - int(starts[file])} of {locations[file]}"

    call = Call("from_csv", "paths", "pyarrow.csv.read_csv(paths)", tuple(names), has_dtypes=True)
    table = pa.concat_tables([each.select(names) for each in tables])
    with naming_file(locations[0]):
        return ArrowSource(table, nulls, call, locations, where, classes)


def _read(files: Files, location: str, types: dict[str, Any], delimiter: str | None) -> Any:
    """The table of a file.

    A file that can't be parsed is parsed again by one thread, which knows the row, and the ends of quoted entries that
    contain newlines.
    """
    content = files.read([ByteRange(location, 0, files.sizes([location])[0])])[0]
    if not content.strip():
        raise SourceError(f"{location}: the file is empty; its first line must name the columns")
    between = delimiter or ("\t" if ".tsv" in file_name(location).lower() else ",")
    for threads in (True, False):
        try:
            table = _parsed(content, location, between, types, newlines=not threads)
            names = table.column_names
        except UnicodeDecodeError as error:
            raise SourceError(f"{location}: {error}; {_UTF_8}") from error
        except (pa.ArrowException, OSError) as error:
            if not threads:
                try:
                    names = _header(content, location, between)
                except OSError as damage:
                    raise SourceError(f"{location}: it can't be decompressed: {damage}; copy it again") from damage
                column = re.search(r"In CSV column #(\d+)", str(error))
                typed = ""
                if "invalid UTF8" in str(error):
                    raise SourceError(f"{location}: {error}; {_UTF_8}") from error
                if column is not None and int(column[1]) < len(names):
                    typed = f", or state the type of its column: dtypes={{{names[int(column[1])]!r}: str}}"
                raise SourceError(f"{location}: {error}; correct that row{typed}") from error
        else:
            refuse_repeated(names, location)
            _refuse_open_quote(table, content, location, between)
            _refuse_long_integers(table, types, content, location, between)
            return table
    raise AssertionError(location)


def _parsed(
    content: bytes,
    location: str,
    delimiter: str,
    types: Mapping[str, Any],
    columns: Sequence[str] | None = None,
    newlines: bool = False,
) -> Any:
    """The table of a file, or some of its columns; with `newlines` by one thread, for quoted texts of several lines."""
    return arrow_csv.read_csv(
        pa.input_stream(pa.BufferReader(content), compression(location)),
        arrow_csv.ReadOptions(use_threads=not newlines),
        arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=newlines),
        arrow_csv.ConvertOptions(column_types=types, include_columns=columns),
    )


def _refuse_open_quote(table: Any, content: bytes, location: str, delimiter: str) -> None:
    """Raises an error if the last row is the rest of the file, after a quote that is not closed."""
    values = [value for row in table.slice(max(0, len(table) - 1)).to_pylist() for value in row.values()]
    if not any(b"\n" in value if isinstance(value, bytes) else "\n" in str(value) for value in values):
        return
    text = pa.input_stream(pa.BufferReader(content), compression(location)).read()
    if text.count(b'"') % 2 and re.search(
        rb'(?:^|[\n%b])"[^"]*+(?:""[^"]*+)*+\Z' % re.escape(delimiter.encode()), text
    ):
        raise SourceError(
            f"{location}: a quote in row {len(table) - 1} is not closed, so the rest of the file would be one text; "
            "close it"
        )


def _refuse_long_integers(table: Any, types: Collection[str], content: bytes, location: str, delimiter: str) -> None:
    """Raises an error if integers that fit no int64 would be rounded to float64."""
    for name, column in zip(table.column_names, table.columns, strict=True):
        if not pa.types.is_floating(column.type) or name in types:
            continue
        largest = compute.max(compute.abs(column)).as_py()
        if largest is None or not _FIRST_TOO_LARGE <= largest <= 2 * _FIRST_TOO_LARGE:
            continue
        try:
            _parsed(content, location, delimiter, {name: pa.uint64()}, [name])
        except pa.ArrowException:
            continue  # fractions, or integers that no dtype has
        raise SourceError(
            f"{location}: column {name!r} has integers too large for int64, and float64 would round them; state its "
            f"type: dtypes={{{name!r}: 'uint64'}}"
        )


def _refuse_other_encodings(location: str, table: Any, names: Sequence[str]) -> None:
    """Raises an error if a column has text that is not UTF-8, which the parser takes for bytes."""
    for name in names:
        if pa.types.is_binary(table.schema.field(name).type):
            for row, value in enumerate(table.column(name).to_pylist()):
                try:
                    (value or b"").decode()
                except UnicodeDecodeError:
                    raise SourceError(
                        f"{location}: row {row} of column {name!r} is {shown(value)}, which is not UTF-8; {_UTF_8}"
                    ) from None


def _header(content: bytes, location: str, delimiter: str) -> list[str]:
    """The names in the first line of a file."""
    stream = pa.input_stream(pa.BufferReader(content), compression(location))
    line = stream.read(_HEADER_BYTES).partition(b"\n")[0].decode("utf-8", "replace")
    return next(csv.reader([line.strip()], delimiter=delimiter), [])


def _with_types(table: Any, tables: Sequence[Any]) -> Any:
    """A table whose columns of nulls alone have the type that they have in other files."""
    for index, field in enumerate(table.schema):
        if pa.types.is_null(field.type):
            known = [other.schema.field(field.name).type for other in tables if field.name in other.column_names]
            kind = next((each for each in known if not pa.types.is_null(each)), field.type)
            table = table.set_column(index, field.name, table.column(index).cast(kind))
    return table


def _check_schemas(locations: Sequence[str], tables: Sequence[Any], names: Sequence[str]) -> None:
    for location, table in zip(locations, tables, strict=True):
        if table.column_names != tables[0].column_names:
            raise SourceError(
                f"{location}: the columns are {table.column_names}, and {tables[0].column_names} in {locations[0]}; "
                "pass files of the same columns"
            )
        for name in names:
            kind, first = table.schema.field(name).type, tables[0].schema.field(name).type
            if kind != first:
                dtype = "'float64'" if pa.types.is_floating(kind) or pa.types.is_floating(first) else "str"
                raise SourceError(
                    f"{location}: column {name!r} contains {kind}, and {first} in {locations[0]}; state its type: "
                    f"dtypes={{{name!r}: {dtype}}}"
                )
