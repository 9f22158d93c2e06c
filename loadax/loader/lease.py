"""Lease: hands out rows in the order of the run, in groups that may be finished in any order."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, Never, final

import numpy as np

from loadax.core.arguments import LARGEST, shown
from loadax.core.intervals import merge
from loadax.core.replacements import missing_attribute
from loadax.core.tree import map_leaves
from loadax.errors import ArgumentError, ClosedError, StateError
from loadax.loader.iterator import DataIterator
from loadax.loader.phases import Phases
from loadax.loader.state import LEASE, OrderHash, make_state, plain, step_of
from loadax.loader.stretch import Target
from loadax.plan.batches import BatchPlan
from loadax.protocols import Array, Integers, Interval, Tree


class Leased(NamedTuple):
    """Rows that are handed out together.

    Args:
        positions: int64[n]: their positions in the run, `epoch * len(dataset) + position in the epoch`, ascending.
        examples: The rows as NumPy arrays of shape (n, …).
    """

    positions: Integers
    examples: Tree


class _Progress(NamedTuple):
    """What a process has finished of the rows that it is responsible for.

    Args:
        batch_size: Rows of a global batch.
        held: Ranges of batch positions that the process is responsible for.
        end: Position before which it has handed out all of these rows.
        unfinished: Ranges of positions before `end` that it has not finished.
    """

    batch_size: int
    held: tuple[Interval, ...]
    end: int
    unfinished: tuple[Interval, ...] = ()

    def finished(self, positions: Integers, size: int) -> Array:
        """bool[n]: which of these positions it has finished, in epochs of `size` rows."""
        responsible = _inside(positions % size % self.batch_size, self.held)
        return responsible & (positions < self.end) & ~_inside(positions, self.unfinished)


def _inside(values: Integers, ranges: Iterable[Interval]) -> Array:
    """bool[n]: which values are in one of the ranges."""
    starts, stops = np.array([(-1, -1), *ranges], np.int64).T
    inside: Array = values < stops[np.searchsorted(starts, values, side="right") - 1]
    return inside


@final
class Lease:
    """Hands out the rows of a `Dataloader`, and remembers which of them were finished.

    Rows come in the order of the run, `batch_size` or fewer at once, and each stays unfinished until it is acknowledged
    or dropped. A lease that begins from the state of another one serves what was unfinished, in order, and then the
    rest; of the last, partial batch of an epoch too. Threads may share a lease. See `Dataloader.lease`.

    Args:
        target: Function of a plan: where its rows go.
        plan: Plan of the run, whose epochs are not cut.
        order: Hash of its order.
        start: Step, state of an iterator or a lease, or the states of all processes of a lease.

    Attributes:
        acknowledged: Number of rows that were acknowledged.
        dropped: Number of rows that were dropped.
    """

    def __init__(self, target: Callable[[BatchPlan], Target], plan: BatchPlan, order: OrderHash, start: Any):
        self._plan, self._order, self._size = plan, order, plan.order.size
        self._batch_size, self._held = plan.schedule[0][1], merge(target(plan).shard(0).rows or ())
        progress = _progress(plan, order, start)
        # Position before which all rows of this process were handed out, by this lease or earlier ones.
        self._end = max(process.end for process in progress)
        # Those of them that are unfinished, in order, and whether this lease has handed them out.
        self._unfinished: dict[int, bool] = dict.fromkeys(self._unserved(progress), False)
        self.acknowledged, self.dropped = 0, 0
        self._reading = replace(plan, skips=plan.skips.and_also(self._finished_steps()))
        self._batches = DataIterator([target(self._reading)], Phases([(self._reading, order)]), threading.Event(), 0)
        self._next_step = 0  # of `_reading`
        self._serving, self._counting = threading.RLock(), threading.RLock()  # reentrant: of a Ctrl-C's handler too

    if not TYPE_CHECKING:  # type checkers must still report misspelt names
        __getattr__ = missing_attribute

    def __reduce__(self) -> Never:
        raise TypeError(
            "a lease can't be pickled or copied, since its threads belong to this process; save its get_state(), and "
            "continue with loader.lease(state)"
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
                if self._batches.step != self._next_step:  # a Ctrl-C came before the rows were noted
                    self._batches.set_state(self._next_step)
                try:
                    batch = next(self._batches)
                except ClosedError:
                    raise ClosedError("this lease is closed; go on with loader.lease(lease.get_state())") from None
                positions = self._positions_of(self._reading.skips.whole_step(self._next_step))
                with self._counting:
                    waiting = (self._unfinished.get(position) for position in positions.tolist())
                    served = (positions >= self._end) | np.array([handed_out is False for handed_out in waiting], bool)
                    self._unfinished |= dict.fromkeys(positions[served].tolist(), True)
                    self._end = max(self._end, self._start_of(self._reading.skips.whole_step(self._next_step) + 1))
                    self._next_step += 1
                if served.any():
                    rows = batch if served.all() else map_leaves(itemgetter(served), batch)
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
        processes have different states, and a resume needs those of all.
        """
        with self._counting:
            end, unfinished = self._end, sorted(self._unfinished)
        epoch = min([end, *unfinished[:1]]) // self._size
        step = self._plan.skips.left(self._plan.step_at(epoch, 0)[0])
        ranges = merge((position, position + 1) for position in unfinished)
        lease = {
            "end": end,
            "unfinished": list(map(list, ranges)),
            "held": list(map(list, self._held)),
            "order": self._order(*divmod(end, self._size)),
        }
        return make_state(self._plan, self._order, step) | {LEASE: lease}

    def close(self) -> None:
        """Stops reading ahead. Rows that were handed out can still be acknowledged. Idempotent."""
        self._batches.close()

    def __repr__(self) -> str:
        return f"Lease({self.acknowledged:,} rows acknowledged, {self.dropped:,} dropped, {self.in_flight:,} in flight)"

    def _start_of(self, whole_step: int) -> int:
        """Position at which a step begins."""
        epoch, position = self._plan.position_of_whole_step(whole_step)
        return epoch * self._size + position

    def _positions_of(self, whole_step: int) -> Integers:
        """Positions of this process's rows in a step; -1 for padding."""
        epoch, position = self._plan.position_of_whole_step(whole_step)
        held = np.concatenate([np.arange(0), *(np.arange(start, stop) for start, stop in self._held)])
        in_epoch = position + held
        return np.where(in_epoch < self._size, epoch * self._size + in_epoch, -1)

    def _unserved(self, progress: list[_Progress]) -> list[int]:
        """This process's rows before `_end` that no process has finished."""
        first = min(process.end for process in progress)
        ranges = merge([(first, self._end), *(each for process in progress for each in process.unfinished)])
        positions = np.concatenate([np.arange(0), *(np.arange(start, min(stop, self._end)) for start, stop in ranges)])
        waiting = _inside(positions % self._size % self._batch_size, self._held)
        for process in progress:
            waiting &= ~process.finished(positions, self._size)
        return [int(position) for position in positions[waiting]]

    def _finished_steps(self) -> list[Interval]:
        """Ranges of steps whose rows were all finished: they are not read. The last step of the run always is."""
        epochs, in_epoch = np.divmod([*self._unfinished, self._end], self._size)
        steps = epochs * self._plan.steps_per_epoch + in_epoch // self._batch_size
        if self._plan.num_steps is not None:
            steps = np.minimum(steps, self._plan.skips.whole_step(self._plan.num_steps - 1))
        steps = np.unique(steps)
        return list(zip([0, *(steps[:-1] + 1).tolist()], steps.tolist(), strict=True))

    def _finish(self, positions: Any) -> int:
        given = [positions.positions] if isinstance(positions, Leased) else positions
        listed = [np.ravel(each) for each in (given if isinstance(given, list | tuple) else [given])]
        finished = np.concatenate(listed or [np.arange(0)])
        known = finished.dtype.kind in "iu" and len({*finished.tolist()}) == len(finished)
        for position in finished.tolist():
            if not known or not self._unfinished.get(position):
                raise ArgumentError(
                    f"positions={shown(positions)}: {shown(position)} was not handed out by this lease, or is finished "
                    "already; pass leased.positions of what next(lease) returned, not its rows, and each once"
                )
        for position in finished.tolist():
            del self._unfinished[position]
        return len(finished)


