"""PrefetchScheduler: what is read and placed next, how far ahead, and what the consumer gets.

A window over the steps to come. At its far end runs of steps are opened, as long as there is room; their pieces are
read by whoever asks for work, in any order; at its near end steps whose memory is full are placed, in order, until
`depth` of them wait for the consumer. All threads do the same: claim a task, do it without any lock, hand in the
result. The consumer helps with placing when it would have to wait; with no workers at all it does everything.
"""

import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from time import perf_counter, process_time
from typing import final

from jax.profiler import TraceAnnotation

from loadax.errors import ClosedError
from loadax.loader.execution.autotune import WorkerAutotuner
from loadax.loader.execution.pacing import ConsumerPace
from loadax.loader.execution.piece_size import PieceSizes
from loadax.loader.execution.producer import BatchProducer, Memory
from loadax.loader.metrics.stats import UNMEASURED, Stats
from loadax.loader.metrics.timeline import Recorder, Timeline
from loadax.loader.options import LoaderOptions
from loadax.protocols import Tree

Task = Callable[[], None]

_RUNS_IN_BUDGET = 16
# one to read, one that is full, for each worker: more than a core's caches hold makes reading slower
_RUNS_PER_WORKER = 2
_MOST_RUNS = 64  # for a consumer that trains in between, which may come back any time and wants a stock


class OverError(Exception):
    """There is no further step."""


@final
@dataclass(eq=False)
class StepGroup:
    """Steps that are read together.

    Args:
        feed: reads and places them.
        memory: where they go.
        waiting: pieces that nobody has claimed.
        unread: pieces that are not in yet.
        placed: how many of its steps are placed.
        error: why it can't be read.
    """

    feed: BatchProducer
    memory: Memory
    waiting: deque[tuple[int, int]]
    unread: int
    placed: int = 0
    error: BaseException | None = None
    next_step: int = field(init=False)

    def __post_init__(self) -> None:
        self.next_step = self.memory.first


