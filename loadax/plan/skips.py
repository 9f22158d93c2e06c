"""Skipped steps of a run, and the numbering of the remaining ones."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np

from loadax.core.arguments import MOST_POSITIONS, integer, shown
from loadax.core.intervals import merge
from loadax.errors import ArgumentError
from loadax.protocols import Integers


@final
@dataclass(frozen=True)
class Skips:
    """Ranges of skipped steps.

    A `whole_step` counts all steps of the run; a `step` counts only the remaining ones.

    Args:
        ranges: `(start, stop)` of whole steps, ascending, not empty, and with gaps between them; see `merge`.

    Examples:
        >>> import numpy as np
        >>> from loadax.plan.skips import Skips
        >>> skips = Skips(((2, 5),))
        >>> skips.whole_steps(np.arange(4)), skips.left(4), skips.left(6)
        (array([0, 1, 5, 6]), 2, 3)
    """

    ranges: tuple[tuple[int, int], ...] = ()

    @property
    def count(self) -> int:
        """Number of skipped steps."""
        if self.ranges:
            return int(self._skipped[-1])
        return 0

    def whole_steps(self, steps: Integers) -> Integers:
        """Whole steps of ascending steps."""
        if not self.ranges:
            return steps
        # The step after range k is preceded by the whole steps before the range, minus those skipped earlier.
        following = self._starts - self._skipped[:-1]
        return steps + self._skipped[np.searchsorted(following, steps, side="right")]

    def whole_step(self, step: int) -> int:
        """Whole step of a step."""
        if not self.ranges:
            return step
        return int(self.whole_steps(np.array([step], np.int64))[0])

    def left(self, whole_step: int) -> int:
        """Number of remaining steps before a whole step, which is its own `step`, or that of the next remaining one."""
        if not self.ranges:
            return whole_step
        before = int(np.searchsorted(self._starts, whole_step, side="right"))
        if not before:
            return whole_step
        start, stop = self.ranges[before - 1]
        return (
            whole_step
            - int(self._skipped[before - 1])
            - (min(whole_step, stop) - start)
        )

    def holds(self, whole_step: int) -> bool:
        """Whether a whole step is skipped."""
        before = int(np.searchsorted(self._starts, whole_step, side="right"))
        return before > 0 and whole_step < self.ranges[before - 1][1]

    def before(self, whole_step: int) -> "Skips":
        """The skips before a whole step."""
        return Skips(
            tuple(
                (start, min(stop, whole_step))
                for start, stop in self.ranges
                if start < whole_step
            )
        )

    def and_also(self, ranges: Iterable[tuple[int, int]]) -> "Skips":
        """These skips and further ranges of whole steps."""
        return Skips(merge([*self.ranges, *ranges]))

    @cached_property
    def _starts(self) -> Integers:
        return np.array([start for start, _ in self.ranges], np.int64)

    @cached_property
    def _skipped(self) -> Integers:
        """Number of steps in the first k ranges, for k from 0 on."""
        return np.cumsum([0, *(stop - start for start, stop in self.ranges)])


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
                f"steps={steps!r}: the run has only {num_steps} steps; pass "
                f"{num_steps} or less"
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
