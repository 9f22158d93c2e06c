"""Checks whether the delimiter and the quote character of a CSV file are those that it was written with."""

import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyarrow import compute

from loadax.core.arguments import shown
from loadax.errors import SourceError

_SAMPLED_BYTES = 1 << 16
_OTHERS = ";\t|,"
_SHOWN = 40  # bytes of a line in a message
_SAMPLED_TEXTS = 1000


def refuse_other_delimiter(
    content: bytes, location: str, delimiter: str, quote: str | None
) -> None:
    """Raises an error if all of the first lines have another delimiter equally often, as `a;b` has."""
    sample = content[:_SAMPLED_BYTES]
    if quote:
        sample = re.sub(
            rb"%b[^%b]*%b" % ((re.escape(quote.encode()),) * 3), b"", sample
        )
    lines = [line for line in sample.splitlines() if line.strip()]
    if len(content) > _SAMPLED_BYTES and len(lines) > 1:
        lines.pop()  # it may be cut
    # A header of several names is right, unless they are joined by commas, which numbers may have.
    if not lines or delimiter.encode() not in lines[0]:
        others = _OTHERS
    elif delimiter == ",":
        others = ";\t"
    else:
        others = ""
    for other in others:
        counts = {line.count(other.encode()) for line in lines}
        if other != delimiter and len(counts) == 1 and counts != {0}:
            first = content.lstrip()[:_SHOWN].splitlines()[0].decode(errors="replace")
            raise SourceError(
                f"{location}: its entries are separated by {other!r}, not by "
                f"{delimiter!r}: the first line is {first!r}; pass "
                f"delimiter={other!r}, or, if it is right, delimiter={delimiter!r}"
            )


def has_several_lines(
    content: bytes, location: str, delimiter: str, quote: str
) -> bool:
    """Whether an entry in quotes has several lines.

    Raises:
        SourceError: When an entry begins with a quote that is not closed at the end of an entry; names its line.
    """
    mark = re.escape(quote.encode())
    start = _open_quote(content, 0, rb"[^\r\n%b]" % mark, delimiter, mark)
    if start is None:
        return False
    start = _open_quote(content, start, rb"[^%b]" % mark, delimiter, mark)
    if start is None:
        return True
    before = content[:start]
    line = before.count(b"\n") + before.count(b"\r") - before.count(b"\r\n") + 1
    opening = (
        content[start : start + _SHOWN].partition(b"\n")[0].decode(errors="replace")
    )
    raise SourceError(
        f"{location}, line {line}: the quote that begins {opening!r} is not closed "
        "at the end of an entry; close it, and double the quotes within; or, if "
        "quotes are part of the texts of this file, pass quote=None"
    )


def _open_quote(
    content: bytes, start: int, character: bytes, delimiter: str, mark: bytes
) -> int | None:
    """Offset of a quote that begins an entry and does not close it, where `character` matches those of its text."""
    between = re.escape(delimiter.encode())
    begin = rb"%b(?<![^\r\n%b]%b)" % (mark, between, mark)
    text = rb"%b*+%b" % (character, mark)
    entry = rb"%b(?:%b%b)*+(?= *(?:[\r\n%b]|\Z))" % (text, mark, text, between)
    # A match goes over all entries that are right, and has no group where the first one of them is not.
    entries = re.compile(
        rb"%b(%b(?:[^%b]*+%b%b)*+)?" % (begin, entry, mark, begin, entry)
    )
    return next(
        (
            found.start()
            for found in entries.finditer(content, start)
            if found[1] is None
        ),
        None,
    )


def refuse_swallowed_rows(
    table: Any, location: str, delimiter: str, quote: str, read_options: Any
) -> None:
    """Raises an error if all entries of several lines would be rows of the same columns without their quotes."""
    kinds = table.schema.types
    first = ""
    for column, texts in enumerate(table.columns):
        if pa.types.is_string(texts.type):
            long_texts = texts.filter(compute.match_substring_regex(texts, "[\r\n]"))
            for text in long_texts[:_SAMPLED_TEXTS].to_pylist():
                if not _are_rows(text, column, kinds, delimiter):
                    return
                first = first or text
    if first:
        options = {
            "delimiter": delimiter,
            "quote_char": quote,
            "newlines_in_values": True,
        }
        raise SourceError(
            f"{location}: the lines of the quoted text {shown(first)} look like "
            "rows; if quotes are part of the texts of this file, pass quote=None; "
            "or, if it is one text, read it by "
            "loadax.from_arrow(pyarrow.csv.read_csv(path, "
            f"pyarrow.csv.ReadOptions(**{read_options}), "
            f"pyarrow.csv.ParseOptions(**{options})))"
        )


def _are_rows(text: str, column: int, kinds: Sequence[Any], delimiter: str) -> bool:
    """Whether lines have an entry for each column, some with another type than texts, or all with one after a tab."""
    # The text begins in this column of the first row, and ends in it in the last one.
    lines = f"{delimiter * column}{text}{delimiter * (len(kinds) - 1 - column)}"
    rows = [line.split(delimiter) for line in re.split("\r\n?|\n", lines)]
    if len(kinds) == 1 or any(len(row) != len(kinds) for row in rows):
        return False
    entries = [
        pair for row in rows for pair in zip(row, kinds, strict=True) if pair[0]
    ]
    try:
        typed = [
            pa.scalar(entry).cast(kind)
            for entry, kind in entries
            if not pa.types.is_string(kind)
        ]
    except pa.ArrowException:
        return False
    if typed:
        return True
    return (
        delimiter == "\t"
        and all(row[0] for row in rows[1:])
        and all(row[-1] for row in rows[:-1])
    )
