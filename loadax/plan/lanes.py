"""Lanes: positions are assigned to them round-robin, and inside a step rows stand sorted by lane.

So a host with a contiguous share of the batch reads the blocks of its own lanes alone. Lanes that have run out are left
out of the turn, so an epoch is a few runs of positions (`LaneAssignment`), at most three behind one block shuffle: all
lanes; those with a block more; and before or after the one that holds the ragged block has ended.
"""

from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np

from loadax.protocols import Integers, LaneAssignment


@final
@dataclass(frozen=True, eq=False)
class LaneAssignments:
    """How the positions of one epoch are assigned to lanes, which are numbered by their turn.

    Args:
        runs: Runs of positions, ascending, from position 0; their lanes are named by their place in a step.
        turns: Rows that every lane had before each run.
        lanes: Lanes of each run, in their turn.
    """

    runs: tuple[LaneAssignment, ...]
    turns: Integers
    lanes: tuple[Integers, ...]

    def at(self, positions: Integers) -> tuple[Integers, Integers]:
        """For each position its lane, and how many positions that lane had before."""
        starts = np.array([run.start for run in self.runs])
        widths = np.array([len(lanes) for lanes in self.lanes])
        run = np.searchsorted(starts, positions, side="right") - 1
        turn, which = np.divmod(positions - starts[run], widths[run])
        lanes = np.concatenate(self.lanes)
        return lanes[(np.cumsum(widths) - widths)[run] + which], turn + self.turns[run]

    def positions(self, lanes: Integers, turns: Integers) -> Integers:
        """The inverse of `at`: the position of the `turns`-th row of each lane."""
        positions = np.empty_like(turns)
        owner = np.searchsorted(self.turns, turns, side="right") - 1
        for index, (run, before, alive) in enumerate(zip(self.runs, self.turns.tolist(), self.lanes, strict=True)):
            owned = np.flatnonzero(owner == index)
            in_turn = np.searchsorted(alive, lanes[owned])
            positions[owned] = run.start + (turns[owned] - before) * len(alive) + in_turn
        return positions


def assign_lanes(lane_rows: Integers) -> LaneAssignments:
    """Assigns positions round-robin to lanes of so many rows, leaving out those that have run out.

    Examples:
        >>> [(run.start, run.lanes.tolist()) for run in assign_lanes(np.array([2, 3, 2])).runs]
        [(0, [0, 2, 1]), (6, [2])]
    """
    ends = np.unique(lane_rows)
    turns = np.concatenate([[0], ends[:-1]])
    alive = tuple(np.flatnonzero(lane_rows >= end) for end in ends)
    sizes = (ends - turns) * [len(lanes) for lanes in alive]
    starts = np.cumsum(sizes) - sizes
    place = lane_places(len(lane_rows))
    runs = tuple(LaneAssignment(int(start), place[lanes]) for start, lanes in zip(starts, alive, strict=True))
    return LaneAssignments(runs, turns, alive)


def lane_places(count: int) -> Integers:
    """The place of each of `count` lanes in a step.

    Their numbers by reversed bits, so that lanes that take turns stand far apart.

    This is van der Corput's sequence (1935). Any run of turns falls evenly on all parts of the step; so every host
    keeps its lanes, also where a step takes only some of them, or some of them twice, and where the first ones have a
    block more than the rest.

    Examples:
        >>> lane_places(8).tolist(), lane_places(5).tolist()
        ([0, 4, 2, 6, 1, 5, 3, 7], [0, 4, 2, 1, 3])
    """
    order = np.zeros(1, np.int64)
    while len(order) < count:
        order = np.concatenate([2 * order, 2 * order + 1])
    return order[order < count]


def by_lane(start: int, count: int, assignments: list[LaneAssignment], positions: Integers) -> Integers:
    """Which of the `count` positions from `start` on stand at `positions` of the batch, when they are sorted by lane.

    Args:
        start: First position of the step in its epoch.
        count: Positions of the step that hold a row; padding, from there on, stays where it is.
        assignments: Lane assignments of these positions, ascending.
        positions: Positions of the batch, int64[n].

    Returns:
        int64[n]: offsets from `start`. Costs in proportion to the positions asked for and the lanes, not the batch.
    """
    step = _lanes_of_step(start, count, assignments)
    order = np.argsort(step.lanes, kind="stable")
    first, stride, rows = step.firsts[order], step.strides[order], step.rows[order]
    begins: Integers = np.cumsum(rows) - rows
    entry = np.minimum(np.searchsorted(begins + rows, positions, side="right"), len(begins) - 1)
    offsets: Integers = first[entry] + (positions - begins[entry]) * stride[entry]
    return np.where(positions < count, offsets, positions)


def in_step(start: int, count: int, assignments: list[LaneAssignment], offsets: Integers) -> Integers:
    """The inverse of `by_lane`: the positions of the batch of those at `offsets` (below `count`) from `start`."""
    step = _lanes_of_step(start, count, assignments)
    order = np.argsort(step.lanes, kind="stable")
    begins = np.empty_like(step.rows)
    begins[order] = np.cumsum(step.rows[order]) - step.rows[order]
    bounds = np.array([run.start for run in assignments])
    widths = np.array([len(run.lanes) for run in assignments])
    which = np.searchsorted(bounds, start + offsets, side="right") - 1
    entry = (np.cumsum(widths) - widths)[which] + (start + offsets - bounds[which]) % widths[which]
    return begins[entry] + (offsets - step.firsts[entry]) // step.strides[entry]


class _LanesOfStep(NamedTuple):
    """What each lane of each assignment has of one step: `rows` offsets from `firsts` on, `strides` apart."""

    lanes: Integers
    firsts: Integers
    strides: Integers
    rows: Integers


def _lanes_of_step(start: int, count: int, assignments: list[LaneAssignment]) -> _LanesOfStep:
    ends = [*(run.start for run in assignments[1:]), start + count]
    found = []
    for run, end in zip(assignments, ends, strict=True):
        low, high = max(start, run.start), min(start + count, end)
        width = len(run.lanes)
        first = (np.arange(width) - (low - run.start)) % width  # of each lane, counted from `low`
        rows: Integers = np.maximum(0, -((first - (high - low)) // width))
        found.append(_LanesOfStep(run.lanes, low - start + first, np.full(width, width), rows))
    return _LanesOfStep(*(np.concatenate(arrays) for arrays in zip(*found, strict=True)))
