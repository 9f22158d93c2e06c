"""PartitionPicture: draws which hosts hold which parts of a leaf, with rows down and columns across."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np

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

    def text(self, width: int = 100) -> str:
        """Draws for the terminal, `width` characters per line. A cell shows several parts if they don't fit."""
        rows = _bounds(self.holdings.cuts[0], _BANDS)
        labels = [f"{low * self.holdings.extents[0]}:{high * self.holdings.extents[0]}" for low, high in rows]
        margin = max(map(len, [*labels, "rows"])) + 2
        columns = _bounds(self.holdings.columns, max(1, (width - margin) // (_CELL + 1)))
        cell_width = max(_CELL, min(26, (width - margin) // len(columns) - 1))
        cells = [[tuple(self._holders(row, column).tolist()) for column in columns] for row in rows]
        shades = _shades(cells)
        header = " ".join(_cut(self._column_text(*column), cell_width).ljust(cell_width) for column in columns)
        lines = [self.title, self._caption(), "", "rows".ljust(margin) + header.rstrip()]
        for label, line in zip(labels, cells, strict=True):
            drawn = (f" {_cut(_hosts_text(cell), cell_width - 2)} ".center(cell_width, shades[cell]) for cell in line)
            lines.append(label.ljust(margin) + " ".join(drawn))
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


def _bounds(count: int, most: int) -> list[tuple[int, int]]:
    """Splits `range(count)` into at most `most` `(start, stop)` ranges, of equal size if that takes about as many."""
    runs = min(count, most)
    runs = next((divisor for divisor in range(runs, runs // 2, -1) if count % divisor == 0), runs)
    return [(count * run // runs, count * (run + 1) // runs) for run in range(runs)]


def _hosts_text(hosts: tuple[int, ...]) -> str:
    first, last, count = hosts[0], hosts[-1], len(hosts)
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
