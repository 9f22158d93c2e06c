"""Lease: hands out rows in the order of the run, in groups that may be finished in any order."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, Never, final

import numpy as np

from loadax.core.arguments import LARGEST, shown
from loadax.core.distributed import this_process
from loadax.core.formatting import count_text
from loadax.core.intervals import merge
from loadax.core.replacements import missing_attribute
from loadax.core.tree import map_leaves
from loadax.errors import ArgumentError, ClosedError, StateError
from loadax.loader.iterator import DataIterator
from loadax.loader.order_hash import LEASE, VERSION, OrderHash
from loadax.loader.phases import KEY as PHASES, Phases
from loadax.loader.pipeline import BatchPipeline
from loadax.loader.saved_state import plain
from loadax.loader.state import make_state, step_of
from loadax.loader.stretch import Target
from loadax.plan.batches import BatchPlan
from loadax.plan.skips import Skips
from loadax.protocols import Array, Integers, Interval, Tree


class Leased(NamedTuple):
    """Rows that are handed out together.

    Attributes:
        positions: int64[n]: their positions in the run, `epoch * len(dataset) + position in the epoch`, ascending. In
            a chain, they go on from one loader to the next.
        examples: The rows as NumPy arrays of shape (n, …).
    """

    positions: Integers
    examples: Tree


class _Progress(NamedTuple):
    """Rows that a process has finished, of those that it is responsible for.

    Args:
        batch_size: Rows of a global batch.
        own_ranges: Ranges of batch positions that the process is responsible for.
        end: Position before which it has handed out all of these rows.
        unfinished: Ranges of positions before `end` that it has not finished.
    """

    batch_size: int
    own_ranges: tuple[Interval, ...]
    end: int
    unfinished: tuple[Interval, ...] = ()

    def finished(self, positions: Integers, size: int) -> Array:
        """bool[n]: which of these positions it has finished, in epochs of `size` rows."""
        responsible = _inside(positions % size % self.batch_size, self.own_ranges)
        return (
            responsible
            & (positions < self.end)
            & ~_inside(positions, self.unfinished)
        )


def _inside(values: Integers, ranges: Iterable[Interval]) -> Array:
    """bool[n]: which values are in one of the ranges."""
    starts, stops = np.array([(-1, -1), *ranges], np.int64).T
    inside: Array = values < stops[np.searchsorted(starts, values, side="right") - 1]
    return inside


class LeasedPhase(NamedTuple):
    """A phase whose rows are leased.

    Args:
        target: Function of a plan: where its rows go.
        plan: Plan of the run, whose epochs are not cut.
        order: Hash of its order.
    """

    target: Callable[[BatchPlan], Target]
    plan: BatchPlan
    order: OrderHash


def leased_phase(
    pipeline: BatchPipeline, order: OrderHash, own_positions: Callable[[], Integers]
) -> LeasedPhase:
    """The part of a loader that a lease hands out.

    Args:
        pipeline: Pipeline of the loader.
        order: Hash of its order.
        own_positions: Function that returns the batch positions of this process's rows.

    Raises:
        ArgumentError: If the batch size is scheduled.
    """
    whole = pipeline.plan
    if not isinstance(whole.batch_size, int):
        raise ArgumentError(
            "lease() hands out rows in equal groups; pass one batch_size, not a "
            "schedule"
        )
    # nothing is placed
    alone = pipeline.options.shard is None and this_process().count == 1
    if alone:
        positions = np.arange(whole.batch_size)
    else:
        positions = own_positions()

    def target(plan: BatchPlan) -> Target:
        leased = replace(pipeline.on_host(), plan=plan)
        shard = leased.host_shard(positions, 0, leased.form(0).host_batch)
        # processes don't wait for each other
        return Target(leased, lambda _: shard, None, True, lambda *_: None)

    # Balanced places would depend on the batch size, and nothing is cut by devices.
    plan = replace(whole.of(0), remainder="pad", costs=None, skips=Skips())

    # epochs that end in a partial batch have one step more
    def numbered(whole_step: int) -> int:
        return plan.step_at(*whole.position_of_whole_step(whole_step))[0]

    skipped = [
        (numbered(low), numbered(high - 1) + 1) for low, high in whole.skips.ranges
    ]
    return LeasedPhase(target, plan.skipping(plan.skips.and_also(skipped)), order)


@final
class RowsOfPhase:
    """The rows of one loader: their positions, and which of them are read.

    Args:
        leased: The phase.
        progress: What all processes have finished of it.
        first: Position of its first row in the chain.
    """

    def __init__(self, leased: LeasedPhase, progress: list[_Progress], first: int):
        self.plan, self.order, self.size, self.first = (
            leased.plan,
            leased.order,
            leased.plan.order.size,
            first,
        )
        self._batch_size = leased.plan.schedule[0][1]
        self._own_ranges = merge(leased.target(leased.plan).shard(0).rows or ())
        # Position before which all rows of this process were handed out, by this lease or earlier ones.
        self.end = max(process.end for process in progress)
        # Rows before it that no process has finished.
        self.unserved = self._unserved(progress)
        self.reading = replace(
            leased.plan, skips=leased.plan.skips.and_also(self._finished_steps())
        )
        self.target = leased.target(self.reading)

    def stop_of(self, step: int) -> int:
        """Position at which a step of `reading` ends."""
        return self._start_of(self.reading.skips.whole_step(step) + 1)

    def positions_of(self, step: int) -> Integers:
        """Positions of this process's rows in a step of `reading`; -1 for padding."""
        epoch, position = self.plan.position_of_whole_step(
            self.reading.skips.whole_step(step)
        )
        own = np.concatenate(
            [
                np.arange(0),
                *(np.arange(start, stop) for start, stop in self._own_ranges),
            ]
        )
        in_epoch = position + own
        return np.where(in_epoch < self.size, epoch * self.size + in_epoch, -1)

    def state(self, end: int, unfinished: list[int]) -> dict[str, Any]:
        """State of which rows were finished: of those before `end`, all but the unfinished ones, which ascend."""
        epoch = min([end, *unfinished[:1]]) // self.size
        step = self.plan.skips.left(self.plan.step_at(epoch, 0)[0])
        ranges = merge((position, position + 1) for position in unfinished)
        lease = {
            "end": end,
            "unfinished": list(map(list, ranges)),
            "held": list(map(list, self._own_ranges)),
            "order": self.order(*divmod(end, self.size)),
        }
        return make_state(self.plan, self.order, step) | {LEASE: lease}

    def _start_of(self, whole_step: int) -> int:
        """Position at which a step begins."""
        epoch, position = self.plan.position_of_whole_step(whole_step)
        return epoch * self.size + position

    def _unserved(self, progress: list[_Progress]) -> list[int]:
        """This process's rows before `end` that no process has finished."""
        first = min(process.end for process in progress)
        ranges = merge(
            [
                (first, self.end),
                *(each for process in progress for each in process.unfinished),
            ]
        )
        positions = np.concatenate(
            [
                np.arange(0),
                *(np.arange(start, min(stop, self.end)) for start, stop in ranges),
            ]
        )
        waiting = _inside(positions % self.size % self._batch_size, self._own_ranges)
        for process in progress:
            waiting &= ~process.finished(positions, self.size)
        return [int(position) for position in positions[waiting]]

    def _finished_steps(self) -> list[Interval]:
        """Ranges of steps whose rows were all finished: they are not read. The last step of the run always is."""
        epochs, in_epoch = np.divmod([*self.unserved, self.end], self.size)
        steps = epochs * self.plan.steps_per_epoch + in_epoch // self._batch_size
        if self.plan.num_steps is not None:
            steps = np.minimum(
                steps, self.plan.skips.whole_step(self.plan.num_steps - 1)
            )
        steps = np.unique(steps)
        return list(zip([0, *(steps[:-1] + 1).tolist()], steps.tolist(), strict=True))


