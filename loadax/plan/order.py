"""Helpers for all orders (see `loadax.protocols.Order`): defaults, traversal, and joining the hits of inverses.

Every verb of a dataset wraps the order before it, and maps an (epoch, position) of the new dataset to one of the old.
So a chain of verbs is a chain of small arithmetic steps: any position of any epoch is computed directly, nothing is
stored or replayed, and every host gets the same answer. Each verb has a file of its own in this folder.
"""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from loadax.errors import ArgumentError, StreamError
from loadax.protocols import (
    Hits,
    Integers,
    LaneAssignment,
    NarrowRule,
    Order,
    Shuffle,
    Visits,
)

_SHOWN_PARTS = 8


class BaseOrder:
    """Traits of orders that neither shuffle nor mix: position p is row p. Each order replaces what it changes."""

    size: Any
    mixes = False
    by_step = False
    is_stream = False

    @property
    def varies(self) -> bool:
        order: Any = self  # an order has the other members, too
        return any(below.varies for below in orders_below(order))

    @property
    def repeats(self) -> bool:
        order: Any = self
        return any(below.repeats for below in orders_below(order))

    @property
    def changing_rows(self) -> str | None:
        return None

    @property
    def row_range(self) -> range | None:
        return None

    @property
    def runs(self) -> Integers | None:
        rows = self.row_range
        if rows is None or rows.step < 0:
            return None
        return np.arange(min(1, len(rows)))

    @property
    def shuffle(self) -> Shuffle | None:
        return None

    def visits(self, epochs: Integers, positions: Integers) -> Visits:
        return Visits(positions, epochs)

    def inverse(
        self,
        rows: Integers,
        epochs: Integers,  # noqa: ARG002
        window: tuple[int, int],  # noqa: ARG002
    ) -> Hits:
        asked = np.flatnonzero((rows >= 0) & (rows < self.size))
        return Hits(asked, rows[asked])

    def narrow(self, verb: str, rule: NarrowRule, first_row: int = 0) -> Order:
        order: Any = self
        check_fixed_rows(order, f"{verb}()")
        if order.varies:
            raise ArgumentError(
                f"{verb}() after {order.text()[-1]} of a shuffle would keep other "
                "rows in every epoch; call it before"
            )
        return rule(order, first_row)

    def lane_assignments(
        self,
        epoch: int,  # noqa: ARG002
        start: int,  # noqa: ARG002
        stop: int,  # noqa: ARG002
    ) -> list[LaneAssignment]:
        return []


@dataclass(frozen=True, eq=False)
class VerbOrder(BaseOrder):
    """The order of a verb that rearranges one other order, its parent."""

    parent: Order
    parts = ()

    @abstractmethod
    def _described(self) -> tuple[list[Any], str]:
        """The verb and its arguments, for `describe` and `text`."""

    def describe(self) -> list[Any]:
        return [*self.parent.describe(), self._described()[0]]

    def text(self) -> list[str]:
        return [*self.parent.text(), self._described()[1]]


def depth(order: Order) -> int:
    """Number of nested verbs. Iterative, because it is used to limit recursion."""
    level = [order]
    verbs = 0
    while level:
        verbs += 1
        level = [below for above in level for below in orders_below(above)]
    return verbs


def depth_first(order: Order) -> Sequence[Order]:
    """An order and all orders below it."""
    return [
        order,
        *(
            order_below
            for below in orders_below(order)
            for order_below in depth_first(below)
        ),
    ]


def orders_below(order: Order) -> Sequence[Order]:
    """The parts or the parent of an order."""
    if order.parent is None:
        return order.parts
    return (order.parent,)


def check_fixed_rows(order: Order, verb: str, remedy: str | None = None) -> None:
    """Checks that a row is the same record in every epoch, as `verb` needs.

    Args:
        order: Order of the rows.
        verb: Verb or option, for the message.
        remedy: End of the message, after what to leave out. None: shuffle and map after the verb.

    Raises:
        ArgumentError: When it is not.
    """
    reasons = [
        below.changing_rows
        for below in depth_first(order)
        if below.changing_rows is not None
    ]
    if reasons:  # the innermost one causes those around it
        after = (
            f"and shuffle and map with loadax after {verb}: .shuffle(seed).map(fn, "
            "rng=True)"
        )
        raise ArgumentError(
            f"{verb} needs the same rows in every epoch, but {reasons[-1]}, "
            f"{remedy or after}"
        )


def has_stream(order: Order) -> bool:
    """Whether rows of an order come from a stream."""
    return any(below.is_stream for below in depth_first(order))


def check_streams(order: Order) -> None:
    """Checks that streams are only mixed: other verbs need random access.

    Raises:
        StreamError: When a verb rearranges a stream; names it.
    """
    if not (order.is_stream or order.mixes) and has_stream(order):
        raise StreamError(order.text()[-1])


def no_hits() -> Hits:
    """Hits of an inverse that matches nothing."""
    return Hits(np.empty(0, np.int64), np.empty(0, np.int64))


def join_hits(hits: Sequence[Hits]) -> Hits:
    """Concatenates the hits of several inverses."""
    return Hits(
        *(np.concatenate(arrays) for arrays in zip(no_hits(), *hits, strict=True))
    )


def equal_pairs(ascending: Integers, values: Integers) -> tuple[Integers, Integers]:
    """Indices of all pairs of equal entries: `ascending[first] == values[second]`, both int64[pairs]."""
    start = np.searchsorted(ascending, values, side="left")
    counts = np.searchsorted(ascending, values, side="right") - start
    turns = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.repeat(start, counts) + turns, np.repeat(np.arange(len(values)), counts)


def parts_text(named: Iterable[tuple[str, Order]]) -> str:
    """Text of the first few of several orders."""
    texts = [f"{name} = {', '.join(part.text())}" for name, part in named]
    more = len(texts) - _SHOWN_PARTS
    return "; ".join(texts[:_SHOWN_PARTS]) + (
        f"; and {more:,} more" if more > 0 else ""
    )
