"""Draws panels with matplotlib, without pyplot: nothing global is set, and its style is that of the caller.

Colours of data are those of Okabe and Ito, which people with colour blindness can tell apart, on white and on black.
"""

import io
import math
from collections.abc import Iterable, Sequence
from functools import singledispatch
from typing import Any, final

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator, PercentFormatter, StrMethodFormatter
from matplotlib.transforms import ScaledTranslation

from loadax.pictures.panels import (
    Bars,
    Histogram,
    Holders,
    PackingBars,
    Panel,
    Points,
    Shares,
)

COLOURS = (
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#cc79a7",
    "#d55e00",
    "#56b4e9",
    "#999999",
    "#a6761d",
)
_GREY = COLOURS[6]
_WIDTHS = (7.0, 10.8)  # inches of a figure of one column, and of two
_HEIGHT = 3.1  # inches of a panel
_MOST_NAMES = 16  # beside each other
_LETTERS = 40  # of a label in a legend
_THOUSANDS = StrMethodFormatter("{x:,.10g}")
_SMALL = 8  # points of a text in a panel


@final
class Picture(Figure):
    """A figure of matplotlib that notebooks show as SVG."""

    def _repr_svg_(self) -> str:
        file = io.StringIO()
        self.savefig(file, format="svg", metadata={"Date": None})
        return file.getvalue()


def picture(panels: Sequence[Panel]) -> Picture:
    """Draws panels side by side, in the style of matplotlib's `rcParams`."""
    columns = 1 if len(panels) < 3 else 2
    lines = math.ceil(len(panels) / columns)
    size = (_WIDTHS[columns - 1], lines * _HEIGHT)
    figure = Picture(figsize=size, layout=ConstrainedLayoutEngine(h_pad=0.1))
    for number, panel in enumerate(panels, 1):
        axes = figure.add_subplot(lines, columns, number)
        axes.set_title(panel.title, loc="left", fontsize=11, weight="bold", pad=20)
        axes.annotate(
            panel.note,
            (0, 1),
            xytext=(0, 6),
            xycoords="axes fraction",
            textcoords="offset points",
            fontsize=_SMALL + 0.5,
        )
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=_SMALL)
        axes.set_xlabel(panel.x, fontsize=_SMALL + 1)
        _draw(panel, axes)
    for text in figure.findobj(Text):
        text.set_parse_math(False)  # names of data may have "$"
    return figure


@singledispatch
def _draw(panel: Panel, axes: Axes) -> None:
    """Draws a panel."""
    raise AssertionError(f"{type(panel).__name__} is not drawn on {axes}")


@_draw.register
def _holders(panel: Holders, axes: Axes) -> None:
    most = max(who for line in panel.holders for part in line for who in part)
    for line, parts in enumerate(panel.holders):
        for column, part in enumerate(parts):
            _part(axes, (column, line), part, panel.kind, most)
    axes.set_xlim(0, len(panel.columns))
    axes.set_ylim(len(panel.rows), 0)
    axes.set_ylabel("rows of the batch", fontsize=_SMALL + 1)
    _name_ticks(axes.xaxis, panel.columns)
    _name_ticks(axes.yaxis, panel.rows)
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.tick_params(length=0)


def _part(
    axes: Axes, corner: tuple[int, int], part: tuple[int, ...], kind: str, most: int
) -> None:
    """Draws a part of the batch in the colour of its holder; in grey, if there are several."""
    if len(part) > 1:
        colour = _GREY
    elif most < len(COLOURS):
        colour = COLOURS[part[0]]
    else:
        colour = mpl.colors.to_hex(mpl.colormaps["viridis"](part[0] / most))
    left, top = corner
    axes.add_patch(
        Rectangle((left + 0.02, top + 0.04), 0.96, 0.92, color=colour, linewidth=0)
    )
    axes.text(
        left + 0.5,
        top + 0.5,
        _part_text(kind, part),
        ha="center",
        va="center",
        fontsize=_SMALL - 1,
        color=_text_on(colour),
    )


def _part_text(kind: str, part: tuple[int, ...]) -> str:
    if len(part) == 1:
        return f"{kind} {part[0]}"
    if len(part) <= 4:
        return f"{kind}s {', '.join(map(str, part))}"
    return f"{len(part):,} {kind}s"


def _text_on(colour: str) -> str:
    """Black or white, whichever has the greater contrast (WCAG) with a colour."""
    red, green, blue = mpl.colors.to_rgb(colour)
    luminance = 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2
    if luminance > 0.18:
        return "black"
    return "white"


