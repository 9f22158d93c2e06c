"""PrefetchScheduler: decides what to read and place next, within the prefetch limits, and delivers batches in order.

Groups of steps are opened ahead of the consumer while memory allows. Workers read the pieces of open groups in any
order. Steps whose buffers are full are placed in order, until `prefetch` batches are ready. All worker threads run the
same loop: get a task, run it without any lock, report the result. A consumer that would wait helps with placing; if
there are no workers, it does everything.
"""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from threading import get_ident
from time import perf_counter
from typing import Any, final

import numpy as np
from jax.profiler import TraceAnnotation

from loadax.errors import ClosedError
from loadax.loader.assembly.buffer_layout import BatchBuffers
from loadax.loader.execution.monitor import RunMonitor
from loadax.loader.execution.producer import BatchProducer, StepProducer
from loadax.loader.execution.waiting import Activity, waiting_text
from loadax.loader.options import LoaderOptions
from loadax.loader.slots import SkippedError
from loadax.protocols import Integers, Tree

Task = Callable[[], None]

_GROUPS_IN_BUDGET = 16
# which have work for several workers elsewhere, each with memory of its own for maps
_PLACED_GROUPS_IN_BUDGET = 4
# One group to read and one that is full per worker. More would not fit into the CPU caches, and slow reading down.
_GROUPS_PER_WORKER = 2
_MOST_GROUPS = 64  # for a consumer that trains in between and may return at any time


class OverError(Exception):
    """All steps were handed out."""


@final
@dataclass(eq=False)
class StepGroup:
    """Steps that are read together.

    Args:
        producer: Producer of the batches.
        first: First step.
        buffers: Buffers of all steps.
        waiting: Pieces that no thread has taken: first row in each step, and row after the last one.
        unread: Number of pieces that are not yet read, by step.
        placed: Number of placed steps.
        stop: Number of steps that this group is for: fewer than in the buffers after an error.
        error: Error of reading or placing.
    """

    producer: BatchProducer
    first: int
    buffers: BatchBuffers
    waiting: deque[tuple[int, int]]
    unread: Integers
    stop: int
    placed: int = 0
    error: BaseException | None = None

    def is_next_full(self) -> bool:
        """Whether the next step to place is read."""
        return not self.unread[self.placed]


