"""Checks whether the delimiter and the quote character of a CSV file are those that it was written with."""

import re
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import pyarrow as pa
from pyarrow import compute

from loadax.core.arguments import shown
from loadax.errors import SourceError

_SAMPLED_BYTES = 1 << 16
_SAMPLED_TEXTS = 1000
_OTHERS = ";\t|,"
_SHOWN = 40  # bytes of a line in a message


def refuse_other_delimiter(content: bytes, location: str, delimiter: str, quote: str | None) -> None:
    """Raises an error if all of the first lines have another delimiter equally often, as `a;b` has."""
    sample = content[:_SAMPLED_BYTES]
    if quote:
        sample = re.sub(rb"%b[^%b]*%b" % ((re.escape(quote.encode()),) * 3), b"", sample)
    lines = [line for line in sample.splitlines() if line.strip()]
    if len(content) > _SAMPLED_BYTES and len(lines) > 1:
        lines.pop()  # it may be cut
    # A header of several names is right, unless they are joined by commas, which numbers may have.
    others = _OTHERS if not lines or delimiter.encode() not in lines[0] else ";\t" if delimiter == "," else ""
    for other in others:
        counts = {line.count(other.encode()) for line in lines}
        if other != delimiter and len(counts) == 1 and counts != {0}:
            first = content.lstrip()[:_SHOWN].splitlines()[0].decode(errors="replace")
            raise SourceError(
                f"{location}: its entries are separated by {other!r}, not by {delimiter!r}: the first line is "
                f"{first!r}; pass delimiter={other!r}, or, if it is right, delimiter={delimiter!r}"
            )


def refuse_stray_quotes(content: bytes, location: str, delimiter: str, quote: str) -> None:
    """Raises an error if an entry begins with a quote that is not closed at the end of an entry."""
    mark, between = re.escape(quote.encode()), re.escape(delimiter.encode())
    begin = rb"%b(?<![^\r\n%b]%b)" % (mark, between, mark)
    entry = rb"[^%b]*+(?:%b%b[^%b]*+)*+%b(?= *(?:[\r\n%b]|\Z))" % (mark, mark, mark, mark, mark, between)
    # A match goes over all entries that are right, and has no group where the first one of them is not.
    for found in re.finditer(rb"%b(%b(?:[^%b]*+%b%b)*+)?" % (begin, entry, mark, begin, entry), content):
        if found[1] is None:
            line = content.count(b"\n", 0, found.start()) + 1
            text = content[found.start() : found.start() + _SHOWN].partition(b"\n")[0].decode(errors="replace")
            raise SourceError(
                f"{location}, line {line}: the quote that begins {text!r} is not closed at the end of an entry; close "
                "it, and double the quotes within; or, if quotes are part of the texts of this file, pass quote=None"
            )


def refuse_swallowed_rows(table: Any, location: str, delimiter: str) -> None:
    """Raises an error if all texts of several lines would be rows of the same columns without their quotes."""
    for index, (name, column) in enumerate(zip(table.column_names, table.columns, strict=True)):
        if len(table.schema) == 1 or not pa.types.is_string(column.type):
            continue
        texts = column.filter(compute.match_substring(column, "\n"))[:_SAMPLED_TEXTS].to_pylist()
        if texts and all(_are_rows(text, index, table.schema.types, delimiter) for text in texts):
            options = f"pyarrow.csv.ParseOptions({delimiter=}, newlines_in_values=True)"
            raise SourceError(
                f"{location}: the lines of a quoted text of column {name!r} look like rows: {shown(texts[0])}; if "
                "quotes are part of the texts of this file, pass quote=None; if it is right, read it by "
                f"loadax.from_arrow(pyarrow.csv.read_csv(path, parse_options={options}))"
            )


def _are_rows(text: str, column: int, kinds: Sequence[Any], delimiter: str) -> bool:
    """Whether lines have an entry for each column, some with another type than texts, or all with one after a tab."""
    # The text begins in this column of the first row, and ends in it in the last one.
    lines = f"{delimiter * column}{text}{delimiter * (len(kinds) - 1 - column)}"
    rows = [line.split(delimiter) for line in re.split("\r\n?|\n", lines)]
    if any(len(row) != len(kinds) for row in rows):
        return False
    entries = [pair for row in rows for pair in zip(row, kinds, strict=True) if pair[0]]
    try:
        typed = [pa.scalar(entry).cast(kind) for entry, kind in entries if not pa.types.is_string(kind)]
    except pa.ArrowException:
        return False
    return bool(typed) or (
        delimiter == "\t" and all(map(itemgetter(0), rows[1:])) and all(map(itemgetter(-1), rows[:-1]))
    )
