"""Text for people: tables, sizes with units, a few of many rows, names of functions."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns two spaces apart, each as wide as its widest entry."""
    widths = [max(len(line[column]) for line in (header, *rows)) for column in range(len(header))]
    lines = (
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in (header, *rows)
    )
    return "".join(f"{line}\n" for line in lines)


def size_text(size: float) -> str:
    """A number of bytes as one would say it: `512 B`, `4.0 KiB`, `128 MiB`."""
    if size < 1024:
        return f"{size:.0f} B"
    for unit in _UNITS:
        size /= 1024
        if size < 1024 or unit == _UNITS[-1]:
            break
    return f"{size:.1f} {unit}" if size < 10 else f"{size:.0f} {unit}"


def count_text(number: int, what: str) -> str:
    """`1 row`, `2,000 rows`."""
    return f"{number:,} {what}{'s' * (number != 1)}"


def some(values: Iterable[Any], most: int = 8) -> str:
    """The first few of many values: `3, 5, 8, …`."""
    first = list(islice(map(str, values), most + 1))
    return ", ".join([*first[:most], *["…"] * (len(first) > most)])


def rows_text(rows: Any) -> str:
    """Rows (int64[n]) as a message names them: `row 3`, `12 rows (3, 5, 8, …)`."""
    return f"row {rows[0]}" if len(rows) == 1 else f"{len(rows)} rows ({some(rows)})"


def name_of(function: Callable[..., Any]) -> str:
    """A function as a reader would look it up: its name, and where it was written when that is known."""
    name = getattr(function, "__qualname__", None) or repr(function)
    code = getattr(function, "__code__", None)
    return f"{name} ({code.co_filename}:{code.co_firstlineno})" if code else name


def short_name(function: Callable[..., Any]) -> str:
    """A function's name alone; of a lambda, the place where it was written."""
    while isinstance(function, partial):
        function = function.func
    name = str(getattr(function, "__name__", None) or type(function).__name__)
    code = getattr(function, "__code__", None)
    return f"lambda ({Path(code.co_filename).name}:{code.co_firstlineno})" if name == "<lambda>" and code else name
