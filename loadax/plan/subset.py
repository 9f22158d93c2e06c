"""Orders that keep or exclude listed rows, for verbs such as `filter` and `exclude`."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from loadax.core.formatting import count_text
from loadax.plan.order import VerbOrder, no_hits
from loadax.plan.slice import Sliced
from loadax.protocols import Hits, Integers, Order, Visits

CHUNK = 1 << 20  # rows per pass: bounds the scratch memory, not the result
_SAMPLING = 6  # bits of the distance between samples of an ascending list
_FEW_BUCKETS = 4  # of a list that are looked at one after the other


@final
class Ascending:
    """An ascending list of positions in little more than a byte each, or than two where they are sparse.

    The low bits of each entry are kept. Its high bits are the last bucket that begins at it or before, which is looked
    for between those of two samples.

    Args:
        chunks: The list in pieces, int64[n] each.
        stop: Positions are below it.
    """

    def __init__(self, chunks: Iterable[Integers], stop: int):
        counts = np.zeros((stop >> 8) + 2, np.int64)
        low = [np.empty(0, np.uint16)]
        for chunk in chunks:
            low.append(chunk.astype(np.uint16))
            if len(chunk):
                first = int(chunk[0]) >> 8
                entries = np.bincount((chunk >> 8) - first)
                counts[first + 1 : first + 1 + len(entries)] += entries
        starts = np.cumsum(counts, out=counts)
        size = int(starts[-1])
        self._bits, dtype = (
            (8, np.uint8) if len(starts) * 8 <= size else (16, np.uint16)
        )
        self._low = np.concatenate(low, dtype=dtype, casting="unsafe")
        # Number of entries before each bucket, and at the end that of all
        starts = np.append(starts[:: 1 << (self._bits - 8)], size)
        self._starts = starts.astype(np.uint32 if size < 1 << 32 else np.int64)
        # Buckets of every 64th entry, and of the last one
        sampled = np.append(np.arange(0, size, 1 << _SAMPLING), max(size - 1, 0))
        self._sampled = (np.searchsorted(starts, sampled, side="right") - 1).astype(
            np.uint32
        )

    def __len__(self) -> int:
        return len(self._low)

    def __getitem__(self, index: Any) -> Any:
        sample = index >> _SAMPLING
        high = self._sampled[sample].astype(np.int64)
        further = int(np.max(self._sampled[sample + 1] - high, initial=0))
        if further > _FEW_BUCKETS:
            # NumPy would convert the whole table to the dtype of what is searched.
            high = (
                np.searchsorted(
                    self._starts,
                    np.asarray(index).astype(self._starts.dtype),
                    side="right",
                )
                - 1
            )
        else:
            for _ in range(further):
                high += self._starts[high + 1] <= index
        return (high << self._bits) + self._low[index]

    def searchsorted(self, values: Integers) -> Integers:
        """Number of entries below each value, as that of an array."""
        high = values >> self._bits
        low = values & ((1 << self._bits) - 1)
        begins, ends = (self._starts[high + after].tolist() for after in (0, 1))
        found = [
            begin + np.searchsorted(self._low[begin:end], value)
            for begin, end, value in zip(
                begins, ends, low.astype(self._low.dtype), strict=True
            )
        ]
        return np.array(found, np.int64)


@dataclass(frozen=True, eq=False)
class ListedOrder(VerbOrder):
    """An order that depends on a list of positions of the parent: it has these, in this order.

    Args:
        parent: Order that is the same in every epoch, if the list was made for its rows.
        positions: The positions, int64[n] or its compact form.
        rule: Verb and the arguments that decide its list, as JSON, for `describe`.
        arguments: Arguments of the verb, as text.
    """

    positions: Any
    rule: tuple[Any, ...]
    arguments: str = ""

    @property
    def size(self) -> int:
        return len(self.positions)

    def visits(self, epochs: Integers, positions: Integers) -> Visits:
        return self.parent.visits(epochs, self.positions[positions])

    def _described(self) -> tuple[list[Any], str]:
        rows = count_text(self.size, "row")
        arguments = f"{self.arguments}{', ' * bool(self.arguments)}{rows}"
        return [*self.rule, self.size], f"{self.rule[0]}({arguments})"


@final
@dataclass(frozen=True, eq=False)
class Subset(ListedOrder):
    """The listed positions of the parent, ascending. Memory-efficient for few positions."""

    def inverse(
        self, rows: Integers, epochs: Integers, window: tuple[int, int]
    ) -> Hits:
        if window[0] >= window[1]:
            return no_hits()
        inner = int(self.positions[window[0]]), int(self.positions[window[1] - 1]) + 1
        below = self.parent.inverse(rows, epochs, inner)
        positions = np.minimum(
            self.positions.searchsorted(below.positions), self.size - 1
        )
        listed = self.positions[positions] == below.positions
        return Hits(below.asked[listed], positions[listed])


@final
@dataclass(frozen=True, eq=False)
class Excluding(ListedOrder):
    """All positions of the parent except the listed ones, which ascend. Memory-efficient for many positions."""

    @property
    def size(self) -> int:
        return self.parent.size - len(self.positions)

    @cached_property
    def _begins(self) -> Integers:
        """Own positions from which on one more of the parent's positions is excluded, int64[n]."""
        return self.positions - np.arange(len(self.positions))

    def visits(self, epochs: Integers, positions: Integers) -> Visits:
        return self.parent.visits(
            epochs, positions + np.searchsorted(self._begins, positions, side="right")
        )

    def inverse(
        self,
        rows: Integers,
        epochs: Integers,
        window: tuple[int, int],  # noqa: ARG002
    ) -> Hits:
        below = self.parent.inverse(rows, epochs, (0, self.parent.size))
        before = np.searchsorted(self.positions, below.positions)
        kept = np.append(self.positions, -1)[before] != below.positions
        return Hits(below.asked[kept], (below.positions - before)[kept])


