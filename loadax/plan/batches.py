"""`BatchPlan`: cuts the positions of each epoch into batches. Nothing else does."""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import zip_longest
from typing import Any, Literal, NamedTuple, final, get_args

import numpy as np

from loadax.core.arguments import LARGEST, MOST_POSITIONS, choice, shown
from loadax.core.formatting import count_text
from loadax.errors import ArgumentError
from loadax.plan.lanes import by_lane
from loadax.plan.skips import Skips
from loadax.protocols import Array, Integers, LaneAssignment, Order, Visits

Remainder = Literal["drop", "pad", "error"]

# Costs of visits: numbers of 0 or more, of shape (n,).
Costs = Callable[[Visits], Array]


class BatchSizeSegment(NamedTuple):
    """Consecutive steps of one batch size. All steps here are whole steps (see `Skips`).

    Args:
        first: First step.
        epoch: Epoch of the first step.
        start: Position in that epoch at which the first step begins.
        batch_size: Rows of each step.
        steps: Number of steps from the first one to the end of that epoch, if no other segment follows.
        epoch_steps: Number of steps in each later epoch, if no other segment follows.
    """

    first: int
    epoch: int
    start: int
    batch_size: int
    steps: int
    epoch_steps: int

    def begin(self, epoch: int) -> int:
        """First step of a later epoch, if no other segment follows."""
        return self.first + self.steps + (epoch - self.epoch - 1) * self.epoch_steps


