"""Phases: the steps and states of runs one after the other. Plain numbers: no data, no mesh."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from operator import itemgetter
from typing import Any, final

from loadax.core.arguments import MOST_POSITIONS, shown
from loadax.errors import ArgumentError, RowIndexError, StateError
from loadax.loader.order_hash import VERSION, OrderHash
from loadax.loader.state import make_state, plain_step, step_of
from loadax.plan.steps import Steps

# Key of the states of the phases in the state of a chain.
KEY = "phases"


@final
class Phases:
    """Runs one after the other, as one run: its steps, epochs and states.

    Args:
        runs: Plan and order of each run. Only the last one may be endless.
    """

    def __init__(self, runs: Sequence[tuple[Steps, OrderHash]]):
        self._runs = runs
        self._plans: tuple[Steps, ...] = tuple(map(itemgetter(0), runs))
        self.last = len(runs) - 1
        self.first_steps = tuple(
            accumulate((plan.num_steps or 0 for plan in self._plans[:-1]), initial=0)
        )
        self._first_epochs = [
            *accumulate(
                (plan.num_epochs or 0 for plan in self._plans[:-1]), initial=0
            )
        ]
        self._end = self.first_steps[-1] + self._plans[-1].end
        steps = self._plans[-1].num_steps
        if steps is None:
            self.num_steps = None
        else:
            self.num_steps = self.first_steps[-1] + steps

    def locate(self, step: int) -> tuple[int, int]:
        """The phase of a step, and the step counted in that phase. The end of the run is in the last one."""
        phase = bisect_right(self.first_steps, step) - 1
        return phase, step - self.first_steps[phase]

    def ranges(self, low: int, high: int) -> list[tuple[int, range]]:
        """A range of steps as the phases that it is in, and a range in each, whose steps are counted in that phase."""
        found = []
        for phase, first in enumerate(self.first_steps):
            if phase == self.last:
                stop = high
            else:
                stop = min(high, self.first_steps[phase + 1])
            if (start := max(low, first)) < stop:
                found.append((phase, range(start - first, stop - first)))
        return found

    def ranges_of(self, steps: range | None) -> list[tuple[int, range]]:
        """Same as `ranges`, of a range of steps that a user passes. None: all.

        Raises:
            ArgumentError: If it is something else, or None and the run is infinite.
            RowIndexError: If the run does not have these steps.
        """
        if steps is None and self.num_steps is None:
            raise ArgumentError(
                "num_epochs=None: the run is infinite; pass steps=range(start, stop)"
            )
        endless = any(plan.order.size >= MOST_POSITIONS for plan in self._plans)
        if steps is None and endless:
            raise ArgumentError(
                "the mixture never ends, as of stop='never'; pass "
                "steps=range(start, stop)"
            )
        if steps is None:
            chosen = range(self.num_steps or 0)
        else:
            chosen = steps
        if not isinstance(chosen, range) or chosen.step != 1 or not chosen:
            raise ArgumentError(
                f"steps={shown(steps)}: pass a range of consecutive steps"
            )
        self.check(chosen[0])
        self.check(chosen[-1])
        return self.ranges(chosen.start, chosen.stop)

    def check(self, step: int) -> tuple[int, int]:
        """Same as `locate`, or raises `RowIndexError` if the run does not have the step."""
        if not 0 <= step < self._end:
            if self.num_steps is None and step < 0:
                last = ""
            else:
                last = f" and below {self._end}"
            raise RowIndexError(
                f"step {shown(step)} is out of range: steps are at least 0{last}"
            )
        return self.locate(step)

    def next_first(self, step: int) -> int | None:
        """First step of the phase after that of a step. None: it is the last."""
        return next((first for first in self.first_steps if first > step), None)

    def epoch_of(self, step: int) -> int:
        """Epoch of a step, counted over all phases."""
        phase, local = self.locate(step)
        return (
            self._first_epochs[phase] + self._plans[phase].position_of_step(local)[0]
        )

    def epoch_stop(self, step: int) -> int:
        """Step after the last one of the epoch of a step."""
        phase, local = self.locate(step)
        plan = self._plans[phase]
        return (
            self.first_steps[phase]
            + plan.epoch_steps(plan.position_of_step(local)[0]).stop
        )

    def batch_size(self, step: int) -> int:
        """Rows of a step; of the last one if the run is over."""
        phase, local = self.locate(
            step if self.num_steps is None else min(step, self.num_steps - 1)
        )
        return self._plans[phase].segment_of(local)[0].batch_size

    def state(self, step: int) -> dict[str, Any]:
        """The state before a step: that of the first loader, or one with the state of each loader that has begun."""
        phase, local = self.locate(step)
        ends = [plan.num_steps or 0 for plan in self._plans[:phase]]
        begun = local or not phase or self._runs[phase][1].weights
        ends += [local] if begun else []
        states = [
            make_state(*run, end) for run, end in zip(self._runs, ends, strict=False)
        ]
        if len(states) == 1:
            return states[0]
        return {"version": VERSION, "step": step, KEY: states}

    def states_of(self, state: Any) -> Sequence[Mapping[str, Any]]:
        """The states of the loaders that have begun, in a state.

        Raises:
            StateError: If it has none, or more than there are loaders.
        """
        if isinstance(state, Mapping):
            states = state.get(KEY, [state])
        else:
            states = state
        if (
            not isinstance(states, list | tuple)
            or not states
            or not all(isinstance(each, Mapping) for each in states)
        ):
            raise StateError(
                f"the state's {KEY!r} is {shown(states)}; pass a state of get_state()"
            )
        if len(states) > len(self._runs):
            raise StateError(
                f"the state is of a chain in its loader {len(states) - 1}, counted "
                f"from 0, and there are only {len(self._runs)} here; chain the "
                "loaders of the saved run, and new ones after them"
            )
        return states

    def start_of(self, start: Any) -> int:
        """The step of `start`, a step or a state: of these loaders up to the present one, or of the first one alone.

        Raises:
            StateError: If it is neither, or a loader that has begun has changed; names the loader and the field.
        """
        if not self.last and not (isinstance(start, Mapping) and KEY in start):
            return step_of(*self._runs[0], start)
        if not isinstance(start, Mapping):
            step = plain_step(start)
            if not 0 <= step <= self._end:
                raise StateError(
                    f"start is step {shown(step)}: pass a step of at least 0 and at "
                    f"most {self._end}"
                )
            return step
        step = 0
        states = self.states_of(start)
        for index, state in enumerate(states):
            try:
                step = step_of(*self._runs[index], state)
            except StateError as error:
                raise StateError(f"loaders[{index}]: {error}") from None
            if index + 1 < len(states) and step != self._plans[index].num_steps:
                raise StateError(
                    f"loaders[{index}] has ended before step {step} in the saved run, "
                    f"and ends before step {self._plans[index].num_steps} here; pass "
                    "the num_epochs that it had then"
                )
        return self.first_steps[len(states) - 1] + step
