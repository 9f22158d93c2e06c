"""PrefetchScheduler: what is read and placed next, how far ahead, and what the consumer gets.

It looks at the steps to come. At their far end groups of steps are opened, as long as there is room; their pieces are
read by whoever asks for work, in any order; at their near end steps whose buffers are full are placed, in order, until
`prefetch` of them wait for the consumer. All threads do the same: get a task, do it without any lock, hand in the
result. The consumer helps with placing when it would have to wait; with no workers at all it does everything.
"""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import final

from jax.profiler import TraceAnnotation

from loadax.errors import ClosedError
from loadax.loader.assembly.buffer_layout import BatchBuffers
from loadax.loader.execution.monitor import RunMonitor
from loadax.loader.execution.producer import BatchProducer
from loadax.loader.options import LoaderOptions
from loadax.protocols import Tree

Task = Callable[[], None]

_GROUPS_IN_BUDGET = 16
# one to read, one that is full, for each worker: more than a core's caches hold makes reading slower
_GROUPS_PER_WORKER = 2
_MOST_GROUPS = 64  # for a consumer that trains in between, which may come back any time and wants a stock


class OverError(Exception):
    """There is no further step."""


@final
@dataclass(eq=False)
class StepGroup:
    """Steps that are read together.

    Args:
        producer: Reads and places them.
        first: First of the steps.
        buffers: Where their rows go.
        waiting: Pieces that no thread has taken up.
        unread: Number of pieces that are not in yet.
        placed: Number of steps that are placed.
        error: Why they can't be read.
    """

    producer: BatchProducer
    first: int
    buffers: BatchBuffers
    waiting: deque[tuple[int, int]]
    unread: int
    placed: int = 0
    error: BaseException | None = None


