"""Lanes: positions are dealt to them in turn, and inside a step rows stand sorted by lane.

So a host with a contiguous share of the batch meets the blocks of its own lanes alone. Lanes that have run out are left
out of the turn, so an epoch falls into stretches (`LaneAssignment`), at most three where one block shuffle deals: all
lanes; those with a block more; and before or after the one that holds the ragged block has ended.
"""

from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np

from loadax.protocols import Integers, LaneAssignment


@final
@dataclass(frozen=True, eq=False)
class LaneAssignments:
    """How one epoch is dealt to lanes, which are numbered by their turn.

    Args:
        deals: the stretches, ascending, from position 0; their lanes are named by their `places`.
        turns: for each, how many rows every lane had before it.
        lanes: for each, the lanes in their turn.
    """

    deals: tuple[LaneAssignment, ...]
    turns: Integers
    lanes: tuple[Integers, ...]

    def at(self, positions: Integers) -> tuple[Integers, Integers]:
        """For each position its lane, and how many positions that lane had before."""
        starts = np.array([deal.start for deal in self.deals])
        widths = np.array([len(lanes) for lanes in self.lanes])
        stretch = np.searchsorted(starts, positions, side="right") - 1
        turn, which = np.divmod(positions - starts[stretch], widths[stretch])
        lanes = np.concatenate(self.lanes)
        return lanes[(np.cumsum(widths) - widths)[stretch] + which], turn + self.turns[stretch]

    def positions(self, lanes: Integers, turns: Integers) -> Integers:
        """The inverse of `at`: where the `turns`-th row of each lane stands."""
        found = np.empty_like(turns)
        stretch = np.searchsorted(self.turns, turns, side="right") - 1
        for number, (deal, before, alive) in enumerate(zip(self.deals, self.turns.tolist(), self.lanes, strict=True)):
            mine = np.flatnonzero(stretch == number)
            found[mine] = deal.start + (turns[mine] - before) * len(alive) + np.searchsorted(alive, lanes[mine])
        return found


def deal(lane_rows: Integers) -> LaneAssignments:
    """Deals to lanes of so many rows in turn, leaving out those that have run out.

    Examples:
        >>> [(stretch.start, stretch.lanes.tolist()) for stretch in deal(np.array([2, 3, 2])).deals]
        [(0, [0, 2, 1]), (6, [2])]
    """
    ends = np.unique(lane_rows)
    turns = np.concatenate([[0], ends[:-1]])
    alive = tuple(np.flatnonzero(lane_rows >= end) for end in ends)
    sizes = (ends - turns) * [len(lanes) for lanes in alive]
    starts = np.cumsum(sizes) - sizes
    place = places(len(lane_rows))
    deals = tuple(LaneAssignment(int(start), place[lanes]) for start, lanes in zip(starts, alive, strict=True))
    return LaneAssignments(deals, turns, alive)


def places(count: int) -> Integers:
    """Where each of `count` lanes stands in a step.

    Their numbers by reversed bits, so that lanes that take turns stand far apart.

    This is van der Corput's sequence (1935). Any run of turns falls evenly on all parts of the step; so every host
    keeps its lanes, also where a step takes only some of them, or some of them twice, and where the first ones have a
    block more than the rest.

    Examples:
        >>> places(8).tolist(), places(5).tolist()
        ([0, 4, 2, 6, 1, 5, 3, 7], [0, 4, 2, 1, 3])
    """
    order = np.zeros(1, np.int64)
    while len(order) < count:
        order = np.concatenate([2 * order, 2 * order + 1])
    return order[order < count]


def by_lane(start: int, count: int, deals: list[LaneAssignment], positions: Integers) -> Integers:
    """Which of the `count` positions from `start` on stand at `positions` of the batch, when they are sorted by lane.

    Args:
        start: the step's first position in its epoch.
        count: how many positions hold a row; padding, from there on, stays where it is.
        deals: the stretches that these positions lie in, ascending.
        positions: of the batch.

    Returns:
        int64[len(positions)]: offsets from `start`. Costs in proportion to the positions asked for and the lanes, not
        the batch.
    """
    held = _held(start, count, deals)
    order = np.argsort(held.lanes, kind="stable")
    first, stride, rows = held.firsts[order], held.strides[order], held.rows[order]
    begins: Integers = np.cumsum(rows) - rows
    entry = np.minimum(np.searchsorted(begins + rows, positions, side="right"), len(begins) - 1)
    offsets: Integers = first[entry] + (positions - begins[entry]) * stride[entry]
    return np.where(positions < count, offsets, positions)


def in_step(start: int, count: int, deals: list[LaneAssignment], offsets: Integers) -> Integers:
    """The inverse of `by_lane`.

    At which positions of the batch those at `offsets` (below `count`) from `start` stand.
    """
    held = _held(start, count, deals)
    order = np.argsort(held.lanes, kind="stable")
    begins = np.empty_like(held.rows)
    begins[order] = np.cumsum(held.rows[order]) - held.rows[order]
    bounds = np.array([stretch.start for stretch in deals])
    widths = np.array([len(stretch.lanes) for stretch in deals])
    which = np.searchsorted(bounds, start + offsets, side="right") - 1
    entry = (np.cumsum(widths) - widths)[which] + (start + offsets - bounds[which]) % widths[which]
    return begins[entry] + (offsets - held.firsts[entry]) // held.strides[entry]


class _Held(NamedTuple):
    """What each lane of each stretch has of one step: `rows` offsets from `firsts` on, `strides` apart."""

    lanes: Integers
    firsts: Integers
    strides: Integers
    rows: Integers


def _held(start: int, count: int, deals: list[LaneAssignment]) -> _Held:
    found = []
    for number, stretch in enumerate(deals):
        low = max(start, stretch.start)
        high = min(start + count, deals[number + 1].start) if number + 1 < len(deals) else start + count
        width = len(stretch.lanes)
        first = (np.arange(width) - (low - stretch.start)) % width  # of each lane, counted from `low`
        rows: Integers = np.maximum(0, -((first - (high - low)) // width))
        found.append(_Held(stretch.lanes, low - start + first, np.full(width, width), rows))
    return _Held(*(np.concatenate(parts) for parts in zip(*found, strict=True)))
