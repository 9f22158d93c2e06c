"""Lanes: positions are assigned to them round-robin, and the rows of a step are sorted by lane.

So a host with a contiguous share of the batch reads only the blocks of its own lanes. Exhausted lanes are skipped, so
an epoch is a few spans of positions (`LaneAssignment`), at most three after one block shuffle: all lanes; those with
one more block; and before or after the end of the lane with the ragged block.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np

from loadax.protocols import Integers, LaneAssignment


@final
@dataclass(frozen=True, eq=False)
class LaneAssignments:
    """Lanes of the positions of one epoch, numbered by their turn.

    Args:
        spans: Spans of positions, ascending, from position 0; here lanes are numbered by their index in a step.
        turns: Number of rows that every lane had before each span, int64[spans].
        lanes: Lanes of each span, in round-robin order.
    """

    spans: tuple[LaneAssignment, ...]
    turns: Integers
    lanes: tuple[Integers, ...]

    def at(self, positions: Integers) -> tuple[Integers, Integers]:
        """Lane of each position, and the number of earlier positions of that lane."""
        starts = np.array([span.start for span in self.spans])
        widths = np.array([len(lanes) for lanes in self.lanes])
        if len(positions):
            bounds = [positions.min(), positions.max()]
        else:
            bounds = [0, 0]
        first, last = np.searchsorted(starts, bounds, side="right") - 1
        # Nearly always one span: scalars are divided by several times faster.
        span: Any
        if first == last:
            span = int(first)
        else:
            span = np.searchsorted(starts, positions, side="right") - 1
        offset = positions - starts[span]
        width = widths[span]
        turn = offset // width
        lanes = np.concatenate(self.lanes)
        return lanes[
            (np.cumsum(widths) - widths)[span] + offset - turn * width
        ], turn + self.turns[span]

    def positions(self, lanes: Integers, turns: Integers) -> Integers:
        """Positions of the `turns`-th rows of `lanes`; the inverse of `at`."""
        positions = np.empty_like(turns)
        owner = np.searchsorted(self.turns, turns, side="right") - 1
        for index, (span, before, alive) in enumerate(
            zip(self.spans, self.turns.tolist(), self.lanes, strict=True)
        ):
            owned = np.flatnonzero(owner == index)
            in_turn = np.searchsorted(alive, lanes[owned])
            positions[owned] = (
                span.start + (turns[owned] - before) * len(alive) + in_turn
            )
        return positions


def assign_lanes(lane_rows: Integers) -> LaneAssignments:
    """Assigns positions to lanes of `lane_rows` rows round-robin, skipping exhausted lanes.

    Examples:
        >>> import numpy as np
        >>> from loadax.plan.lanes import assign_lanes
        >>> [(span.start, span.lanes.tolist()) for span in assign_lanes(np.array([2, 3, 2])).spans]
        [(0, [0, 2, 1]), (6, [2])]
    """
    ends = np.unique(lane_rows)
    turns = np.concatenate([[0], ends[:-1]])
    alive = tuple(np.flatnonzero(lane_rows >= end) for end in ends)
    sizes = (ends - turns) * [len(lanes) for lanes in alive]
    starts = np.cumsum(sizes) - sizes
    index_in_step = lane_places(len(lane_rows))
    spans = tuple(
        LaneAssignment(int(start), index_in_step[lanes])
        for start, lanes in zip(starts, alive, strict=True)
    )
    return LaneAssignments(spans, turns, alive)


def lane_places(count: int) -> Integers:
    """Index of each of `count` lanes in a step: the lane numbers with reversed bits, int64[count].

    This is the van der Corput sequence (1935), which spreads turns evenly over the step. So every host keeps
    its lanes, even if a step takes only some lanes, or some of them twice, or if the first ones have one more block.

    Examples:
        >>> from loadax.plan.lanes import lane_places
        >>> lane_places(8).tolist(), lane_places(5).tolist()
        ([0, 4, 2, 6, 1, 5, 3, 7], [0, 4, 2, 1, 3])
    """
    order = np.zeros(1, np.int64)
    while len(order) < count:
        order = np.concatenate([2 * order, 2 * order + 1])
    return order[order < count]


def by_lane(
    start: int, count: int, assignments: list[LaneAssignment], positions: Integers
) -> Integers:
    """Offsets from `start` of the rows at `positions` of a batch that is sorted by lane, int64[n].

    The cost is proportional to the requested positions and the lanes, not to the batch.

    Args:
        start: First position of the step in its epoch.
        count: Number of positions of the step that hold a row; padding follows and is not moved.
        assignments: Lane assignments of these positions, ascending.
        positions: Positions of the batch, int64[n].
    """
    if (positions[1:] < positions[:-1]).any():
        order = np.argsort(positions)
        offsets = np.empty_like(positions)
        offsets[order] = by_lane(start, count, assignments, positions[order])
        return offsets
    step = _lanes_of_step(start, count, assignments)
    order = np.argsort(step.lanes, kind="stable")
    first = step.firsts[order]
    stride = step.strides[order]
    rows = step.rows[order]
    ends: Integers = np.cumsum(rows)
    # Ascending positions take turns of lanes as a whole: repeated, not looked up for each.
    taken = positions.searchsorted(ends)
    offsets = positions.copy()
    valid = offsets[: taken[-1]]  # padding stays behind
    taken[1:] -= taken[:-1]
    valid *= stride.repeat(taken)
    valid += (first - (ends - rows) * stride).repeat(taken)
    return offsets


def in_step(
    start: int, count: int, assignments: list[LaneAssignment], offsets: Integers
) -> Integers:
    """Positions in the batch of the rows at `offsets` (below `count`) from `start`; the inverse of `by_lane`."""
    step = _lanes_of_step(start, count, assignments)
    order = np.argsort(step.lanes, kind="stable")
    begins = np.empty_like(step.rows)
    begins[order] = np.cumsum(step.rows[order]) - step.rows[order]
    bounds = np.array([span.start for span in assignments])
    widths = np.array([len(span.lanes) for span in assignments])
    which = np.searchsorted(bounds, start + offsets, side="right") - 1
    entry = (np.cumsum(widths) - widths)[which] + (
        start + offsets - bounds[which]
    ) % widths[which]
    return begins[entry] + (offsets - step.firsts[entry]) // step.strides[entry]


class _LanesOfStep(NamedTuple):
    """Offsets of each lane of each assignment in one step: `rows` of them, from `firsts` on, `strides` apart."""

    lanes: Integers
    firsts: Integers
    strides: Integers
    rows: Integers


def _lanes_of_step(
    start: int, count: int, assignments: list[LaneAssignment]
) -> _LanesOfStep:
    ends = [*(span.start for span in assignments[1:]), start + count]
    parts = []
    for span, end in zip(assignments, ends, strict=True):
        low = max(start, span.start)
        high = min(start + count, end)
        width = len(span.lanes)
        # of each lane, counted from `low`
        first = (np.arange(width) - (low - span.start)) % width
        rows: Integers = np.maximum(0, -((first - (high - low)) // width))
        parts.append(
            _LanesOfStep(span.lanes, low - start + first, np.full(width, width), rows)
        )
    return _LanesOfStep(
        *(np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    )