@final
class PrefetchScheduler:
    """The steps from `first` to the end of the producer, read ahead and handed out in order.

    Args:
        producer: Reads and places.
        first: First step.
        options: Options of the loader: `prefetch` placed batches are kept ahead of the consumer, and `prefetch_bytes`
            of steps may be read and not placed yet; one group is always allowed.
        monitor: Listens to what happens. None: one of its own.
    """

    def __init__(self, producer: BatchProducer, first: int, options: LoaderOptions, monitor: RunMonitor | None = None):
        # None once closed: a producer holds memory, and a copy of the data where processes read.
        self._producer: BatchProducer | None = producer
        self._workers = producer.executor.concurrency
        self._rows_per_step, self._bytes_per_step = producer.rows_per_step, producer.bytes_per_step
        self._next, self._stop = first, producer.end  # the step to open next, and the end
        self._options = options
        self._monitor = monitor or RunMonitor(producer, options, first)
        # Asked here, and told by the monitor alone.
        self._pace, self._autotuner = self._monitor.pace, self._monitor.autotuner
        self._piece_sizes = self._monitor.piece_sizes
        self._prepared = self._autotuner.size  # how many may be at work without further preparations
        self._groups: deque[StepGroup] = deque()
        self._ready: deque[tuple[int, Tree]] = deque()
        self._placing = False
        self._broken: BaseException | None = None  # what ended a worker
        self._looking = False  # one of the idle workers looks again by itself
        self._idle = 0  # workers that wait for something to do
        self._consumer_waiting = False  # the consumer wants a batch, and none is placed
        self._consumer_starving = False  # and it has nothing to place either
        self._closed = False
        self._work = threading.Condition(self._monitor.lock)  # there may be a task
        self._arrived = threading.Condition(self._monitor.lock)  # there may be a batch

    def next_task(self) -> Task | None:
        """The next task for a worker; waits for one. None: the scheduler is closed."""
        tries = 0
        with self._work:
            while not self._closed:
                if self._prepared < self._autotuner.size:
                    self._wake_worker()  # for what this one was woken for
                    return self._preparation()
                task = None if self._awake() > self._autotuner.size else self._choose_task()
                if task is not None:
                    if self._consumer_starving:
                        self._wake_worker()
                    return task
                self._wait_for_work(tries)
                tries += 1
            return None

    def _preparation(self) -> Task:
        """Has workers started, now that more of them are to be at work.

        Of all threads, the one that does this has no piece in hand that anybody waits for.
        """
        assert self._producer is not None
        producer, size = self._producer, self._autotuner.size
        self._prepared = size
        return lambda: producer.prepare(size)

    def next_batch(self) -> tuple[int, Tree]:
        """The next step and its batch, in order; waits for it.

        Raises:
            OverError: when all steps were handed out, to this thread or to others.
            Exception: what reading or placing its step raised; the scheduler is closed then.
        """
        began = perf_counter()
        starved, away = 0.0, began - self._monitor.left
        if self._workers:
            self._monitor.requested()
        while True:
            with self._work:
                if self._ready:
                    taken = self._ready.popleft()
                    self._consumer_waiting = False
                    if self._over():
                        self._arrived.notify_all()  # other threads may wait for what does not come
                    grown = self._monitor.taken(taken[0], began, away, starved)
                    if self._idle and (grown or (self._idle == self._workers and not self._pace.ahead)):
                        self._wake_worker()
                    return taken
                if self._closed:
                    raise ClosedError(
                        "this iterator is closed; make a new one with iter(loader), or loader.iterate(start=state)"
                    )
                error = self._broken or (self._groups[0].error if self._groups else None)
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
        """Waits until there may be something to hand out or to place; returns the seconds."""
        began = perf_counter()
        self._consumer_starving = self._pace.starving or self._idle == self._workers
        if self._consumer_starving:
            self._wake_worker()
        no_room = self._awake() < self._autotuner.size and self._full() and not self._unread_pieces()
        with TraceAnnotation("loadax.wait"):
            self._arrived.wait()
        self._consumer_starving = False
        waited = perf_counter() - began
        self._monitor.idle(waited, no_room)
        return waited

    def abort(self, error: BaseException) -> None:
        """Makes `next_batch` raise `error`: a thread that should have gone on could not."""
        with self._work:
            self._broken = error
            self._arrived.notify()

    def close(self) -> None:
        """Stops handing out tasks, and forgets all batches; what is under way ends by itself."""
        with self._work:
            self._monitor.close()
            self._closed = True
            self._groups, self._ready, self._producer = deque(), deque(), None
            self._work.notify_all()
            self._arrived.notify_all()

    # All that follows is called with the lock held, but for the tasks themselves.

    def _over(self) -> bool:
        """Whether all steps were handed out."""
        return self._stop is not None and self._next >= self._stop and not self._groups and not self._ready

    def _choose_task(self) -> Task | None:
        if self._may_place_ahead():
            return self._placement()
        if self._may_open() and not self._unread_pieces():
            self._groups.append(self._group(self._next, self._count()))
            self._next += self._groups[-1].buffers.count
        return next((self._reading(group) for group in self._groups if group.waiting), None)

    def _placement(self) -> Task | None:
        if not self._may_place():
            return None
        self._placing = True
        group = self._groups[0]
        return lambda: self._place(group)

    def _wait_for_work(self, tries: int) -> None:
        """Waits for something to do.

        One worker looks again by itself from time to time, to place ahead: being woken for that would cost the
        consumer, who is to train, more time than all the rest of `next_batch`.
        """
        self._idle += 1
        if not self._looking:
            self._looking = True
            self._work.wait(self._pace.backoff(tries))
            self._looking = False
        else:
            self._work.wait()
        self._idle -= 1

    def _wake_worker(self) -> None:
        """Wakes one more worker, when there is something for it to do.

        One that is awake goes on by itself as long as it finds something. So this is called when all are idle, and when
        the consumer has to wait: the more threads, the more they get in each other's way, and a consumer that is served
        needs no more.
        """
        if self._idle and self._awake() < self._autotuner.size and self._available():
            self._work.notify()

    def _awake(self) -> int:
        """How many workers are at work, or look for some."""
        return self._workers - self._idle

    def _available(self) -> bool:
        """Whether there is a task."""
        return self._may_place_ahead() or self._unread_pieces() or self._may_open()

    def _unread_pieces(self) -> bool:
        """Whether there are pieces that no thread has taken up."""
        return any(group.waiting for group in self._groups)

    def _may_place_ahead(self) -> bool:
        # A consumer that waits places for itself, without a hand-over: then workers had better read.
        return self._options.prefetch > 0 and not self._consumer_waiting and self._pace.ahead and self._may_place()

    def _may_place(self) -> bool:
        if self._placing or not self._groups or len(self._ready) >= max(1, self._options.prefetch):
            return False
        return self._groups[0].unread == 0 and self._groups[0].error is None

    def _reading(self, group: StepGroup) -> Task:
        low, high = group.waiting.popleft()
        return lambda: self._read(group, low, high)

    def _may_open(self) -> bool:
        if self._closed or (self._stop is not None and self._next >= self._stop):
            return False
        if not self._groups:
            return True
        enough = _MOST_GROUPS if self._pace.ahead else _GROUPS_PER_WORKER * self._autotuner.size
        return len(self._groups) < enough and not self._full()

    def _full(self) -> bool:
        """Whether `prefetch_bytes` have no room for a further group."""
        held = sum(group.buffers.count for group in self._groups) + self._count()
        return bool(self._groups) and held * self._bytes_per_step > self._options.prefetch_bytes

    def _count(self) -> int:
        """How many steps the next group has."""
        if self._workers == 0:
            return 1  # nothing is read ahead of a consumer that does the reading itself
        # A group takes a small part of the budget: with maps, what they read and make lives beside it for a while.
        budget = self._options.prefetch_bytes // _GROUPS_IN_BUDGET
        count = min(self._piece_sizes.steps, max(1, budget // max(1, self._bytes_per_step)))
        return count if self._stop is None else min(count, self._stop - self._next)

    def _group(self, first: int, count: int) -> StepGroup:
        assert self._producer is not None
        pieces = self._piece_sizes.pieces(count)
        return StepGroup(self._producer, first, self._producer.buffers(count), deque(pieces), len(pieces))

    def _read(self, group: StepGroup, low: int, high: int) -> None:
        try:
            timing = group.producer.fill(group.first, group.buffers, low, high)
        except BaseException as error:
            if self._workers == 0 and not isinstance(error, Exception):
                raise  # the caller's own thread was interrupted, which is no fault of this step
            self._failed(group, error)
            return
        with self._work:
            self._monitor.read(timing, group.first + low // max(1, self._rows_per_step), high - low)
            group.unread -= 1
            if group.unread == 0 and self._groups and group is self._groups[0]:
                self._arrived.notify()

    def _failed(self, group: StepGroup, error: BaseException) -> None:
        if isinstance(error, StopIteration | SystemExit | GeneratorExit):
            # As `loadax.transforms.blame` does where it knows the row: it would end the training loop as if the data
            # had ended.
            stopped, error = error, RuntimeError(f"a source or a map raised {error!r}")
            error.__cause__ = stopped
            for note in getattr(stopped, "__notes__", ()):
                error.add_note(note)
        with self._work:
            if self._closed or group.error is not None:
                return
            if group.buffers.count == 1:
                error.add_note(f"loadax: in step {group.first}")
                group.error, group.waiting = error, deque()
            else:
                # Read its steps one by one: those before the one that fails are good, and the error will name its step.
                index = self._groups.index(group)
                self._groups.remove(group)
                for offset in range(group.buffers.count):
                    self._groups.insert(index + offset, self._group(group.first + offset, 1))
            self._arrived.notify()

    def _place(self, group: StepGroup) -> None:
        step = group.first + group.placed
        try:
            batch, timing = group.producer.place(group.buffers, group.placed)
        except BaseException as error:
            with self._work:
                self._placing = False
                if isinstance(error, Exception):
                    error.add_note(f"loadax: placing step {step}")
                    group.error = error
                    self._arrived.notify()
            if isinstance(error, Exception):
                return
            raise
        with self._work:
            self._placing = False
            if self._closed:
                return
            self._ready.append((step, batch))
            self._monitor.placed(timing, step)
            group.placed += 1
            if group.placed == group.buffers.count:
                self._groups.popleft()
            self._arrived.notify()
