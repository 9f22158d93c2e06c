"""Finds the steps that read a record: the inverse of a `BatchPlan`.

Each verb inverts itself (see `Order.inverse`), and only lists of rows are searched. So the cost is proportional to the
number of reads of the record.
"""

from typing import NamedTuple

import numpy as np

from loadax.plan.lanes import in_step
from loadax.plan.steps import Steps


class StepPosition(NamedTuple):
    """One read of a record: the step, and the position in its batch."""

    step: int
    position: int


def find(plan: Steps, row: int, steps: range) -> list[StepPosition]:
    """Finds all reads of a row in some steps, in ascending order.

    Attributes:
        plan: Plan of the run.
        row: Row of the source.
        steps: Consecutive steps to search.
    """
    if not len(steps):
        return []
    first = plan.skips.whole_step(steps[0])
    last = plan.skips.whole_step(steps[-1])
    (first_epoch, low), (last_epoch, high) = (
        plan.position_of_whole_step(first),
        plan.position_of_whole_step(last),
    )
    size = plan.order.size
    if first_epoch == last_epoch:
        window = (low, min(high + plan.batch_size_of(last), size))
    else:
        window = (0, size)
    epochs = np.arange(first_epoch, last_epoch + 1, dtype=np.int64)
    hits = plan.order.inverse(np.full_like(epochs, row), epochs, window)
    positions = [
        _step_position(plan, int(epochs[asked]), position)
        for asked, position in zip(hits.asked, hits.positions.tolist(), strict=True)
    ]
    return sorted(
        position
        for position in positions
        if position is not None and position.step in steps
    )


def _step_position(plan: Steps, epoch: int, position: int) -> StepPosition | None:
    """Step and batch position of a position of an epoch; None if its step is dropped or skipped."""
    whole_step, offset = plan.step_at(epoch, position)
    if plan.position_of_whole_step(whole_step) != (
        epoch,
        position - offset,
    ) or plan.skips.holds(whole_step):
        return None
    step = plan.skips.left(whole_step)
    # A step of buckets is sorted by the lanes of its bucket.
    own = plan.of(step)
    local = plan.local(step)
    epoch, start = own.position_of_step(local)
    count = own.valid(local)
    if own.costs is not None:
        epochs, starts, counts = (
            np.array([value], np.int64) for value in (epoch, start, count)
        )
        (arranged,) = own.arranged(
            epochs, starts, counts, plan.batch_size_of(whole_step)
        )
        return StepPosition(step, int(np.flatnonzero(arranged == offset)[0]))
    assignments = own.order.lane_assignments(epoch, start, start + count)
    if assignments:
        offset = int(
            in_step(start, count, assignments, np.array([offset], np.int64))[0]
        )
    return StepPosition(step, offset)
