"""Tables on the terminal: by rich where it is installed, else plain text. Output to files and pipes is always plain."""

import os
import sys
from collections.abc import Sequence
from typing import Any

from loadax.core.formatting import table
from loadax.redaction import redact

_COLOURS = {"ok": "green", "change": "bold yellow"}
"""Colours of the words that say how a check went."""


def table_text(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table for stdout."""
    console = _console()
    if console is None:
        return table(header, rows)
    from rich.markup import escape
    from rich.table import Table

    drawn = Table(box=None, pad_edge=False, header_style="bold cyan")
    for name in header:
        drawn.add_column(escape(name), overflow="fold")
    for row in rows:
        drawn.add_row(*(_coloured(text, escape(redact(text))) for text in row))
    with console.capture() as captured:
        console.print(drawn)
    return str(captured.get())


def show(*lines: str) -> None:
    """Writes lines to stdout."""
    sys.stdout.writelines(f"{redact(line)}\n" for line in lines)


def _coloured(text: str, escaped: str) -> str:
    return f"[{_COLOURS[text]}]{escaped}[/]" if text in _COLOURS else escaped


def _console() -> Any:
    """A console of rich; None if stdout is not a terminal, `NO_COLOR` is set, or rich is not installed."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    return Console(highlight=False)