@final
class Lease:
    """Hands out the rows of a `Dataloader`, or of a chain of them, and remembers which of them were finished.

    Rows come in the order of the run, `batch_size` or fewer at once, and each stays unfinished until it is acknowledged
    or dropped. A lease that begins from the state of another one serves what was unfinished, in order, and then the
    rest; of the last, partial batch of an epoch too. Threads may share a lease. See `Dataloader.lease`.

    Args:
        phases: The phases.
        steps: Their steps and states, as of their iterators.
        start: Step, state of an iterator or a lease, or the states of all processes of a lease. None: step 0.

    Attributes:
        acknowledged: Number of rows that were acknowledged.
        dropped: Number of rows that were dropped.
    """

    def __init__(self, phases: Sequence[LeasedPhase], steps: Phases, start: Any):
        firsts = accumulate((_last(phase.plan) for phase in phases[:-1]), initial=0)
        progress = _progress(phases, steps, start)
        self._phases = [
            RowsOfPhase(*given)
            for given in zip(phases, progress, firsts, strict=True)
        ]
        # Positions in the run that are unfinished, in order, and whether this lease has handed them out.
        self._unfinished: dict[int, bool] = {
            phase.first + position: False
            for phase in self._phases
            for position in phase.unserved
        }
        self.acknowledged = 0
        self.dropped = 0
        self._steps = Phases([(phase.reading, phase.order) for phase in self._phases])
        self._batches = DataIterator(
            [phase.target for phase in self._phases],
            self._steps,
            threading.Event(),
            0,
        )
        self._next_step = 0
        # reentrant: of a Ctrl-C's handler too
        self._serving = threading.RLock()
        self._counting = threading.RLock()

    if not TYPE_CHECKING:  # type checkers must still report misspelt names
        __getattr__ = missing_attribute

    def __reduce__(self) -> Never:
        raise TypeError(
            "a lease can't be pickled or copied, since its threads belong to this "
            "process; save its get_state(), and continue with loader.lease(state)"
        )

    def __enter__(self) -> "Lease":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Leased]:
        return self

    def __next__(self) -> Leased:
        """The next rows of this process; threads get different ones.

        Raises:
            StopIteration: When all rows were handed out. Some may still be unfinished.
            Exception: Whatever reading the rows raised.
        """
        with self._serving:
            while True:
                # a Ctrl-C came before the rows were noted
                if self._batches.step != self._next_step:
                    self._batches.set_state(self._next_step)
                try:
                    batch = next(self._batches)
                except ClosedError:
                    raise ClosedError(
                        "this lease is closed; go on with "
                        "loader.lease(lease.get_state())"
                    ) from None
                number, step = self._steps.locate(self._next_step)
                phase = self._phases[number]
                in_phase = phase.positions_of(step)
                positions = np.where(in_phase < 0, -1, phase.first + in_phase)
                with self._counting:
                    waiting = (
                        self._unfinished.get(position)
                        for position in positions.tolist()
                    )
                    served = (in_phase >= phase.end) | np.array(
                        [handed_out is False for handed_out in waiting], bool
                    )
                    self._unfinished |= dict.fromkeys(
                        positions[served].tolist(), True
                    )
                    for earlier in self._phases[:number]:
                        earlier.end = _last(earlier.plan)
                    phase.end = max(phase.end, phase.stop_of(step))
                    self._next_step += 1
                if served.any():
                    if served.all():
                        rows = batch
                    else:
                        rows = map_leaves(itemgetter(served), batch)
                    return Leased(positions[served], rows)

    def ack(self, positions: Any) -> None:
        """Acknowledges rows: they are never served again from a state that is saved after this.

        Args:
            positions: What this lease has handed out: a `Leased`, positions of one as an int or ints of any shape, or a
                list of such positions.

        Raises:
            ArgumentError: If one was not handed out by this lease, or is finished. None of them is acknowledged then.
        """
        with self._counting:
            self.acknowledged += self._finish(positions)

    def drop(self, positions: Any) -> None:
        """Gives rows up: they are not served again either, but counted apart.

        Args:
            positions: Positions, as for `ack`.

        Raises:
            ArgumentError: As for `ack`.
        """
        with self._counting:
            self.dropped += self._finish(positions)

    @property
    def in_flight(self) -> int:
        """Number of rows that this lease has handed out and that are not finished."""
        with self._counting:
            return sum(self._unfinished.values())

    def get_state(self) -> dict[str, Any]:
        """JSON-serialisable state: which rows of this process were finished.

        It has the first position that was not handed out, and the earlier positions that are unfinished. Several
        processes have different states, and a resume needs those of all. Of a chain, it has a state for each loader of
        which rows were handed out; of its first one, it is the state of that loader alone.
        """
        with self._counting:
            ends = [phase.end for phase in self._phases]
            unfinished = np.sort([*self._unfinished]).astype(np.int64)
        begun = (
            max(number for number, end in enumerate(ends) if end or not number) + 1
        )
        states = []
        for phase, end in zip(self._phases[:begun], ends, strict=False):
            low, high = np.searchsorted(unfinished, [phase.first, phase.first + end])
            states.append(
                phase.state(end, (unfinished[low:high] - phase.first).tolist())
            )
        if begun == 1:
            return states[0]
        return {"version": VERSION, PHASES: states}

    def close(self) -> None:
        """Stops reading ahead. Rows that were handed out can still be acknowledged. Idempotent."""
        self._batches.close()

    def __repr__(self) -> str:
        return (
            f"Lease({count_text(self.acknowledged, 'row')} acknowledged, "
            f"{self.dropped:,} dropped, {self.in_flight:,} in flight)"
        )

    def _finish(self, positions: Any) -> int:
        if isinstance(positions, Leased):
            given = [positions.positions]
        else:
            given = positions
        listed = [
            np.ravel(each)
            for each in (given if isinstance(given, list | tuple) else [given])
        ]
        finished = np.concatenate(listed or [np.arange(0)])
        known = finished.dtype.kind in "iu" and len({*finished.tolist()}) == len(
            finished
        )
        for position in finished.tolist():
            if not known or not self._unfinished.get(position):
                raise ArgumentError(
                    f"positions={shown(positions)}: {shown(position)} was not handed "
                    "out by this lease, or is finished already; pass "
                    "leased.positions of what next(lease) returned, not its rows, "
                    "and each once"
                )
        for position in finished.tolist():
            del self._unfinished[position]
        return len(finished)