@final
class PrefetchScheduler:
    """The steps `first` to `stop` (None: for ever), read ahead and handed out in order.

    Args:
        feed: reads and places.
        first: the first step.
        stop: the step behind the last.
        options: Options of the loader: `prefetch` placed batches are kept ahead of the consumer, and `prefetch_bytes`
            of steps may be read and not placed yet; one run is always allowed.
        workers: how many threads will claim tasks; with 0, `take` does all the work.
        team: says how many of them are at work. None: all.
        recorder: what happens when; of the run so far, where it goes on with batches of another shape.
    """

    def __init__(
        self,
        feed: BatchProducer,
        first: int,
        stop: int | None,
        options: LoaderOptions,
        workers: int,
        team: WorkerAutotuner | None = None,
        recorder: Recorder | None = None,
    ):
        self.stats = Stats(
            probed=feed.probed, workers=workers, prefetch=options.prefetch, prefetch_bytes=options.prefetch_bytes
        )
        self.recorder = recorder or Recorder()
        self._began, self._cpu_began = perf_counter(), process_time()
        self._left = self._began  # when the consumer got its last batch
        self._final: Stats | None = None  # once it is closed
        # None once closed: a feed holds memory, and a copy of the data where processes read.
        self._feed: BatchProducer | None = feed
        self._rows_per_step, self._bytes_per_step = feed.rows_per_step, feed.bytes_per_step
        self._next, self._stop = first, stop  # the step to open next, and the end
        self._options, self._workers = options, workers
        self._team = team or WorkerAutotuner(workers, workers)
        self._prepared = self._team.size  # how many may be at work without further preparations
        self._sizes = PieceSizes(feed.rows_per_step, workers, feed.in_processes)
        self._runs: deque[StepGroup] = deque()
        self._ready: deque[tuple[int, Tree]] = deque()
        self._placing = False
        self._pace = ConsumerPace(feed.to_accelerator)
        self._broken: BaseException | None = None  # what ended a worker
        self._napping = False  # one of the idle workers looks again by itself
        self._idle = 0  # workers that wait for something to do
        self._hungry = False  # the consumer wants a batch, and none is placed
        self._starved = False  # and it has nothing to place either
        self._closed = False
        # Reentrant: a garbage collection under the lock may close this very window.
        lock = threading.RLock()
        self._work = threading.Condition(lock)  # there may be something to claim
        self._arrived = threading.Condition(lock)  # there may be something to take

    def claim(self) -> Task | None:
        """The next task for a worker; waits for one. None: the window is closed."""
        naps = 0
        with self._work:
            while not self._closed:
                if self._prepared < self._team.size:
                    self._wake_worker()  # for what this one was woken for
                    return self._preparation()
                task = None if self._awake() > self._team.size else self._next_task()
                if task is not None:
                    if self._starved:
                        self._wake_worker()
                    return task
                self._rest(naps)
                naps += 1
            return None

    def _preparation(self) -> Task:
        """Makes ready for a team that has grown.

        Of all workers, the one that does this has no piece in hand that anybody waits for.
        """
        assert self._feed is not None
        feed, size = self._feed, self._team.size
        self._prepared = size
        return lambda: feed.prepare(size)

    def take(self) -> tuple[int, Tree]:
        """The next step and its batch, in order; waits for it.

        Raises:
            OverError: when all steps were handed out, to this thread or to others.
            Exception: what reading or placing its step raised; the window is closed then.
        """
        began = perf_counter()
        starved, away = 0.0, began - self._left
        self._pace.came()
        while True:
            with self._work:
                if self._ready:
                    taken = self._ready.popleft()
                    self._count_taken(taken[0], began)
                    self._hungry = False
                    if self._over():
                        self._arrived.notify_all()  # other threads may wait for what does not come
                    self._pace.went(starved)
                    grown = self._team.served(self._left, self._pace.starving, away)
                    if grown or (self._idle == self._workers and not self._pace.ahead):
                        self._wake_worker()
                    return taken
                if self._closed:
                    raise ClosedError(
                        "this iterator is closed; make a new one with iter(loader), or loader.iterate(start=state)"
                    )
                error = self._broken or (self._runs[0].error if self._runs else None)
                if error is not None:
                    raise error
                if self._over():
                    raise OverError
                self._hungry = True
                task = self._placement()
                if task is None and self._workers == 0:
                    task = self._next_task()
                if task is None:
                    starved += self._wait_for_rows()
                    continue
            task()

    def _wait_for_rows(self) -> float:
        """Waits until there may be something to take or to place; returns the seconds."""
        began = perf_counter()
        self._starved = self._pace.starving or self._idle == self._workers
        if self._starved:
            self._wake_worker()
        no_room = self._awake() < self._team.size and self._full() and not any(run.waiting for run in self._runs)
        with TraceAnnotation("loadax.wait"):
            self._arrived.wait()
        self._starved = False
        waited = perf_counter() - began
        self.stats.no_room += waited * no_room
        return waited

    def _count_taken(self, step: int, began: float) -> None:
        now = perf_counter()
        self.stats.took(step, now - began, began - self._left)
        self.recorder.taken(began, now - began, step, len(self._ready))
        self._left = now
        if self.stats.steps == UNMEASURED:
            self.stats.early = self.snapshot()

    def count_from_here(self, recorder: Recorder) -> None:
        """Begins the statistics anew: what was done so far was done before anybody waited for it."""
        with self._work:
            now = self.stats
            self.stats = Stats(
                probed=now.probed, workers=now.workers, prefetch=now.prefetch, prefetch_bytes=now.prefetch_bytes
            )
            self.recorder = recorder
            self._began, self._cpu_began = perf_counter(), process_time()
            self._left = self._began

    def snapshot(self) -> Stats:
        """A copy of the statistics, as of now, or as of when it was closed."""
        with self._work:
            if self._final is not None:
                return replace(self._final)
            elapsed, cpu = perf_counter() - self._began, process_time() - self._cpu_began
            active = self._left - self._began
            return replace(
                self.stats,
                ready=len(self._ready),
                elapsed=elapsed,
                active=active,
                cpu=cpu,
                at_work=self._team.size,
                tried=self._team.tried,
                load=os.getloadavg()[0],
            )

    def timeline(self) -> Timeline:
        """What happened when, as far as it is kept."""
        with self._work:
            return self.recorder.timeline()

    def abort(self, error: BaseException) -> None:
        """Makes `take` raise `error`: a thread that should have gone on could not."""
        with self._work:
            self._broken = error
            self._arrived.notify()

    def close(self) -> None:
        """Stops handing out tasks, and forgets all batches; what is under way ends by itself."""
        with self._work:
            self._final = replace(self.snapshot(), ready=0)
            self._closed = True
            self._runs, self._ready, self._feed = deque(), deque(), None
            self._work.notify_all()
            self._arrived.notify_all()

    # All that follows is called with the lock held, but for the tasks themselves.

    def _over(self) -> bool:
        """Whether all steps were handed out."""
        return self._stop is not None and self._next >= self._stop and not self._runs and not self._ready

    def _next_task(self) -> Task | None:
        if self._may_place_ahead():
            return self._placement()
        if self._may_open() and not any(run.waiting for run in self._runs):
            self._open()
        return next((self._reading(run) for run in self._runs if run.waiting), None)

    def _placement(self) -> Task | None:
        if not self._may_place():
            return None
        self._placing = True
        run = self._runs[0]
        return lambda: self._place(run)

    def _rest(self, naps: int) -> None:
        """Waits for something to do.

        One worker looks again by itself from time to time, to place ahead: being woken for that would cost the
        consumer, who is to train, more time than all the rest of `take`.
        """
        self._idle += 1
        if not self._napping:
            self._napping = True
            self._work.wait(self._pace.nap(naps))
            self._napping = False
        else:
            self._work.wait()
        self._idle -= 1

    def _wake_worker(self) -> None:
        """Wakes one more worker, when there is something for it to do.

        One that is awake goes on by itself as long as it finds something. So this is called when all are idle, and when
        the consumer has to wait: the more threads, the more they get in each other's way, and a consumer that is served
        needs no more.
        """
        if self._idle and self._awake() < self._team.size and self._available():
            self._work.notify()

    def _awake(self) -> int:
        """How many workers are at work, or look for some."""
        return self._workers - self._idle

    def _available(self) -> bool:
        """Whether there is a task to claim."""
        return self._may_place_ahead() or any(run.waiting for run in self._runs) or self._may_open()

    def _may_place_ahead(self) -> bool:
        # A consumer that waits places for itself, without a hand-over: then workers had better read.
        return self._options.prefetch > 0 and not self._hungry and self._pace.ahead and self._may_place()

    def _may_place(self) -> bool:
        if self._placing or not self._runs or len(self._ready) >= max(1, self._options.prefetch):
            return False
        return self._runs[0].unread == 0 and self._runs[0].error is None

    def _reading(self, run: StepGroup) -> Task:
        low, high = run.waiting.popleft()
        return lambda: self._read(run, low, high)

    def _may_open(self) -> bool:
        if self._closed or (self._stop is not None and self._next >= self._stop):
            return False
        if not self._runs:
            return True
        enough = _MOST_RUNS if self._pace.ahead else _RUNS_PER_WORKER * self._team.size
        return len(self._runs) < enough and not self._full()

    def _full(self) -> bool:
        """Whether the budget has no room for a further run."""
        held = sum(run.memory.count for run in self._runs) + self._count()
        return bool(self._runs) and held * self._bytes_per_step > self._options.prefetch_bytes

    def _count(self) -> int:
        """How many steps the next run has."""
        # A run takes a small part of the budget: with maps, what they read and make lives beside it for a while.
        count = min(
            self._sizes.steps, max(1, self._options.prefetch_bytes // _RUNS_IN_BUDGET // max(1, self._bytes_per_step))
        )
        if self._workers == 0:
            count = 1  # nothing is read ahead of a consumer that does the reading itself
        return count if self._stop is None else min(count, self._stop - self._next)

    def _open(self) -> None:
        run = self._run(self._next, self._count())
        self._runs.append(run)
        self._next += run.memory.count

    def _run(self, first: int, count: int) -> StepGroup:
        assert self._feed is not None
        slices = self._sizes.slices(count)
        return StepGroup(self._feed, self._feed.memory(first, count), deque(slices), len(slices))

    def _read(self, run: StepGroup, low: int, high: int) -> None:
        try:
            timing = run.feed.fill(run.memory, low, high)
        except BaseException as error:
            if self._workers == 0 and not isinstance(error, Exception):
                raise  # the caller's own thread was interrupted, which is no fault of this step
            self._failed(run, error)
            return
        with self._work:
            self.stats.add(timing)
            self.recorder.piece(timing, perf_counter(), run.memory.first + low // max(1, self._rows_per_step))
            self._sizes.measured(high - low, timing)
            run.unread -= 1
            if run.unread == 0 and self._runs and run is self._runs[0]:
                self._arrived.notify()

    def _failed(self, run: StepGroup, error: BaseException) -> None:
        if isinstance(error, StopIteration | SystemExit | GeneratorExit):
            # As `loadax.transforms.blame` does where it knows the row: it would end the training loop as if the data
            # had ended.
            stopped, error = error, RuntimeError(f"a source or a map raised {error!r}")
            error.__cause__ = stopped
            for note in getattr(stopped, "__notes__", ()):
                error.add_note(note)
        with self._work:
            if self._closed or run.error is not None:
                return
            if run.memory.count == 1:
                error.add_note(f"loadax: in step {run.memory.first}")
                run.error, run.waiting = error, deque()
            else:
                # Read its steps one by one: those before the one that fails are good, and the error will name its step.
                where = self._runs.index(run)
                self._runs.remove(run)
                steps = range(run.memory.first, run.memory.first + run.memory.count)
                for offset, step in enumerate(steps):
                    self._runs.insert(where + offset, self._run(step, 1))
            self._arrived.notify()

    def _place(self, run: StepGroup) -> None:
        step = run.next_step
        try:
            batch, timing = run.feed.place(run.memory, step)
        except BaseException as error:
            with self._work:
                self._placing = False
                if isinstance(error, Exception):
                    error.add_note(f"loadax: placing step {step}")
                    run.error = error
                    self._arrived.notify()
            if isinstance(error, Exception):
                return
            raise
        with self._work:
            self._placing = False
            if self._closed:
                return
            self.stats.place += timing.place
            self.recorder.placed(timing, step)
            self._pace.placed(timing.place)
            self._ready.append((step, batch))
            run.next_step += 1
            run.placed += 1
            if run.placed == run.memory.count:
                self._runs.popleft()
            self._arrived.notify()