@final
@dataclass(frozen=True)
class BatchPlan:
    """Cuts the epochs of an order into steps. Epochs never share a batch.

    Args:
        order: Order of the dataset.
        batch_size: Rows of the global batch, or a schedule of `(first step, rows)`: `((0, 256), (10_000, 1024))`.
        num_epochs: Number of epochs; None: endless.
        remainder: Handling of an epoch's last, partial batch: "drop" it, "pad" it, or raise an "error".
        skips: Skipped steps. A `step` counts only the remaining steps, from 0; a `whole_step`, and the steps in
            `schedule` and `segments`, count all.
        costs: Costs of the rows that the rows of each step are balanced by; None: they stay where they are. Not for
            orders with lanes.

    Raises:
        ArgumentError: When a value is invalid, or the rows don't fill a batch.

    Examples:
        >>> from loadax.plan.batches import BatchPlan
        >>> from loadax.plan.sequential import Sequential
        >>> plan = BatchPlan(Sequential(10), batch_size=4, num_epochs=2, remainder="pad")
        >>> plan.steps_per_epoch, plan.num_steps
        (3, 6)
        >>> plan.visits(5).rows
        array([ 8,  9, -1, -1])
    """

    order: Order
    batch_size: int | tuple[tuple[int, int], ...]
    num_epochs: int | None = 1
    remainder: Remainder = "drop"
    skips: Skips = field(default=Skips())
    costs: Costs | None = None

    # Steps of other shapes come only after all steps of one shape.
    alternating = False
    buckets = ()

    def __post_init__(self) -> None:
        if self.num_epochs is not None and self.num_epochs < 1:
            raise ArgumentError(
                f"num_epochs={self.num_epochs}: pass 1 or more, or None for endless "
                "epochs"
            )
        choice("remainder", self.remainder, get_args(Remainder))
        for _, batch_size in self.schedule:
            if batch_size < 1:
                raise ArgumentError(
                    f"batch_size={batch_size}: a batch needs at least one row"
                )
            if batch_size > MOST_POSITIONS:
                raise ArgumentError(
                    f"batch_size={batch_size} is too large; pass 2**62 or less"
                )
        if self.order.size == 0:
            raise ArgumentError(
                "the dataset has no rows; check the data that it reads, or its slice "
                "or split"
            )
        _ = self.segments
        if self.num_steps is not None and self.num_steps > LARGEST:
            raise ArgumentError(
                f"num_epochs={shown(self.num_epochs)} makes over 2**63 steps; pass "
                "None for endless"
            )

    @property
    def schedule(self) -> tuple[tuple[int, int], ...]:
        """`(first step, batch size)` of every segment."""
        if isinstance(self.batch_size, int):
            return ((0, self.batch_size),)
        return self.batch_size

    @cached_property
    def segments(self) -> tuple[BatchSizeSegment, ...]:
        """One segment for each entry of the schedule."""
        segments: list[BatchSizeSegment] = []
        for first, batch_size in self.schedule:
            if segments and first * segments[-1].batch_size > MOST_POSITIONS:
                raise ArgumentError(
                    f"no run reaches step {first}, where a batch size or length "
                    "begins; leave it out"
                )
            if segments:
                epoch, start = _epoch_positions(segments[-1], first)
            else:
                epoch, start = (0, 0)
            if (
                segments
                and self.num_epochs is not None
                and first >= segments[-1].begin(self.num_epochs)
            ):
                raise ArgumentError(
                    f"a batch size or length is scheduled from step {first} on, but "
                    "there are only "
                    f"{count_text(segments[-1].begin(self.num_epochs), 'step')}; "
                    "leave it out, or pass a larger num_epochs"
                )
            steps, epoch_steps = (
                self._steps(rows, batch_size)
                for rows in (self.order.size - start, self.order.size)
            )
            segments.append(
                BatchSizeSegment(first, epoch, start, batch_size, steps, epoch_steps)
            )
        if self.remainder == "error":
            for segment, following in zip_longest(segments, segments[1:]):
                self._check_ends(
                    segment, self.num_epochs if following is None else following.epoch
                )
        return tuple(segments)

    def _check_ends(self, segment: BatchSizeSegment, end: int | None) -> None:
        """Raises if a segment leaves rows over at the end of an epoch before epoch `end`."""
        for epoch, rows in (
            (segment.epoch, self.order.size - segment.start),
            (segment.epoch + 1, self.order.size),
        ):
            if (end is None or epoch < end) and rows % segment.batch_size:
                raise ArgumentError(
                    f"remainder='error': of {count_text(rows, 'row')}, "
                    f"{rows % segment.batch_size} are left over after batches of "
                    f"batch_size={segment.batch_size}; pass remainder='drop' or "
                    "'pad', or a batch_size that divides the rows"
                )

    def _steps(self, rows: int, batch_size: int) -> int:
        """Number of steps that `rows` rows of an epoch make."""
        if self.remainder == "drop" and self.order.size < batch_size:
            raise ArgumentError(
                f"batch_size={batch_size} but the dataset has only "
                f"{count_text(self.order.size, 'row')}: remainder='drop' would leave "
                "no batch; pass a smaller batch_size, or remainder='pad'"
            )
        if self.remainder == "pad":
            return -(-rows // batch_size)
        return rows // batch_size

    @property
    def steps_per_epoch(self) -> int:
        """Steps of one epoch, skipped ones included; of the first epoch, if the batch size is scheduled."""
        return self._begin(1)

    @cached_property
    def num_steps(self) -> int | None:
        """Steps of all epochs; None: endless."""
        if self.num_epochs is None:
            return None
        return self.segments[-1].begin(self.num_epochs) - self.skips.count

    @property
    def end(self) -> int:
        """The step after the last; in an endless run, after the last one whose positions fit in int64."""
        countable = MOST_POSITIONS // max(
            batch_size for _, batch_size in self.schedule
        )
        if self.num_steps is None:
            return countable
        return min(self.num_steps, countable)

    @property
    def first_steps(self) -> list[int]:
        """First step of each batch size that has steps left."""
        firsts = sorted({self.skips.left(segment.first) for segment in self.segments})
        return [
            step for step in firsts if self.num_steps is None or step < self.num_steps
        ]

    def shape_of(self, step: int) -> int:
        """Number of the batch size of a step in the schedule."""
        return self._segment_index(self.skips.whole_step(step))

    def skipping(self, skips: Skips) -> "BatchPlan":
        """The same plan, of which these steps are skipped."""
        return replace(self, skips=skips)

    def alike(self, step: int) -> range:
        """Steps of the batch size of a step; if these have no end, as many of them as its epoch has steps."""
        segment, end = self.segment_of(step)
        first = self.skips.left(segment.first)
        if end is None:
            end = first + len(self.epoch_steps(self.position_of_step(step)[0]))
        return range(first, end)

    def changes(self, steps: range) -> list[int]:
        """Those of `steps` at which the shapes of batches may change, the first one among them."""
        return [
            steps.start,
            *(step for step in self.first_steps if steps.start < step < steps.stop),
        ]

    def epoch_steps(self, epoch: int) -> range:
        """Steps of an epoch."""
        return range(
            self.skips.left(self._begin(epoch)),
            self.skips.left(self._begin(epoch + 1)),
        )

    def left_over(self, epoch: int) -> int:
        """Number of rows that are left after the whole steps of an epoch; below 0: rows of padding in them."""
        last = self._begin(epoch + 1) - 1  # the epoch may end with another batch size
        return (
            self.order.size
            - self.position_of_whole_step(last)[1]
            - self.batch_size_of(last)
        )

    def _begin(self, epoch: int) -> int:
        """First whole step of an epoch."""
        for segment, following in zip_longest(self.segments, self.segments[1:]):
            if epoch <= segment.epoch:
                first = segment.first
            else:
                first = segment.begin(epoch)
            if following is None or first < following.first:
                return first
        raise AssertionError("the last segment has no end")

    def segment_of(self, step: int) -> tuple[BatchSizeSegment, int | None]:
        """The segment of a step, and the step after the segment's last; None: it has no end."""
        which = self._segment_index(self.skips.whole_step(step))
        last = which + 1 == len(self.segments)
        return self.segments[which], self.num_steps if last else self.skips.left(
            self.segments[which + 1].first
        )

    def _segment_index(self, whole_step: int) -> int:
        """Index of the segment of a whole step."""
        if len(self.segments) == 1:
            return 0
        return (
            bisect_right(self.segments, whole_step, key=lambda segment: segment.first)
            - 1
        )

    def position_of_step(self, step: int) -> tuple[int, int]:
        """Epoch of a step, and the position in that epoch at which the step begins."""
        return self.position_of_whole_step(self.skips.whole_step(step))

    def position_of_whole_step(self, whole_step: int) -> tuple[int, int]:
        """Same as `position_of_step`, for a whole step, which may be skipped."""
        return _epoch_positions(
            self.segments[self._segment_index(whole_step)], whole_step
        )

    def batch_size_of(self, whole_step: int) -> int:
        """Number of positions of a whole step."""
        return self.segments[self._segment_index(whole_step)].batch_size

    def step_at(self, epoch: int, position: int) -> tuple[int, int]:
        """Whole step that holds a position of an epoch, and the position's index in it before sorting by lane."""
        which = (
            bisect_right(
                self.segments,
                (epoch, position),
                key=lambda segment: (segment.epoch, segment.start),
            )
            - 1
        )
        segment = self.segments[which]
        if epoch == segment.epoch:
            begin, start = (segment.first, segment.start)
        else:
            begin, start = (segment.begin(epoch), 0)
        steps, between = divmod(position - start, segment.batch_size)
        return begin + steps, between

    def valid(self, step: int) -> int:
        """Number of the step's positions that hold a row; the rest, at its end if it is not balanced, are padding."""
        if self.remainder != "pad" and len(self.segments) == 1:
            # each step is full, and runs ask this at each
            return self.segments[0].batch_size
        return min(
            self.segment_of(step)[0].batch_size,
            self.order.size - self.position_of_step(step)[1],
        )

    def arranged(
        self, epochs: Integers, starts: Integers, valid: Integers, batch_size: int
    ) -> list[Integers]:
        """Offsets of the rows of balanced steps from their first positions, in batch order, int64[batch_size] each.

        Padding, whose offsets are those from `valid` on, is arranged as rows that cost nothing.

        Args:
            epochs: Epochs of the steps.
            starts: Positions in these epochs at which they begin.
            valid: Numbers of their positions that hold a row.
            batch_size: Number of their positions.
        """
        from loadax.plan.balance import arrangement

        assert self.costs is not None
        bounds = np.cumsum(valid)[:-1]
        in_epoch = np.concatenate(
            [
                np.arange(start, start + count)
                for start, count in zip(starts, valid, strict=True)
            ]
        )
        costs = self.costs(self.order.visits(np.repeat(epochs, valid), in_epoch))
        padded = np.zeros((len(valid), batch_size), costs.dtype)
        for row, step in zip(padded, np.split(costs, bounds), strict=True):
            row[: len(step)] = step
        return [arrangement(step) for step in padded]

    def of(self, step: int) -> "BatchPlan":  # noqa: ARG002 - `Steps` may have several
        """The plan that a step is laid out by."""
        return self

    def local(self, step: int) -> int:
        """Number of a step in that plan."""
        return step

    def visits(self, step: int, positions: Integers | None = None) -> Visits:
        """Visits at `positions` of the batch (None: all), in that order; padding has row -1."""
        if positions is None:
            positions = np.arange(self.segment_of(step)[0].batch_size, dtype=np.int64)
        return self.visits_of(range(step, step + 1), positions)

    def visits_of(self, steps: range, positions: Integers) -> Visits:
        """Visits at the same `positions` of several steps of one batch size, concatenated.

        The cost is proportional to `len(steps) * len(positions)`, not to the size of the batch or the dataset.
        """
        segment, _ = self.segment_of(steps.start)
        whole_steps = self.skips.whole_steps(
            np.arange(steps.start, steps.stop, dtype=np.int64)
        )
        epochs, starts = _epoch_positions(segment, whole_steps)
        valid = np.minimum(segment.batch_size, self.order.size - starts)
        offsets = np.empty((len(steps), len(positions)), np.int64)
        if self.costs is None:
            arranged = None
        else:
            arranged = self.arranged(epochs, starts, valid, segment.batch_size)
        before: tuple[list[LaneAssignment], int, int] = [], 0, 0
        steps_begin = zip(
            epochs.tolist(), starts.tolist(), valid.tolist(), strict=True
        )
        for index, (epoch, start, count) in enumerate(steps_begin):
            if arranged is not None:
                offsets[index] = arranged[index][positions]
                continue
            assignments = self.order.lane_assignments(epoch, start, start + count)
            if index and _sorted_alike(assignments, start, count, before):
                offsets[index] = offsets[index - 1]
            elif assignments:
                offsets[index] = by_lane(start, count, assignments, positions)
            else:
                offsets[index] = positions
            before = assignments, start, count
        in_epoch = (starts[:, None] + offsets).ravel()
        epoch_of = np.repeat(epochs, len(positions))
        if (valid == segment.batch_size).all():
            return self.order.visits(epoch_of, in_epoch)
        valid_positions = (offsets < valid[:, None]).ravel()
        rows = np.full(len(in_epoch), -1, np.int64)
        inside = np.array(epoch_of)
        visits = self.order.visits(
            epoch_of[valid_positions], in_epoch[valid_positions]
        )
        rows[valid_positions], inside[valid_positions] = visits
        return Visits(rows, inside)


def _sorted_alike(
    assignments: list[LaneAssignment],
    start: int,
    count: int,
    before: tuple[list[LaneAssignment], int, int],
) -> bool:
    """Whether two steps are of one run of lanes and begin with the same one, so that they are sorted by lane alike.

    The lanes of one run are one object.
    """
    others, other_start, other_count = before
    if len(assignments) != 1 or len(others) != 1 or count != other_count:
        return False
    lanes = assignments[0].lanes
    return lanes is others[0].lanes and (start - other_start) % len(lanes) == 0


def _epoch_positions(segment: BatchSizeSegment, step: Any) -> tuple[Any, Any]:
    """Epochs of steps (an int, or int64[n]) of a segment, and the positions at which they begin."""
    offset = step - segment.first
    later = offset >= segment.steps
    turns, inner = np.divmod(offset - segment.steps, max(1, segment.epoch_steps))
    epochs = np.where(later, segment.epoch + 1 + turns, segment.epoch)
    starts = np.where(
        later, inner * segment.batch_size, segment.start + offset * segment.batch_size
    )
    if isinstance(step, np.ndarray):
        return (epochs, starts)
    return (int(epochs), int(starts))