def _last(plan: BatchPlan) -> int:
    """Number of rows of a run; of an infinite one, the largest that is counted."""
    if plan.num_epochs is None:
        return LARGEST
    return plan.num_epochs * plan.order.size


def _ranges(saved: Any, end: int) -> tuple[Interval, ...]:
    """Ranges below `end`, ascending.

    Raises:
        ValueError: If they are not that.
    """
    ranges = tuple((start, stop) for start, stop in saved)
    if ranges != merge(ranges) or any(
        not 0 <= start < stop <= end for start, stop in ranges
    ):
        raise ValueError
    return ranges


def _progress(
    phases: Sequence[LeasedPhase], steps: Phases, start: Any
) -> list[list[_Progress]]:
    """Rows of each loader that the processes that saved these states have finished, together.

    Raises:
        StateError: If a state belongs to other data, or they are not those of all processes.
    """
    if not isinstance(start, Mapping | list | tuple):  # a step of an iterator
        start = steps.state(steps.start_of(0 if start is None else start))
    if isinstance(start, list | tuple):
        saved = start
    else:
        saved = [start]
    if not saved:
        raise StateError(
            f"start={start!r}: pass the states of all processes of a lease, or 0 to "
            "begin"
        )
    told = [_progress_of_process(phases, steps, state) for state in saved]
    found: list[list[_Progress]] = []
    for number, phase in enumerate(phases):
        begun = [process[number] for process in told if number < len(process)]
        # a process that has not begun this loader has finished none of its rows
        if len(begun) < len(told):
            if begun:
                size = begun[0].batch_size
            else:
                size = phase.plan.schedule[0][1]
            begun.append(_Progress(size, ((0, size),), 0))
        _check_covered(begun)
        found.append(begun)
    return found


