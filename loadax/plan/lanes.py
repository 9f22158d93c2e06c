"""Lanes: positions are dealt to them in turn, and inside a step rows stand sorted by lane.

So a host with a contiguous share of the batch meets the blocks of its own lanes alone. Lanes that have run out are left out of the
turn, so an epoch falls into stretches (`Deal`), at most three where one block shuffle deals: all lanes; those with a block more; and
before or after the one that holds the ragged block has ended.
"""

from dataclasses import dataclass
from typing import final

import numpy as np

from loadax.protocols import Deal, Integers


@final
@dataclass(frozen=True, eq=False)
class Dealing:
    """How one epoch is dealt to lanes, which are numbered by their turn.

    Args:
        deals: the stretches, ascending, from position 0; their lanes are named by their `places`.
        turns: for each, how many rows every lane had before it.
        lanes: for each, the lanes in their turn.
    """

    deals: tuple[Deal, ...]
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


def deal(lane_rows: Integers) -> Dealing:
    """Deals to lanes of so many rows in turn, leaving out those that have run out.

    Example:
        >>> [(stretch.start, stretch.lanes.tolist()) for stretch in deal(np.array([2, 3, 2])).deals]
        [(0, [0, 2, 1]), (6, [2])]
    """
    ends = np.unique(lane_rows)
    turns = np.concatenate([[0], ends[:-1]])
    alive = tuple(np.flatnonzero(lane_rows >= end) for end in ends)
    sizes = (ends - turns) * [len(lanes) for lanes in alive]
    starts = np.cumsum(sizes) - sizes
    place = places(len(lane_rows))
    deals = tuple(Deal(int(start), place[lanes]) for start, lanes in zip(starts, alive, strict=True))
    return Dealing(deals, turns, alive)


def places(count: int) -> Integers:
    """Where each of `count` lanes stands in a step: their numbers by reversed bits, so that lanes that take turns stand far apart.

    This is van der Corput's sequence (1935). Any run of turns falls evenly on all parts of the step; so every host keeps its lanes, also
    where a step takes only some of them, or some of them twice, and where the first ones have a block more than the rest.

    Example:
        >>> places(8).tolist(), places(5).tolist()
        ([0, 4, 2, 6, 1, 5, 3, 7], [0, 4, 2, 1, 3])
    """
    order = np.zeros(1, np.int64)
    while len(order) < count:
        order = np.concatenate([2 * order, 2 * order + 1])
    return order[order < count]


def by_lane(start: int, count: int, deals: list[Deal], positions: Integers) -> Integers:
    """Which of the `count` positions from `start` on stand at `positions` of the batch, when they are sorted by lane.

    Args:
        start: the step's first position in its epoch.
        count: how many positions hold a row; padding, from there on, stays where it is.
        deals: the stretches that these positions lie in, ascending.
        positions: of the batch.

    Returns:
        int64[len(positions)]: offsets from `start`. Costs in proportion to the positions asked for and the lanes, not the batch.
    """
    lanes, firsts, strides, held = [], [], [], []
    for number, stretch in enumerate(deals):
        low = max(start, stretch.start)
        high = min(start + count, deals[number + 1].start) if number + 1 < len(deals) else start + count
        width = len(stretch.lanes)
        first = (np.arange(width) - (low - stretch.start)) % width  # of each lane, counted from `low`
        lanes.append(stretch.lanes)
        firsts.append(low - start + first)
        strides.append(np.full(width, width))
        held.append(np.maximum(0, -((first - (high - low)) // width)))
    order = np.argsort(np.concatenate(lanes), kind="stable")
    first, stride, number_held = (np.concatenate(parts)[order] for parts in (firsts, strides, held))
    ends = np.cumsum(number_held)
    entry = np.minimum(np.searchsorted(ends, positions, side="right"), len(ends) - 1)
    offsets: Integers = first[entry] + (positions - (ends - number_held)[entry]) * stride[entry]
    return np.where(positions < count, offsets, positions)
