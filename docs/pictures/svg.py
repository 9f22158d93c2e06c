"""The few SVG elements that the pictures are made of, in the colours of a light and a dark page."""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple


class Palette(NamedTuple):
    """Colours of one mode; `hosts` has a fill and a line for each host."""

    text: str
    faint: str
    line: str
    fill: str
    hosts: tuple[tuple[str, str], ...]


LIGHT = Palette("#1f2933", "#5f6b76", "#9aa5b1", "#f1f4f7", (("#ccf1ec", "#0f766e"), ("#fde3cf", "#b45309")))
DARK = Palette("#e6edf3", "#a3b0bd", "#5b6875", "#262d36", (("#134e4a", "#5eead4"), ("#5a3210", "#fdba74")))


def box(x: float, y: float, width: float, height: float, fill: str, line: str, radius: float = 4) -> str:
    """A rectangle with round corners."""
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius:g}" fill="{fill}" '
        f'stroke="{line}" stroke-width="1.2"/>'
    )


def text(
    x: float, y: float, words: str, colour: str, size: float = 13, anchor: str = "middle", weight: int = 400
) -> str:
    """One line of text, whose baseline is at `y`."""
    return (
        f'<text x="{x:g}" y="{y:g}" fill="{colour}" font-size="{size:g}" text-anchor="{anchor}" '
        f'font-weight="{weight}">{escape(words)}</text>'
    )


def arrow(x: float, y: float, length: float, colour: str) -> str:
    """An arrow to the right."""
    tip = x + length
    return (
        f'<path d="M{x:g} {y:g}H{tip:g}M{tip - 6:g} {y - 5:g}L{tip:g} {y:g}L{tip - 6:g} {y + 5:g}" fill="none" '
        f'stroke="{colour}" stroke-width="1.6" stroke-linecap="round" stroke-linejoin="round"/>'
    )


def picture(width: int, height: int, title: str, elements: Sequence[str]) -> str:
    """An SVG file."""
    font = "-apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', Arial, sans-serif"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" font-family="{font}">\n<title>{escape(title)}</title>\n' + "\n".join(elements) + "\n</svg>\n"
    )