def _progress_of_process(
    phases: Sequence[LeasedPhase], steps: Phases, state: Any
) -> list[_Progress]:
    """Rows of each loader that one process has finished, of those that it has begun."""
    if len(phases) == 1 and not (isinstance(state, Mapping) and PHASES in state):
        return [_progress_of(phases[0], state)]
    states = steps.states_of(state)
    if not any(LEASE in each for each in states):
        steps.start_of(state)  # raises if an earlier loader has not ended there
    found = []
    for number, (phase, saved) in enumerate(zip(phases, states, strict=False)):
        try:
            process = _progress_of(phase, saved)
        except StateError as error:
            raise StateError(f"loaders[{number}]: {error}") from None
        if number + 1 < len(states):
            if LEASE in saved and process.end != _last(phase.plan):
                raise StateError(
                    f"loaders[{number}] has ended after "
                    f"{count_text(process.end, 'row')} in the saved run, and has "
                    f"{_last(phase.plan)} here; pass the num_epochs that it had then"
                )
            process = process._replace(end=_last(phase.plan))
        found.append(process)
    return found


def _check_covered(progress: list[_Progress]) -> None:
    """Raises if processes are not responsible for all rows of a batch, together."""
    batch_size = progress[0].batch_size
    own_ranges = merge(each for process in progress for each in process.own_ranges)
    if own_ranges != ((0, batch_size),) or any(
        process.batch_size != batch_size for process in progress
    ):
        covered = ", ".join(f"{low} to {high - 1}" for low, high in own_ranges)
        raise StateError(
            f"start covers the positions {covered} of each batch of {batch_size}; "
            "pass a list of the states of all processes of that run"
        )


