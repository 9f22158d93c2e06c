"""Human-readable text: tables, sizes with units, lists of rows, names of functions."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from loadax.redaction import redact

_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose columns are two spaces apart."""
    header, *rows = [
        [redact(text).replace("\n", "\\n") for text in line]
        for line in (header, *rows)
    ]
    widths = [
        max(len(line[column]) for line in (header, *rows))
        for column in range(len(header))
    ]
    padded = (
        [text.ljust(width) for text, width in zip(line, widths, strict=True)]
        for line in (header, *rows)
    )
    return "".join("  ".join(line).rstrip() + "\n" for line in padded)


def size_text(size: float) -> str:
    """A number of bytes with a unit: `512 B`, `4.0 KiB`, `128 MiB`."""
    if size < 1024:
        return f"{size:.0f} B"
    for unit in _UNITS:
        size /= 1024
        if size < 1024 or unit == _UNITS[-1]:
            break
    if size < 10:
        return f"{size:.1f} {unit}"
    return f"{size:.0f} {unit}"


def percent_text(share: float) -> str:
    """A share as text: `0.4%`, `38%`."""
    if share < 0.1:
        return f"{share:.1%}"
    return f"{share:.0%}"


def count_text(count: int, noun: str, plural: str = "") -> str:
    """A count with its noun: `1 row`, `2,000 rows`, `3 entries`; no plural: the noun with an s."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def some(values: Iterable[Any], most: int = 8) -> str:
    """The first few of many values: `3, 5, 8, …`."""
    first = list(islice(map(str, values), most + 1))
    return ", ".join([*first[:most], *["…"] * (len(first) > most)])


def rows_text(rows: Any) -> str:
    """Rows (int64[n]) in a message: `row 3`, `12 rows (3, 5, 8, …)`."""
    if len(rows) == 1:
        return f"row {rows[0]}"
    return f"{count_text(len(rows), 'row')} ({some(rows)})"


def with_article(noun: str) -> str:
    """A noun with its indefinite article: `an int32 entry`, `a uint8 entry`."""
    return f"{'an' if noun.lower().startswith(tuple('aeio')) else 'a'} {noun}"


def type_text(value: Any) -> str:
    """The name of a value's type with its article: `an int`, `a list`."""
    return with_article(type(value).__name__)


def name_of(function: Callable[..., Any]) -> str:
    """A function's qualified name and, if known, its file and line."""
    name = getattr(function, "__qualname__", None) or repr(function)
    code = getattr(function, "__code__", None)
    if code:
        return f"{name} ({code.co_filename}:{code.co_firstlineno})"
    return name


def short_name(function: Callable[..., Any]) -> str:
    """A function's name; for a lambda, also its file and line."""
    while isinstance(function, partial):
        function = function.func
    name = str(getattr(function, "__name__", None) or type(function).__name__)
    code = getattr(function, "__code__", None)
    if name == "<lambda>" and code:
        return f"lambda ({Path(code.co_filename).name}:{code.co_firstlineno})"
    return name
