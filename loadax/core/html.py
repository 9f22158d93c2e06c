"""HTML of rich reprs in notebooks. All texts are escaped."""

from collections.abc import Iterable, Sequence
from html import escape

_CELL = "text-align:left;vertical-align:top"


def html_table(rows: Iterable[Sequence[str]], header: Sequence[str] = ()) -> str:
    """A table of texts."""
    head = f"<thead><tr>{_cells('th', header)}</tr></thead>" if header else ""
    body = "".join(f"<tr>{_cells('td', row)}</tr>" for row in rows)
    return f"<table>{head}<tbody>{body}</tbody></table>"


def _cells(kind: str, texts: Sequence[str]) -> str:
    return "".join(f'<{kind} style="{_CELL}">{escape(text)}</{kind}>' for text in texts)