def _progress_of(phase: LeasedPhase, start: Any) -> _Progress:
    plan = phase.plan
    order = phase.order
    if isinstance(start, Mapping):
        state = dict(start)
    else:
        state = start
    lease = plain(state.pop(LEASE, None)) if isinstance(state, dict) else None
    epoch, position = plan.position_of_step(step_of(plan, order, state))
    size = plan.order.size
    batch_size = plan.schedule[0][1]
    if lease is None:
        return _Progress(batch_size, ((0, batch_size),), epoch * size + position)
    saved = int(plain(state["batch_size"]))
    last = _last(plan)
    try:
        end = lease["end"]
        digest = lease["order"]
        own_ranges = _ranges(lease["held"], saved)
        unfinished = _ranges(lease["unfinished"], end)
        if type(end) is not int or not 0 <= end <= LARGEST:
            raise ValueError  # noqa: TRY301 - as for what can't be read at all
    except (KeyError, TypeError, ValueError):
        raise StateError(
            f"the state's {LEASE!r} is {shown(lease)}; pass a state of "
            "lease.get_state()"
        ) from None
    if end > last:
        raise StateError(
            f"the state's {LEASE!r} has handed out {count_text(end, 'row')}, but "
            f"the run has {last}; pass a larger num_epochs"
        )
    # Rows of a step that are sorted by lane, and weights that change by step, depend on the batch size.
    lanes = bool(plan.order.lane_assignments(0, 0, 1))
    if (lanes and saved != batch_size) or order(*divmod(end, size)) != digest:
        raise StateError(
            f"the state's 'batch_size' is {saved}, this loader's is {batch_size}, "
            f"and rows have other positions with it; pass batch_size={saved}, and "
            "the dataset of that run"
        )
    return _Progress(saved, own_ranges, end, unfinished)
