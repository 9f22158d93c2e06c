"""Checks whether the delimiter and the quote character of a CSV file are those that it was written with."""

import re
from typing import Any

from loadax.errors import SourceError

_SAMPLED_BYTES = 1 << 16
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


def refuse_open_quotes(content: bytes, location: str, delimiter: str, quote: str, read_options: Any) -> None:
    """Raises an error if an entry begins with a quote that is not closed at the end of an entry in the same line."""
    mark, between = re.escape(quote.encode()), re.escape(delimiter.encode())
    begin = rb"%b(?<![^\r\n%b]%b)" % (mark, between, mark)
    text = rb"[^\r\n%b]*+" % mark
    entry = rb"%b(?:%b%b%b)*+%b(?= *(?:[\r\n%b]|\Z))" % (text, mark, mark, text, mark, between)
    # A match goes over all entries that are right, and has no group where the first one of them is not.
    for found in re.finditer(rb"%b(%b(?:[^%b]*+%b%b)*+)?" % (begin, entry, mark, begin, entry), content):
        if found[1] is None:
            line = content.count(b"\n", 0, found.start()) + 1
            shown = content[found.start() : found.start() + _SHOWN].partition(b"\n")[0].decode(errors="replace")
            options = {"delimiter": delimiter, "quote_char": quote, "newlines_in_values": True}
            raise SourceError(
                f"{location}, line {line}: the quote that begins {shown!r} is not closed at the end of an entry in "
                "that line; close it, and double the quotes within; or, if quotes are part of the texts of this file, "
                "pass quote=None; or, if texts have several lines, read it by loadax.from_arrow(pyarrow.csv.read_csv("
                f"path, pyarrow.csv.ReadOptions(**{read_options}), pyarrow.csv.ParseOptions(**{options})))"
            )