Rule = tuple[Any, ...]
Chosen = Callable[[Integers], NDArray[np.bool_]]


def only_rows(
    order: Order, rows: Integers, rule: Rule, arguments: str = "", first_row: int = 0
) -> Order:
    """Keeps only the rows in the ascending list `rows`. Memory: about a byte per kept row, or two of few rows.

    Row r of the order is `first_row + r` in the list.
    """
    return _only(
        order,
        lambda fixed, first_row: _positions(fixed, first_row, rows),
        rule,
        arguments,
        first_row,
    )


def only_where(order: Order, chosen: Chosen, rule: Rule, arguments: str) -> Order:
    """Keeps only the rows for which `chosen(rows)` is True. Memory: as `only_rows`."""
    return _only(
        order,
        lambda fixed, first_row: _where(fixed, first_row, chosen),
        rule,
        arguments,
    )


def _only(
    order: Order,
    chunks: Callable[[Order, int], Iterable[Integers]],
    rule: Rule,
    arguments: str,
    first_row: int = 0,
) -> Order:
    def narrowed(fixed: Order, first: int) -> Order:
        return Subset(
            fixed, Ascending(chunks(fixed, first), fixed.size), rule, arguments
        )

    return order.narrow(rule[0], narrowed, first_row)


def only_spans(order: Order, rows: Integers, rule: Rule) -> Order:
    """Keeps only the rows in the ascending list `rows`: as a slice where their positions are consecutive."""

    def narrowed(fixed: Order, first_row: int) -> Order:
        positions = np.concatenate([rows[:0], *_positions(fixed, first_row, rows)])
        if len(positions) and positions[-1] - positions[0] == len(positions) - 1:
            return Sliced(fixed, int(positions[0]), 1, len(positions))
        return Subset(fixed, Ascending([positions], fixed.size), rule)

    return order.narrow(rule[0], narrowed)


def rows_in_order(order: Order, verb: str) -> Integers:
    """Rows at the positions of an order below its shuffles, int64[n]."""
    found: list[Integers] = []

    def look(fixed: Order, first_row: int) -> Order:
        found.extend(rows for _, rows in _rows_of(fixed, first_row))
        return fixed

    order.narrow(verb, look)
    return np.concatenate([np.empty(0, np.int64), *found])


def leave_out_rows(order: Order, rows: Integers, rule: Rule) -> Order:
    """Excludes the rows in the ascending list `rows`. Memory: 8 bytes per excluded row."""

    def exclude(fixed: Order, first_row: int) -> Order:
        return Excluding(
            fixed,
            np.concatenate([rows[:0], *_positions(fixed, first_row, rows)]),
            rule,
        )

    return order.narrow(rule[0], exclude)


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
    for start in range(0, order.size, CHUNK):
        positions = np.arange(start, min(start + CHUNK, order.size), dtype=np.int64)
        yield (
            positions,
            order.visits(np.zeros_like(positions), positions).rows + first_row,
        )


def _positions(order: Order, first_row: int, rows: Integers) -> Iterator[Integers]:
    """Positions of a fixed order that hold a row of the ascending list, in chunks."""
    if order.row_range == range(order.size):
        low, high = np.searchsorted(
            rows, [first_row, first_row + order.size]
        ).tolist()
        return (
            rows[start : min(start + CHUNK, high)] - first_row
            for start in range(low, high, CHUNK)
        )
    listed = np.append(rows, -1)  # which no row is
    return _where(
        order,
        first_row,
        lambda visited: listed[np.searchsorted(rows, visited)] == visited,
    )


def _where(order: Order, first_row: int, chosen: Chosen) -> Iterator[Integers]:
    """Positions of a fixed order whose rows are chosen, in chunks."""
    return (positions[chosen(rows)] for positions, rows in _rows_of(order, first_row))
