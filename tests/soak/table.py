"""The table of a soak, by ten minutes or by hours, and what has grown."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, final

from tests.soak.trend import BLOCKS, WARM, Trend, trend

LONG = 6 * 3600
"""Seconds of a run from which on its table goes by hours."""


@final
class Column(NamedTuple):
    """A measurement.

    Args:
        name: Of the value in a sample.
        heading: What the table calls it.
        bits: How many the unit of the table leaves off: 20 for MiB of bytes.
        judged: Whether it may not grow.
    """

    name: str
    heading: str
    bits: int
    judged: bool

    def text(self, value: float) -> str:
        """A value in the unit of the table."""
        value /= 1 << self.bits
        return f"{value:,.1f}" if abs(value) < 1000 else f"{value:,.0f}"

    def hourly(self, found: Trend) -> str:
        """Change an hour, with its standard error."""
        sign = "+" if found.hourly >= 0 else ""
        return f"{sign}{self.text(found.hourly)} ± {self.text(found.error)}"


SHOWN = (
    Column("anonymous", "private MiB", 20, judged=False),
    Column("malloc_free", "malloc's free", 20, judged=False),
    Column("held", "the rest", 20, judged=True),
    Column("buffers", "buffers", 20, judged=False),
    Column("python_blocks", "Python blocks", 0, judged=True),
    Column("descriptors", "descriptors", 0, judged=True),
    Column("threads", "threads", 0, judged=True),
)
"""Columns of the table. Memory that malloc keeps for later allocations is no leak, so it is told but not judged."""

COLUMNS = (
    *SHOWN,
    Column("jax", "JAX arrays, MiB", 20, judged=True),
    Column("arrow", "Arrow's pool, MiB", 20, judged=True),
    Column("children", "child processes", 0, judged=True),
)


def table(samples: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line of Markdown for each ten minutes, or hour of a long run: means, and the most of private memory."""
    width = 3600 if samples[-1]["seconds"] > LONG else 600
    headings = ["minutes", "steps", "at most", *(column.heading for column in SHOWN)]
    lines = [_line(headings), "|---" + "|---:" * (len(headings) - 1) + "|"]
    steps = 0
    for begin in range(0, int(samples[-1]["seconds"]) + 1, width):
        inside = [entry for entry in samples if begin <= entry["seconds"] < begin + width]
        if not inside:
            continue
        now = sum(inside[-1]["steps"].values())
        most = max(entry["anonymous"] for entry in inside)
        cells = [f"{begin // 60} to {(begin + width) // 60}", f"{now - steps:,}", SHOWN[0].text(most)]
        steps = now
        cells.extend(column.text(sum(_values(inside, column)) / len(inside)) for column in SHOWN)
        lines.append(_line(cells))
    if trends := trends_of(samples):
        lines.append(_line(["exponent", "", "", *(f"{trends[column].exponent:.3f}" for column in SHOWN)]))
        lines.append(_line(["an hour", "", "", *(column.hourly(trends[column]) for column in SHOWN)]))
    return lines


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _values(samples: Sequence[Mapping[str, Any]], column: Column) -> list[float]:
    """Values of a column; 0 where a machine does not measure it."""
    return [_measured(entry).get(column.name, 0) for entry in samples]


def _measured(entry: Mapping[str, Any]) -> dict[str, Any]:
    """A sample with private memory less that which malloc keeps, and large buffers."""
    held = entry["anonymous"] - entry.get("malloc_free", 0)
    return {**entry["owners"], **entry, "held": held}


def trends_of(samples: Sequence[Mapping[str, Any]]) -> dict[Column, Trend]:
    """The trend of each measurement; none where there are too few samples."""
    seconds = [entry["seconds"] for entry in samples]
    if sum(time >= WARM * seconds[-1] for time in seconds) < 2 * BLOCKS:
        return {}
    return {column: trend(seconds, _values(samples, column)) for column in COLUMNS}


def findings(samples: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence for each measurement that has grown beyond chance."""
    return [
        f"{column.name} grows: {column.hourly(found)} an hour, exponent {found.exponent:.3f}"
        for column, found in trends_of(samples).items()
        if column.judged and found.grows
    ]
