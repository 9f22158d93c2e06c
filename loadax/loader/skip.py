"""Skips steps of a run: those that `Dataloader.skip` names are taken out of the phases that have them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from loadax.core.arguments import MOST_POSITIONS, integer, shown
from loadax.core.formatting import count_text
from loadax.errors import ArgumentError
from loadax.loader.phase import Phase
from loadax.loader.phases import Phases


def skip(run: Phases, phases: Sequence[Phase], steps: Any) -> list[Phase]:
    """The phases without some steps of the run; see `Dataloader.skip`.

    Args:
        run: Steps of all phases.
        phases: The phases.
        steps: Steps of the run: an int, a range, a slice, or any iterable of these.

    Raises:
        ArgumentError: If the run does not have these steps, or none of a phase would remain.
    """
    skipped: list[list[range]] = [[] for _ in phases]
    for low, high in step_ranges(steps, run.num_steps):
        for number, local_steps in run.ranges(low, high):
            skipped[number].append(local_steps)
    left = list(map(_without, phases, skipped))
    for number, phase in enumerate(left):
        if phase.plan.num_steps != 0:
            continue
        if len(left) == 1:
            raise ArgumentError(
                f"steps={shown(steps)} skips all steps of the run; keep at least one"
            )
        raise ArgumentError(
            f"steps={shown(steps)} skips all steps of loaders[{number}]; keep at least "
            "one of each loader, or chain() the others without it"
        )
    return left


def _without(phase: Phase, ranges: Iterable[range]) -> Phase:
    """The same phase without ranges of its remaining steps."""
    skips = phase.plan.skips
    whole = [
        (skips.whole_step(steps.start), skips.whole_step(steps.stop - 1) + 1)
        for steps in ranges
    ]
    return phase.skipping(skips.and_also(whole))


def step_ranges(steps: Any, num_steps: int | None) -> list[tuple[int, int]]:
    """Ranges `(start, stop)` of the steps that an int, a range, a slice, or an iterable of these names.

    Raises:
        ArgumentError: When `steps` is of another kind, or out of range.
    """
    if isinstance(steps, np.ndarray):
        steps = steps.tolist()
    remedy = "an int, a range, a slice, or a list or set of these"
    if isinstance(steps, slice):
        ends = [
            integer("steps", end, remedy=remedy)
            for end in (steps.start, steps.stop)
            if end is not None
        ]
        if num_steps is None and (steps.stop is None or min(ends) < 0):
            raise ArgumentError(
                f"steps={steps!r}: the run is endless; pass a stop, and no negative "
                "numbers"
            )
        if num_steps is not None and ends and max(ends) > num_steps:
            raise ArgumentError(
                f"steps={steps!r}: the run has only "
                f"{count_text(num_steps, 'step')}; pass {num_steps} or less"
            )
        try:
            steps = range(
                *steps.indices(num_steps if num_steps is not None else max(ends))
            )
        except (TypeError, ValueError):
            raise ArgumentError(f"steps={shown(steps)}: pass {remedy}") from None
    if (
        isinstance(steps, str | bytes | Mapping)
        or not isinstance(steps, Iterable)
        or getattr(steps, "ndim", 1) == 0
    ):
        only = integer("steps", steps, remedy=remedy)
        steps = range(only, only + 1)
    if not isinstance(steps, range):
        return [step for entry in steps for step in step_ranges(entry, num_steps)]
    if not steps:
        return []
    low = min(steps[0], steps[-1])
    high = max(steps[0], steps[-1])
    if num_steps is None:
        end = MOST_POSITIONS
    else:
        end = num_steps
    if low < 0 or high >= end:
        if num_steps is None and low < 0:
            last = ""
        else:
            last = f" and below {end}"
        raise ArgumentError(
            f"step {shown(low if low < 0 else high)} can't be skipped: steps are at "
            f"least 0{last}"
        )
    if abs(steps.step) == 1:
        return [(low, high + 1)]
    return [(step, step + 1) for step in steps]