@final
class PrefetchScheduler:
    """Reads ahead the steps from `first` to the end of the producer and delivers them in order.

    Args:
        producer: Producer of the batches.
        first: First step.
        options: Options of the loader: `prefetch` limits placed batches, `prefetch_bytes` the buffers that are not yet
            placed. One group is always allowed.
        monitor: Listener to all events. None: a new one.
    """

    def __init__(
        self,
        producer: StepProducer,
        first: int,
        options: LoaderOptions,
        monitor: RunMonitor | None = None,
    ):
        # None once this is closed: a producer references buffers and, with worker processes, a copy of the data.
        self._producer: StepProducer | None = producer
        self._workers = producer.executor.capacity.concurrency
        self._bytes_per_step = producer.bytes_per_step
        # next step to open, and the end
        self._next = first
        self._stop = producer.end
        self._options = options
        # Bytes of buffers that are not yet placed; less than `prefetch_bytes` while another run uses a part of them.
        self.budget = options.prefetch_bytes
        self._monitor = monitor or RunMonitor(producer, options, first)
        # Read here; only the monitor updates them.
        self._pace = self._monitor.pace
        self._autotuner = self._monitor.autotuner
        self._piece_sizes = self._monitor.piece_sizes
        # Number of threads whose workers are started: a new executor starts its first ones by itself.
        self._prepared = min(self._autotuner.size, producer.executor.capacity.first)
        self._groups: deque[StepGroup] = deque()
        self._ready: deque[tuple[int, Tree, Tree]] = deque()
        self._placing = False
        self._broken: BaseException | None = None  # error that ended a worker thread
        self._polling = False  # one idle worker polls
        self._idle = 0  # number of workers that wait for a task
        # the consumer asked for a batch, and none is placed
        self._consumer_waiting = False
        self._consumer_starving = False  # and none can be placed either
        # By thread: since when it waits for a batch, and what it does. Read without the lock, which a Ctrl-C may have
        # left held.
        self._waiting: dict[int, float] = {}
        self._activities: dict[int, Activity] = {}
        # Entered as a lock, and not as a condition: a Ctrl-C inside `Condition.__enter__` would leave it held.
        self._lock = self._monitor.lock
        # notified if there may be a task
        self._work = threading.Condition(self._lock)
        # notified if there may be a batch
        self._arrived = threading.Condition(self._lock)

    def next_task(self) -> Task | None:
        """Waits for the next task of a worker. None: the scheduler is closed."""
        tries = 0
        with self._lock:
            while (producer := self._producer) is not None:
                if self._prepared < self._autotuner.size:
                    # another worker takes the task that this one was woken for
                    self._wake_worker()
                    self._prepared = self._autotuner.size
                    activity = Activity(
                        "starts workers",
                        perf_counter(),
                        producer.of(max(0, self._next - 1)),
                        self._next,
                    )
                    return partial(
                        self._run, activity, producer.prepare, self._prepared
                    )
                if self._active_workers() > self._autotuner.size:
                    task = None
                else:
                    task = self._choose_task()
                if task is not None:
                    if self._consumer_starving:
                        self._wake_worker()
                    return task
                self._wait_for_work(tries)
                tries += 1
            return None

    def next_batch(self) -> tuple[int, Tree, Tree]:
        """Waits for the next step, in order: its number, its batch, and its leaves on the host.

        Raises:
            OverError: If all steps were handed out, to this thread or others.
            Exception: Whatever reading or placing the step raised.
        """
        began = perf_counter()
        thread = get_ident()
        self._waiting[thread] = began
        try:
            return self._next_batch(began)
        except RuntimeError as error:
            interrupt = _interrupt_behind(error)
            # What a source or a map raised is its own error, whatever it had caught before.
            if (
                interrupt is None
                or error is self._broken
                or any(error is group.error for group in self._groups.copy())
            ):
                raise
            raise interrupt from None
        finally:
            self._waiting.pop(thread, None)

    def _next_batch(self, began: float) -> tuple[int, Tree, Tree]:
        starved = 0.0
        away = began - self._monitor.left
        with self._lock:
            self._pace.requested()
        while True:
            with self._lock:
                if self._ready:
                    taken = self._ready.popleft()
                    self._consumer_waiting = False
                    if self._over():
                        # other threads may wait for a batch that does not exist
                        self._arrived.notify_all()
                    grown = self._monitor.taken(taken[0], began, away, starved)
                    # A group that is gone leaves room for another one.
                    left = not self._groups or not self._groups[0].placed
                    if self._idle and (
                        grown
                        or (
                            left
                            and self._idle == self._workers
                            and not self._pace.ahead
                        )
                    ):
                        self._wake_worker()
                    return taken
                if self._producer is None:
                    raise _closed()
                # First what this process itself could not read: another host may have ended it for the same reason.
                error = (
                    self._groups[0].error if self._groups else None
                ) or self._broken
                if error is not None:
                    raise error
                if self._over():
                    raise OverError
                self._consumer_waiting = True
                task = self._placement()
                if task is None and self._workers == 0:
                    task = self._choose_task()
                if task is None:
                    starved += self._wait_for_rows()
                    continue
            task()

    def _wait_for_rows(self) -> float:
        """Waits until there may be a batch to hand out or to place; returns the seconds."""
        began = perf_counter()
        self._consumer_starving = self._pace.starving or self._idle == self._workers
        if self._consumer_starving:
            self._wake_worker()
        no_room = (
            self._active_workers() < self._autotuner.size
            and self._full()
            and not self._unread_pieces()
        )
        with TraceAnnotation("loadax.wait"):
            self._arrived.wait()
        self._consumer_starving = False
        waited = perf_counter() - began
        self._monitor.idle(waited, no_room)
        return waited

    def abort(self, error: BaseException) -> None:
        """Makes `next_batch` raise `error`, which ended a worker thread."""
        with self._lock:
            self._broken = error
            self._arrived.notify_all()

    def check(self) -> None:
        """Raises the error that `next_batch` would raise, even if a batch is ready: of `abort`, or of a closed run."""
        if self._broken is not None:
            raise self._broken
        if self._producer is None:
            raise _closed()

    def close(self) -> None:
        """Stops handing out tasks and drops all batches. Running tasks are not interrupted."""
        with self._lock:
            self._monitor.close()
            if self._producer is not None:
                self._producer.close()
            self._groups = deque()
            self._ready = deque()
            self._producer = None
            self._work.notify_all()
            self._arrived.notify_all()

    def bytes_of(self, steps: int) -> int:
        """Bytes of the buffers of so many steps, at most those that it may hold."""
        return min(steps * self._bytes_per_step, self._options.prefetch_bytes)

    def waiting_since(self) -> float | None:
        """Time since which a consumer waits and no batch was handed out; None: none waits."""
        waiting = list(self._waiting.copy().values())
        if waiting:
            return max(min(waiting), self._monitor.left)
        return None

    def waiting_for(self) -> tuple[int, str]:
        """The next step to hand out, and what is done for it, as text with stacks."""
        step = self._monitor.step
        return step, waiting_text(step, self._activities.copy(), perf_counter())

    # The methods below are called with the lock held, except for the tasks themselves.

    def _over(self) -> bool:
        return (
            self._stop is not None
            and self._next >= self._stop
            and not self._groups
            and not self._ready
        )

    def _choose_task(self) -> Task | None:
        if self._may_place_ahead():
            return self._placement()
        if self._may_open() and not self._unread_pieces():
            self._groups.append(self._group(self._next, self._count()))
            self._next += self._groups[-1].buffers.count
        group = next((group for group in self._groups if group.waiting), None)
        if group is None:
            return None
        low, high = group.waiting.popleft()
        activity = Activity(
            "reads",
            perf_counter(),
            group.producer,
            group.first,
            group.buffers.count,
            low,
            high,
        )
        return partial(self._run, activity, self._read, group, low, high)

    def _placement(self) -> Task | None:
        if not self._may_place():
            return None
        self._placing = True
        group = self._groups[0]
        activity = Activity(
            "places", perf_counter(), group.producer, group.first + group.placed
        )
        return partial(self._run, activity, self._place, group)

    def _wait_for_work(self, tries: int) -> None:
        """Waits for a task.

        One idle worker polls, to place ahead: waking it would cost the consumer more time than the rest of
        `next_batch`.
        """
        self._idle += 1
        polls = not self._polling
        self._polling = True
        self._work.wait(self._pace.backoff(tries) if polls else None)
        self._polling = self._polling and not polls
        self._idle -= 1

    def _wake_worker(self) -> None:
        """Wakes one more worker if there is a task for it.

        An active worker continues as long as there are tasks. So this is called if all are idle, or if the consumer
        waits: more threads compete with each other, and a consumer that does not wait needs no more.
        """
        wanted = self._idle and self._active_workers() < self._autotuner.size
        if wanted and (
            self._may_place_ahead() or self._unread_pieces() or self._may_open()
        ):
            self._work.notify()

    def _active_workers(self) -> int:
        """Number of workers that run a task or look for one."""
        return self._workers - self._idle

    def _unread_pieces(self) -> bool:
        """Whether there are pieces that no thread has taken."""
        return any(group.waiting for group in self._groups)

    def _may_place_ahead(self) -> bool:
        # A waiting consumer places batches itself, without a hand-over, so workers should read.
        return (
            self._options.prefetch > 0
            and not self._consumer_waiting
            and self._pace.ahead
            and self._may_place()
        )

    def _may_place(self) -> bool:
        if (
            self._placing
            or not self._groups
            or len(self._ready) >= max(1, self._options.prefetch)
        ):
            return False
        return self._groups[0].is_next_full() and self._groups[0].error is None

    def _may_open(self) -> bool:
        if self._producer is None or (
            self._stop is not None and self._next >= self._stop
        ):
            return False
        if not self._groups:
            return True
        if self._pace.ahead:
            enough = _MOST_GROUPS
        else:
            enough = _GROUPS_PER_WORKER * self._autotuner.size
        if places := self._producer.places():  # each group has work for so many
            enough = 2 + enough // places
        return len(self._groups) < enough and not self._full()

    def _full(self) -> bool:
        """Whether another group would exceed `prefetch_bytes`."""
        open_bytes = sum(
            group.buffers.count * group.producer.bytes_per_step
            for group in self._groups
        )
        return (
            bool(self._groups)
            and open_bytes + self._count() * self._bytes_per_step > self.budget
        )

    def _count(self) -> int:
        """Number of steps of the next group."""
        assert self._producer is not None
        # A group takes a small part of the budget, because maps need memory for their inputs and outputs too.
        if self._producer.places():
            groups = _PLACED_GROUPS_IN_BUDGET
        else:
            groups = _GROUPS_IN_BUDGET
        budget = self._options.prefetch_bytes // groups
        count = min(
            self._piece_sizes.steps,
            self._producer.most_steps,
            max(1, budget // max(1, self._bytes_per_step)),
        )
        if self._stop is None:
            return count
        return min(count, self._stop - self._next)

    def _group(self, first: int, count: int) -> StepGroup:
        assert self._producer is not None
        producer = self._producer.of(first)
        pieces = self._piece_sizes.pieces(
            count, self._autotuner.size, producer.rows_per_step
        )
        return StepGroup(
            producer,
            first,
            producer.buffers(count),
            deque(pieces),
            np.full(count, len(pieces)),
            count,
        )

    def _run(self, activity: Activity, work: Callable[..., None], *args: Any) -> None:
        try:
            self._activities[get_ident()] = activity
            work(*args)
        finally:
            self._activities.pop(get_ident(), None)

    def _read(self, group: StepGroup, low: int, high: int) -> None:
        full = 0

        def filled(steps: int) -> None:
            nonlocal full
            with self._lock:
                group.unread[full:steps] -= 1
                full = steps
                if self._groups and group is self._groups[0] and group.is_next_full():
                    self._arrived.notify()

        try:
            timing = group.producer.fill(
                group.first, group.buffers, low, high, filled
            )
        except SkippedError:
            return
        except BaseException as error:
            if self._workers == 0 and not isinstance(error, Exception):
                # the caller's thread was interrupted, which is not an error of this step
                raise
            self._failed(group, error)
            return
        with self._lock:
            self._monitor.read(timing, group.first, group.buffers.count, low, high)
            filled(group.buffers.count)

    def _failed(self, group: StepGroup, error: BaseException) -> None:
        if isinstance(error, StopIteration | SystemExit | GeneratorExit):
            # These would end the training loop as if the data had ended. `loadax.transforms.blame` converts them too.
            stopped = error
            error = RuntimeError(f"a source or a map raised {error!r}")
            error.__cause__ = stopped
            for note in getattr(stopped, "__notes__", ()):
                error.add_note(note)
        with self._lock:
            if (
                self._producer is None
                or group.error is not None
                or group.stop < group.buffers.count
            ):
                return
            if group.buffers.count == 1:
                error.add_note(f"loadax: in step {group.first}")
                group.error = error
                group.waiting = deque()
            elif not group.producer.repeats:
                self._failed_at(group, int(np.flatnonzero(group.unread)[0]), error)
            else:
                # Read the steps one by one: those before the failing one succeed, and the error names its step.
                index = self._groups.index(group)
                placed = group.placed
                group.stop = placed + (self._placing and index == 0)
                group.waiting = deque()
                if group.stop == placed:
                    self._groups.remove(group)
                for offset in range(group.stop, group.buffers.count):
                    self._groups.insert(
                        index + offset - placed, self._group(group.first + offset, 1)
                    )
            self._arrived.notify()

    def _failed_at(self, group: StepGroup, index: int, error: BaseException) -> None:
        """Ends the run at a step of a group, after the steps of the group that are full."""
        step = group.first + index
        error.add_note(f"loadax: in step {step}")
        failed = group
        if index > group.placed:
            group.stop = index
            failed = self._group(step, 1)
            self._groups.insert(self._groups.index(group) + 1, failed)
        failed.error = error
        failed.waiting = deque()

    def _place(self, group: StepGroup) -> None:
        step = group.first + group.placed
        try:
            batch, host, timing = group.producer.place(group.buffers, group.placed)
        except BaseException as error:
            with self._lock:
                self._placing = False
                if not isinstance(error, Exception):
                    raise
                error.add_note(f"loadax: placing step {step}")
                group.error = error
                self._arrived.notify()
            return
        with self._lock:
            self._placing = False
            if self._producer is None:
                return
            self._ready.append((step, batch, host))
            self._monitor.placed(timing, step)
            group.placed += 1
            if group.placed == group.stop:
                self._groups.popleft()
            self._arrived.notify()


def _interrupt_behind(error: BaseException) -> BaseException | None:
    """The Ctrl-C that made a wait fail: within `Condition.wait`, it leaves the `with` without the lock to release."""
    while (context := error.__context__) is not None:
        if not isinstance(context, Exception):
            return context
        error = context
    return None


def _closed() -> ClosedError:
    return ClosedError(
        "this iterator is closed; make a new one with iter(loader), or "
        "loader.iterate(start=state)"
    )
