"""Panels of a picture, as numbers. Each is drawn by a function of `loadax.pictures.figure`."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from loadax.core.arguments import choice
from loadax.sources.library import require

if TYPE_CHECKING:
    from loadax.pictures.figure import Picture


class Holders(NamedTuple):
    """Parts of a batch on a mesh, and who holds them.

    Args:
        title: Title of the panel.
        note: Line below the title.
        x: Label of the columns.
        kind: Noun of the holders: "host" or "device".
        rows: Rows of the batch in each line of parts, such as "0 to 7".
        columns: Columns in each part of a line.
        holders: Holders of each part, by line.
    """

    title: str
    note: str
    x: str
    kind: str
    rows: list[str]
    columns: list[str]
    holders: list[list[tuple[int, ...]]]


class Shares(NamedTuple):
    """Shares of several datasets in consecutive bins.

    Args:
        title: Title of the panel.
        note: Line below the title.
        x: Label of the bins.
        edges: First step (or position) of each bin, and the end.
        shares: Share of each dataset in each bin, by its label.
    """

    title: str
    note: str
    x: str
    edges: list[int]
    shares: dict[str, list[float]]


class PackedRow(NamedTuple):
    """One row of documents.

    Args:
        name: Name of the row.
        parts: First column and length of each document.
    """

    name: str
    parts: list[tuple[int, int]]


class PackingBars(NamedTuple):
    """Packed rows, each with the columns of its documents.

    Args:
        title: Title of the panel.
        note: Line below the title.
        x: Label of the columns.
        length: Columns of a row.
        rows: The rows.
    """

    title: str
    note: str
    x: str
    length: int
    rows: list[PackedRow]


class Bars(NamedTuple):
    """Values of several names.

    Args:
        title: Title of the panel.
        note: Line below the title.
        x: Label of the names.
        y: Label of the values.
        names: Names, in order.
        series: Values of the names, by the label of the series.
        stacked: Whether the series are parts of one whole.
    """

    title: str
    note: str
    x: str
    y: str
    names: list[str]
    series: dict[str, list[float]]
    stacked: bool = False


class Histogram(NamedTuple):
    """A histogram.

    Args:
        title: Title of the panel.
        note: Line below the title.
        x: Label of the values.
        y: Label of the counts.
        edges: First value of each bin, and the end.
        counts: Number of values in each bin.
    """

    title: str
    note: str
    x: str
    y: str
    edges: list[float]
    counts: list[int]


class Points(NamedTuple):
    """Rows at positions.

    Args:
        title: Title of the panel.
        note: Line below the title.
        x: Label of the positions.
        y: Label of the rows.
        positions: Positions.
        rows: Rows at these positions, by the label of the epoch.
    """

    title: str
    note: str
    x: str
    y: str
    positions: list[int]
    rows: dict[str, list[int]]


Panel: TypeAlias = Holders | Shares | PackingBars | Bars | Histogram | Points


# Panels by what they show, such as "mixture".
Panels: TypeAlias = Mapping[str, Sequence[Panel]]


def draw(panels: Panels, names: Sequence[str]) -> "Picture":
    """Draws panels as one figure.

    Args:
        panels: Panels that there are.
        names: Those to draw; none: all of them.

    Raises:
        ArgumentError: When there is no panel of a name.
        UnsupportedError: When matplotlib can't be imported; says what to install.
    """
    known = [name for name, found in panels.items() if found]
    remedy = f"those that this order has: {', '.join(map(repr, known))}"
    for name in names:
        choice("panels", name, known, remedy)
    require("plot()", {"matplotlib": "matplotlib.figure"}, extra="plot")
    from loadax.pictures.figure import picture

    return picture([panel for name in names or known for panel in panels[name]])
