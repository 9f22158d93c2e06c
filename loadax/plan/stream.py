"""The order of a stream: positions are assigned to its lanes round-robin, without end.

Row r of a stream is row r // lanes of lane r % lanes. So the number of rows that each lane gave before a position is a
quotient: the state of a stream is a position, and whatever each lane's own iterator needs to continue.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, final

import numpy as np

from loadax.errors import StreamError
from loadax.plan.lanes import lane_places
from loadax.plan.mix import ENDLESS, Mixed
from loadax.plan.order import BaseOrder, no_hits
from loadax.protocols import Hits, Integers, LaneAssignment, NarrowRule, Order

# Version of this order, in saved states
VERSION = 1


class LaneVerb(NamedTuple):
    """A verb that every lane applies by itself.

    Args:
        text: The verb as text.
        described: Everything that determines its rows, as JSON.
    """

    text: str
    described: Any


def lane_verbs(
    texts: Sequence[str], described: Sequence[Any]
) -> tuple[LaneVerb, ...]:
    """Verbs of a dataset as verbs of the lanes of a stream.

    Args:
        texts: The verbs as text.
        described: Everything that determines the rows of each, as JSON.
    """
    return tuple(
        LaneVerb(text, facts) for text, facts in zip(texts, described, strict=True)
    )


@final
@dataclass(frozen=True)
class StreamOrder(BaseOrder):
    """Position p is row p: row p // lanes of lane p % lanes. Within a step, rows are sorted by lane.

    Args:
        lanes: Number of lanes.
        verbs: Verbs that made the rows of lanes, in order; empty: a function of the user's opens them.
    """

    lanes: int
    verbs: tuple[LaneVerb, ...] = ()
    size = ENDLESS
    is_stream = True
    parts = ()
    parent = None

    def inverse(
        self,
        rows: Integers,  # noqa: ARG002
        epochs: Integers,  # noqa: ARG002
        window: tuple[int, int],  # noqa: ARG002
    ) -> Hits:
        return no_hits()

    def narrow(self, verb: str, rule: NarrowRule, first_row: int = 0) -> Order:  # noqa: ARG002
        raise StreamError(f"{verb}()")

    def lane_assignments(
        self,
        epoch: int,  # noqa: ARG002
        start: int,
        stop: int,
    ) -> list[LaneAssignment]:
        if stop > start:
            return [self._assignment]
        return []

    def describe(self) -> list[Any]:
        return [verb.described for verb in self.verbs] or [
            ["stream", self.lanes, VERSION]
        ]

    def text(self) -> list[str]:
        return [verb.text for verb in self.verbs] or [
            f"a stream of {self.lanes} lane{'s' * (self.lanes != 1)}"
        ]

    @cached_property
    def _assignment(self) -> LaneAssignment:
        return LaneAssignment(0, lane_places(self.lanes))


def rows_before(order: Order, epoch: int, position: int) -> list[Integers]:
    """Rows that every lane gives before a position: int64[lanes] for each stream of the order, depth first."""
    if isinstance(order, StreamOrder):
        turns, lanes = divmod(position, order.lanes)
        return [turns + (np.arange(order.lanes) < lanes)]
    if not isinstance(order, Mixed):
        return []
    found = []
    for part, drawn in zip(
        order.parts, order.counts(order.begin(epoch) + position).tolist(), strict=True
    ):
        found.extend(rows_before(part, *divmod(drawn, part.size)))
    return found