def _ranges(saved: Any, end: int) -> tuple[Interval, ...]:
    """Ranges below `end`, ascending.

    Raises:
        ValueError: If they are not that.
    """
    ranges = tuple((start, stop) for start, stop in saved)
    if ranges != merge(ranges) or any(not 0 <= start < stop <= end for start, stop in ranges):
        raise ValueError
    return ranges


def _progress(plan: BatchPlan, order: OrderHash, start: Any) -> list[_Progress]:
    """What the processes that saved these states have finished, together.

    Raises:
        StateError: If a state belongs to other data, or they are not those of all processes.
    """
    states = start if isinstance(start, list | tuple) else [start]
    if not states:
        raise StateError(f"start={start!r}: pass the states of all processes of a lease, or 0 to begin")
    progress = [_progress_of(plan, order, state) for state in states]
    batch_size, held = progress[0].batch_size, merge(each for process in progress for each in process.held)
    if held != ((0, batch_size),) or any(process.batch_size != batch_size for process in progress):
        covered = ", ".join(f"{low} to {high - 1}" for low, high in held)
        raise StateError(
            f"start covers the positions {covered} of each batch of {batch_size}; pass a list of the states of all "
            "processes of that run"
        )
    return progress


def _progress_of(plan: BatchPlan, order: OrderHash, start: Any) -> _Progress:
    state = dict(start) if isinstance(start, Mapping) else start
    lease = plain(state.pop(LEASE, None)) if isinstance(state, dict) else None
    epoch, position = plan.position_of_step(step_of(plan, order, state))
    size, batch_size = plan.order.size, plan.schedule[0][1]
    if lease is None:
        return _Progress(batch_size, ((0, batch_size),), epoch * size + position)
    saved, last = int(plain(state["batch_size"])), LARGEST if plan.num_epochs is None else plan.num_epochs * size
    try:
        end, digest = lease["end"], lease["order"]
        held, unfinished = _ranges(lease["held"], saved), _ranges(lease["unfinished"], end)
        if type(end) is not int or not 0 <= end <= LARGEST:
            raise ValueError  # noqa: TRY301 - as for what can't be read at all
    except (KeyError, TypeError, ValueError):
        raise StateError(f"the state's {LEASE!r} is {shown(lease)}; pass a state of lease.get_state()") from None
    if end > last:
        raise StateError(
            f"the state's {LEASE!r} has handed out {end} rows, but the run has {last}; pass a larger num_epochs"
        )
    # Rows of a step that are sorted by lane, and weights that change by step, depend on the batch size.
    lanes = bool(plan.order.lane_assignments(0, 0, 1))
    if (lanes and saved != batch_size) or order(*divmod(end, size)) != digest:
        raise StateError(
            f"the state's 'batch_size' is {saved}, this loader's is {batch_size}, and rows have other positions with "
            f"it; pass batch_size={saved}, and the dataset of that run"
        )
    return _Progress(saved, held, end, unfinished)
