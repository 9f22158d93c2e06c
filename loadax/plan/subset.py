"""Orders that keep or exclude listed rows, for verbs such as `filter` and `exclude`."""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from loadax.plan.order import VerbOrder, no_hits
from loadax.protocols import Hits, Integers, Order, Visits

_CHUNK = 1 << 20  # rows per pass: bounds the scratch memory, not the result


@dataclass(frozen=True, eq=False)
class _Listed(VerbOrder):
    """An order that depends on a list of positions of the parent.

    Args:
        parent: Order that is the same in every epoch.
        positions: The positions, ascending, int64[n].
        rule: Verb and the arguments that decide its list, as JSON, for `describe`.
        arguments: Arguments of the verb, as text.
    """

    positions: Integers
    rule: tuple[Any, ...]
    arguments: str = ""
    varies = False

    @property
    @abstractmethod
    def size(self) -> int: ...

    def describe(self) -> list[Any]:
        return [*self.parent.describe(), [*self.rule, self.size]]

    def text(self) -> list[str]:
        arguments = f"{self.arguments}{', ' * bool(self.arguments)}{self.size:,} rows"
        return [*self.parent.text(), f"{self.rule[0]}({arguments})"]


@final
@dataclass(frozen=True, eq=False)
class Subset(_Listed):
    """The listed positions of the parent. Memory-efficient for few positions."""

    @property
    def size(self) -> int:
        return len(self.positions)

    def visits(self, epochs: Integers, positions: Integers) -> Visits:
        return self.parent.visits(epochs, self.positions[positions])

    def inverse(self, rows: Integers, epochs: Integers, window: tuple[int, int]) -> Hits:
        if window[0] >= window[1]:
            return no_hits()
        inner = int(self.positions[window[0]]), int(self.positions[window[1] - 1]) + 1
        below = self.parent.inverse(rows, epochs, inner)
        positions = np.minimum(np.searchsorted(self.positions, below.positions), self.size - 1)
        listed = self.positions[positions] == below.positions
        return Hits(below.asked[listed], positions[listed])


@final
@dataclass(frozen=True, eq=False)
class Excluding(_Listed):
    """All positions of the parent except the listed ones. Memory-efficient for many positions."""

    @property
    def size(self) -> int:
        return self.parent.size - len(self.positions)

    @cached_property
    def _begins(self) -> Integers:
        """Own positions from which on one more of the parent's positions is excluded, int64[n]."""
        return self.positions - np.arange(len(self.positions))

    def visits(self, epochs: Integers, positions: Integers) -> Visits:
        return self.parent.visits(epochs, positions + np.searchsorted(self._begins, positions, side="right"))

    def inverse(self, rows: Integers, epochs: Integers, window: tuple[int, int]) -> Hits:  # noqa: ARG002
        below = self.parent.inverse(rows, epochs, (0, self.parent.size))
        before = np.searchsorted(self.positions, below.positions)
        kept = np.append(self.positions, -1)[before] != below.positions
        return Hits(below.asked[kept], (below.positions - before)[kept])


Rule = tuple[Any, ...]
Chosen = Callable[[Integers], NDArray[np.bool_]]


def keep_rows(order: Order, rows: Integers, rule: Rule, arguments: str = "") -> Order:
    """Keeps only the rows in the ascending list `rows`. Memory: 8 bytes per kept row."""
    return order.narrow(rule[0], lambda fixed, first: Subset(fixed, _positions(fixed, first, rows), rule, arguments))


def keep_where(order: Order, chosen: Chosen, rule: Rule, arguments: str) -> Order:
    """Keeps only the rows for which `chosen(rows)` is True."""
    return order.narrow(rule[0], lambda fixed, first: Subset(fixed, _where(fixed, first, chosen), rule, arguments))


def leave_out_rows(order: Order, rows: Integers, rule: Rule) -> Order:
    """Excludes the rows in the ascending list `rows`. Memory: 8 bytes per excluded row."""
    return order.narrow(rule[0], lambda fixed, first_row: Excluding(fixed, _positions(fixed, first_row, rows), rule))


def met_rows(order: Order, verb: str, num_rows: int) -> NDArray[np.bool_]:
    """Whether the order ever visits each row of the source, bool[num_rows]."""
    met = np.zeros(num_rows, bool)

    def look(fixed: Order, first_row: int) -> Order:
        if fixed.row_range == range(fixed.size):
            met[first_row : first_row + fixed.size] = True
        else:
            for _, rows in _rows_of(fixed, first_row):
                met[rows] = True
        return fixed

    order.narrow(verb, look)
    return met


def _rows_of(order: Order, first_row: int) -> Iterator[tuple[Integers, Integers]]:
    """Positions and rows of an order that is the same in every epoch, in chunks."""
    for start in range(0, order.size, _CHUNK):
        positions = np.arange(start, min(start + _CHUNK, order.size), dtype=np.int64)
        yield positions, order.visits(np.zeros_like(positions), positions).rows + first_row


def _positions(order: Order, first_row: int, rows: Integers) -> Integers:
    """Positions of a fixed order that hold a row of the ascending list."""
    if order.row_range == range(order.size):
        low, high = np.searchsorted(rows, [first_row, first_row + order.size])
        # Without an offset, the slice of a memory-mapped file takes no memory.
        return rows[low:high] - first_row if first_row else rows[low:high]
    listed = np.append(rows, -1)  # which no row is
    return _where(order, first_row, lambda visited: listed[np.searchsorted(rows, visited)] == visited)


def _where(order: Order, first_row: int, chosen: Chosen) -> Integers:
    """Positions of a fixed order whose rows are chosen."""
    chunks = [positions[chosen(rows)] for positions, rows in _rows_of(order, first_row)]
    return np.concatenate([np.empty(0, np.int64), *chunks])