def _name_ticks(axis: Any, names: Sequence[str]) -> None:
    """Writes the names of bars or cells that are 1 apart; of more than 16, every other one."""
    every = math.ceil(len(names) / _MOST_NAMES)
    places = [number + 0.5 for number in range(0, len(names), every)]
    axis.set_ticks(places, names[::every])


@_draw.register
def _shares(panel: Shares, axes: Axes) -> None:
    below = np.zeros(len(panel.edges) - 1)
    bars = []
    for number, shares in enumerate(panel.shares.values()):
        above = below + shares
        colour = COLOURS[number % len(COLOURS)]
        bars.append(
            axes.stairs(above, panel.edges, baseline=below, fill=True, color=colour)
        )
        below = above
    axes.set_xlim(panel.edges[0], panel.edges[-1])
    axes.set_ylim(0, 1)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.xaxis.set_major_formatter(_THOUSANDS)
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    _legend(axes, bars, panel.shares)


@_draw.register
def _packing_bars(panel: PackingBars, axes: Axes) -> None:
    for line, row in enumerate(panel.rows):
        for turn, colour in enumerate((COLOURS[0], COLOURS[5])):
            axes.broken_barh(row.parts[turn::2], (line + 0.1, 0.8), color=colour)
    axes.set_xlim(0, panel.length)
    axes.set_ylim(len(panel.rows), 0)
    _name_ticks(axes.yaxis, [row.name for row in panel.rows])
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.xaxis.set_major_formatter(_THOUSANDS)


@_draw.register
def _bars(panel: Bars, axes: Axes) -> None:
    places = np.arange(len(panel.names)) + 0.5
    number = len(panel.series)
    width = 0.8 / number
    below = np.zeros(len(places))
    bars = []
    for turn, values in enumerate(panel.series.values()):
        colour = _colours(panel)[turn]
        if panel.stacked:
            bars.append(axes.bar(places, values, 0.7, below, color=colour))
            below = below + values
            continue
        beside = places + (turn - (number - 1) / 2) * width
        bars.append(axes.bar(beside, values, width, color=colour))
        if len(places) * number <= _MOST_NAMES:
            axes.bar_label(bars[-1], fmt="{:,.4g}", fontsize=_SMALL, padding=1)
    axes.set_ylabel(panel.y, fontsize=_SMALL + 1)
    axes.set_xlim(0, len(places))
    axes.set_ylim(0, 1.08 * axes.get_ylim()[1])
    axes.yaxis.set_major_formatter(_THOUSANDS)
    _name_ticks(axes.xaxis, panel.names)
    if number > 1:
        _legend(axes, bars, panel.series, panel.names[0].count("\n") + 1)


def _colours(panel: Bars) -> Sequence[str]:
    """Colours of the series, of which grey is what one wants less of."""
    if panel.stacked:
        return (COLOURS[0], _GREY)
    return (_GREY, COLOURS[0])[-len(panel.series) :]


@_draw.register
def _histogram(panel: Histogram, axes: Axes) -> None:
    axes.stairs(panel.counts, panel.edges, fill=True, color=COLOURS[0])
    axes.set_ylabel(panel.y, fontsize=_SMALL + 1)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(_THOUSANDS)


@_draw.register
def _points(panel: Points, axes: Axes) -> None:
    points = []
    for colour, rows in zip(COLOURS, panel.rows.values(), strict=False):
        points += axes.plot(panel.positions, rows, ".", color=colour, ms=3.5)
    axes.set_ylabel(panel.y, fontsize=_SMALL + 1)
    axes.yaxis.set_major_formatter(_THOUSANDS)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.xaxis.set_major_formatter(_THOUSANDS)
    if len(panel.rows) > 1:
        _legend(axes, points, panel.rows)


def _legend(
    axes: Axes, handles: Sequence[Any], labels: Iterable[str], lines: int = 1
) -> None:
    """Puts a legend below the axes, whose ticks have names of some lines."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    below = ScaledTranslation(0, -(24 + 10 * lines) / 72, figure.dpi_scale_trans)
    legend = axes.legend(
        handles,
        [str(number) for number in range(len(handles))],
        loc="upper left",
        bbox_to_anchor=(0, 0),
        bbox_transform=axes.transAxes + below,
        ncols=2,
        fontsize=_SMALL,
        frameon=False,
        borderaxespad=0,
        borderpad=0,
    )
    # legend() itself leaves out labels that begin with "_".
    for text, label in zip(legend.get_texts(), labels, strict=False):
        text.set_text(_short(label))


def _short(label: str) -> str:
    """A label that fits into a column of a legend, with its end, which has its share."""
    if len(label) <= _LETTERS:
        return label
    return f"{label[: _LETTERS - 24]}…{label[-23:]}"
