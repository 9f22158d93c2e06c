"""Skipped steps of a run, and the numbering of the remaining ones."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np

from loadax.core.intervals import merge
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
