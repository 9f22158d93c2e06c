"""Says how the skipped steps of a saved state differ from those of a loader, and what to do about it."""

from typing import Any

import numpy as np

from loadax.core.arguments import shown
from loadax.core.formatting import some
from loadax.core.intervals import merge
from loadax.dataset import Dataset
from loadax.errors import StateError
from loadax.loader.trace import trace
from loadax.plan.skips import Skips
from loadax.plan.steps import Steps

_NUMBERS = 4  # of a skipped range: epoch and position of its begin, and of its end
_MOST_RANGES = 4  # in a message

Ranges = tuple[tuple[int, int], ...]


def other_skips(
    plan: Steps, dataset: Dataset, saved: Any, whole_step: int
) -> StateError:
    """The error for a state whose run skipped other steps.

    Args:
        plan: Plan of the run.
        dataset: Dataset of the run.
        saved: Field "skipped" of the state.
        whole_step: Step of the state, counted without `skip`.
    """
    steps = _steps_of(plan, saved)
    if steps is None:
        return StateError(
            f"the state's 'skipped' is {shown(saved)}, which are not steps of "
            f"batch_size={plan.batch_size_of(0)}; pass the batch_size that the saved "
            "run had when it skipped them"
        )
    here = plan.skips.before(whole_step).ranges
    first = _first_difference(steps, here)
    if Skips(steps).holds(first):
        whose = "only the saved run skipped"
    else:
        whose = "only this loader skips"
    difference = (
        f"before step {whole_step}, the saved run skipped {_text(steps)}, and this "
        f"loader skips {_text(here)} (counted without skip()): {whose} step {first}, "
        f"{_row(plan, dataset, first)}"
    )
    if not steps:
        return StateError(
            f"{difference}; pass the state to the loader without skip(), or skip only "
            f"steps from {whole_step} on"
        )
    ranges = ", ".join(f"range({start}, {stop})" for start, stop in steps)
    return StateError(
        f"{difference}; pass the state to loader.skip([{ranges}]), of the loader "
        f"without skip(), and skip others only from step {whole_step} on"
    )


def _steps_of(plan: Steps, saved: Any) -> Ranges | None:
    """Ranges of whole steps that a state has as positions; None if they are not whole steps of this plan."""
    if not isinstance(saved, list):
        return None
    ranges = []
    for entry in saved:
        if not isinstance(entry, list) or len(entry) != _NUMBERS:
            return None
        epoch, position, last_epoch, end = entry
        numbers = all(type(number) is int and number >= 0 for number in entry)
        if (
            not numbers
            or position >= plan.order.size
            or not 0 < end <= plan.order.size
        ):
            return None
        start, inside = plan.step_at(epoch, position)
        last, at = plan.step_at(last_epoch, end - 1)
        size = min(plan.batch_size_of(last), plan.order.size - (end - 1 - at))
        if inside or at + 1 != size or last < start:
            return None
        ranges.append((start, last + 1))
    return merge(ranges)


def _first_difference(one: Ranges, other: Ranges) -> int:
    """First step that one of the two skips, and the other does not."""
    ends = sorted({end for start_stop in (*one, *other) for end in start_stop})
    return next(
        step for step in ends if Skips(one).holds(step) != Skips(other).holds(step)
    )


def _text(ranges: Ranges) -> str:
    """The steps of some ranges: `steps 3, 5 to 8`."""
    if not ranges:
        return "none"
    texts = [
        f"{start}" if stop == start + 1 else f"{start} to {stop - 1}"
        for start, stop in ranges
    ]
    if texts == [str(ranges[0][0])]:
        return f"step {texts[0]}"
    return f"steps {some(texts, _MOST_RANGES)}"


def _row(plan: Steps, dataset: Dataset, step: int) -> str:
    """First row of a step, with its dataset, epoch and file, where they are known."""
    if dataset.is_stream:
        return "of a stream"
    every = plan.skipping(Skips())
    (record,) = trace(every, dataset.source, step, np.zeros(1, np.int64))
    part = f" of {record.dataset!r}" if record.dataset else ""
    files = [f" ({location.file})" for location in record.where or ()]
    return (
        f"whose first row is row {record.row}{part}{''.join(files[:1])}, of epoch "
        f"{record.epoch}"
    )
