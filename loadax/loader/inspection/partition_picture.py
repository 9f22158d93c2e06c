"""PartitionPicture: draws which hosts hold which parts of a leaf, with rows down and columns across."""

import colorsys
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np
from numpy.typing import NDArray

from loadax.core.formatting import count_text
from loadax.protocols import Integers
from loadax.sharding.holdings import LeafHoldings

_SHADES = "░▒▓█"
_BANDS = 16  # most bands of rows
_CELL = 13  # fewest characters per part


@final
@dataclass(frozen=True, eq=False)
class PartitionPicture:
    """The parts of one leaf and the hosts that hold them.

    Args:
        title: Title with the leaf.
        holdings: Parts of the leaf, by host.
    """

    title: str
    holdings: LeafHoldings

    def text(self, width: int = 100, colour: bool | None = None) -> str:
        """Draws for the terminal. A cell shows several parts if they don't fit.

        Args:
            width: Characters per line.
            colour: Whether to use colours. None: if stdout is a terminal and `NO_COLOR` is not set.
        """
        if colour is None:
            colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        rows = _bounds(self.holdings.cuts[0], _BANDS)
        labels = [f"{low * self.holdings.extents[0]}:{high * self.holdings.extents[0]}" for low, high in rows]
        margin = max(map(len, [*labels, "rows"])) + 2
        columns = _bounds(self.holdings.columns, max(1, (width - margin) // (_CELL + 1)))
        cell_width = max(_CELL, min(26, (width - margin) // len(columns) - 1))
        cells = [[tuple(self._holders(row, column).tolist()) for column in columns] for row in rows]
        shades = _shades(cells)
        lines = [self.title, self._caption(), ""]
        lines.append(
            "rows".ljust(margin)
            + " ".join(_cut(self._column_text(*column), cell_width).ljust(cell_width) for column in columns).rstrip()
        )
        for label, line in zip(labels, cells, strict=True):
            lines.append(
                label.ljust(margin) + " ".join(self._cell(cell, cell_width, shades[cell], colour) for cell in line)
            )
        return "".join(f"{line}\n" for line in lines)

    @cached_property
    def _by_part(self) -> tuple[Integers, Integers]:
        """Hosts of all parts, concatenated; and int64[parts + 1], the offsets of each part's hosts among them."""
        order = np.argsort(self.holdings.shard, kind="stable")
        parts = self.holdings.cuts[0] * self.holdings.columns
        return self.holdings.host[order], np.searchsorted(self.holdings.shard[order], np.arange(parts + 1))

    def _holders(self, rows: tuple[int, int], columns: tuple[int, int]) -> Integers:
        width = self.holdings.columns
        hosts, begins = self._by_part
        held = [hosts[begins[row * width + columns[0]] : begins[row * width + columns[1]]] for row in range(*rows)]
        return np.unique(np.concatenate(held))

    def _column_text(self, low: int, high: int) -> str:
        """Columns of these shards: `start:stop` of each dim that is split."""
        cuts, extents = self.holdings.cuts[1:], self.holdings.extents[1:]
        cut = [dim for dim, count in enumerate(cuts) if count > 1]
        if not cut:
            return "all columns" if cuts else "(one value a row)"
        first, last = (np.unravel_index(index, cuts) for index in (low, high - 1))
        return ", ".join(f"{int(first[dim]) * extents[dim]}:{(int(last[dim]) + 1) * extents[dim]}" for dim in cut)

    def _caption(self) -> str:
        counts = np.diff(self._by_part[1])
        least, most = int(counts.min()), int(counts.max())
        holders = count_text(most, "host") if least == most else f"{least:,} to {most:,} hosts"
        parts = self.holdings.cuts[0] * self.holdings.columns
        return (
            f"{count_text(parts, 'part')} on {count_text(self.holdings.hosts, 'host')}; each part is held by {holders}"
        )

    def _cell(self, hosts: tuple[int, ...], width: int, shade: str, colour: bool) -> str:
        label = _cut(_hosts_text(np.array(hosts)), width - 2)
        if not colour:
            return f" {label} ".center(width, shade)
        red, green, blue = (_colours(self.holdings.hosts)[hosts[0]] // 43).tolist()
        ink = 16 if 2 * red + 4 * green + blue > 17 else 231
        return f"\x1b[48;5;{16 + 36 * red + 6 * green + blue}m\x1b[38;5;{ink}m{label.center(width)}\x1b[0m"


def _bounds(count: int, most: int) -> list[tuple[int, int]]:
    """Splits `range(count)` into at most `most` `(start, stop)` ranges, of equal size if that takes about as many."""
    runs = min(count, most)
    runs = next((divisor for divisor in range(runs, runs // 2, -1) if count % divisor == 0), runs)
    return [(count * run // runs, count * (run + 1) // runs) for run in range(runs)]


def _hosts_text(hosts: Integers) -> str:
    first, last, count = int(hosts[0]), int(hosts[-1]), len(hosts)
    if count == 1:
        return f"{first}"
    return f"{first}-{last}" if last - first + 1 == count else f"{count} hosts" if count > 2 else f"{first}, {last}"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _shades(cells: Iterable[list[tuple[int, ...]]]) -> dict[tuple[int, ...], str]:
    """A shade for every set of hosts, different from those of its neighbours."""
    shades: dict[tuple[int, ...], str] = {}
    above: list[tuple[int, ...]] = []
    for line in cells:
        for column, cell in enumerate(line):
            if cell not in shades:
                near = {shades[neighbour] for neighbour in (*line[:column][-1:], *above[column : column + 1])}
                shades[cell] = next(shade for shade in _SHADES if shade not in near)
        above = line
    return shades


def _colours(hosts: int) -> NDArray[np.uint8]:
    """uint8[hosts, 3]: a hue per host, alternating light and dark."""
    colours = [colorsys.hsv_to_rgb(0.85 * host / max(1, hosts), 0.55, 0.95 - 0.2 * (host % 2)) for host in range(hosts)]
    return np.round(np.array(colours) * 255).astype(np.uint8)
