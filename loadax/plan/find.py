"""Where a run meets a record: the inverse of a plan.

Each verb inverts itself (see `Order.inverse`), and nothing is searched for but in lists of rows, so it costs in
proportion to how often the record is met.
"""

from typing import NamedTuple

import numpy as np

from loadax.plan.batches import BatchPlan
from loadax.plan.lanes import in_step


class Place(NamedTuple):
    """Where a run meets a record: in which step, at which position of the batch."""

    step: int
    position: int


def find(plan: BatchPlan, row: int, steps: range) -> list[Place]:
    """Where these steps of a run meet a row: exactly where `plan.visits` has it, in order.

    Args:
        plan: Plan of the run.
        row: Row of the source.
        steps: Steps to look at, one after another.
    """
    if not len(steps):
        return []
    first, last = plan.skips.whole_step(steps[0]), plan.skips.whole_step(steps[-1])
    (first_epoch, low), (last_epoch, high) = plan.place_of(first), plan.place_of(last)
    size = plan.order.size
    window = (low, min(high + plan.batch_size_of(last), size)) if first_epoch == last_epoch else (0, size)
    epochs = np.arange(first_epoch, last_epoch + 1, dtype=np.int64)
    hits = plan.order.inverse(np.full_like(epochs, row), epochs, window)
    places = [
        _place(plan, int(epochs[asked]), position)
        for asked, position in zip(hits.asked, hits.positions.tolist(), strict=True)
    ]
    return sorted(place for place in places if place is not None and place.step in steps)


def _place(plan: BatchPlan, epoch: int, position: int) -> Place | None:
    """The step that a position of an epoch belongs to; None when it is left out."""
    whole_step, offset = plan.step_at(epoch, position)
    if plan.place_of(whole_step) != (epoch, position - offset) or plan.skips.holds(whole_step):
        return None  # of the remainder that is dropped, or skipped
    start = position - offset
    count = min(plan.batch_size_of(whole_step), plan.order.size - start)
    assignments = plan.order.lane_assignments(epoch, start, start + count)
    if assignments:
        offset = int(in_step(start, count, assignments, np.array([offset], np.int64))[0])
    return Place(plan.skips.left(whole_step), offset)
