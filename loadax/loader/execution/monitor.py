"""RunMonitor: hears of every event of a scheduler, for statistics, timeline, pacing, piece sizes and autotuning."""

import os
import threading
from dataclasses import replace
from time import perf_counter, process_time
from typing import final

from loadax.loader.execution.autotune import WorkerAutotuner
from loadax.loader.execution.pacing import ConsumerPace
from loadax.loader.execution.piece_size import PieceSizes
from loadax.loader.execution.producer import BatchProducer
from loadax.loader.metrics.stats import UNMEASURED, Stats, Timing
from loadax.loader.metrics.timeline import Recorder, Timeline
from loadax.loader.options import LoaderOptions


@final
class RunMonitor:
    """Listens to one scheduler, which makes one call an event and holds `lock` meanwhile.

    What it measures decides only when work is done and by how many, never what a batch is. It keeps no batch alive.

    Args:
        producer: Producer of the scheduler's batches.
        options: Options of the loader.
        first: First step of the scheduler.
        autotuner: Says how many threads are at work. None: all.
        earlier: Monitor of the steps before, whose statistics and timeline go on. None: they begin here.
    """

    def __init__(
        self,
        producer: BatchProducer,
        options: LoaderOptions,
        first: int,
        autotuner: WorkerAutotuner | None = None,
        earlier: "RunMonitor | None" = None,
    ):
        executor = producer.executor
        # Reentrant: a garbage collection under the lock may close this very scheduler. One for each scheduler: a Ctrl-C
        # may leave it held.
        self.lock = threading.RLock()
        self.autotuner = autotuner or WorkerAutotuner(executor.concurrency, executor.concurrency)
        self.pace = ConsumerPace(producer.to_accelerator)
        self.piece_sizes = PieceSizes(producer.rows_per_step, executor.concurrency, executor.isolated)
        self._concurrency = executor.concurrency
        self._first = first
        self._earlier = Stats() if earlier is None else earlier.stats()
        self._recorder: Recorder = Recorder() if earlier is None else earlier._recorder  # noqa: SLF001 - of this very class
        self._blank = Stats(
            probed=producer.probed,
            workers=executor.workers,
            worker_type=executor.worker_type,
            prefetch=options.prefetch,
            prefetch_bytes=options.prefetch_bytes,
        )
        self._final: Stats | None = None  # once the scheduler is closed
        self._ready = 0
        self._begin()

    def _begin(self) -> None:
        self._stats = replace(self._blank)
        self._began, self._cpu_began = perf_counter(), process_time()
        self.left = self._began
        """When the consumer got its last batch."""

    def restart(self) -> None:
        """Begins statistics and timeline anew: what was done so far was done before anybody waited for it."""
        with self.lock:
            self._earlier, self._recorder = Stats(), Recorder()
            self._begin()

    def requested(self) -> None:
        """The consumer asks for a batch that others read."""
        self.pace.requested()

    def read(self, timing: Timing, step: int, rows: int) -> None:
        """A piece of so many rows was read, padding included, of which the first is of `step`."""
        self._stats.add(timing)
        self._recorder.piece(timing, perf_counter(), step)
        if self._concurrency:
            self.piece_sizes.measured(rows, timing)

    def placed(self, timing: Timing, step: int) -> None:
        """The batch of a step was placed."""
        self._ready += 1
        self._stats.place += timing.place
        self._recorder.placed(timing, step)
        if self._concurrency:
            self.pace.placed(timing.place)

    def taken(self, step: int, began: float, away: float, starved: float) -> bool:
        """The consumer has got the batch of a step. Returns whether more threads are to work from now on.

        Args:
            step: Number of the step.
            began: When it asked, in seconds.
            away: Seconds that it had stayed away before.
            starved: Seconds that it waited for rows.
        """
        now = perf_counter()
        self._ready -= 1
        self._stats.took(step, now - began, away)
        self._recorder.taken(began, now - began, step, self._ready)
        self.left = now
        if self._stats.steps == UNMEASURED:
            self._stats.early = self._snapshot()
        if not self._concurrency:
            return False
        self.pace.delivered(starved)
        return self.autotuner.on_batch(now, self.pace.starving, away)

    def idle(self, seconds: float, no_room: bool) -> None:
        """The consumer waited for rows; `no_room`: while a thread was idle because `prefetch_bytes` were used up."""
        self._stats.no_room += seconds * no_room

    def stats(self) -> Stats:
        """Statistics as of now, or as of when the scheduler was closed."""
        with self.lock:
            return self._earlier.plus(self._final or self._snapshot())

    @property
    def step(self) -> int:
        """Number of the next step."""
        with self.lock:
            return self._first + self._stats.steps

    def timeline(self) -> Timeline:
        """Events as far as they are kept."""
        with self.lock:
            return self._recorder.timeline()

    def close(self) -> None:
        """Counts no further. Idempotent."""
        with self.lock:
            self._ready = 0
            self._final = self._final or self._snapshot()

    def _snapshot(self) -> Stats:
        return replace(
            self._stats,
            ready=self._ready,
            elapsed=perf_counter() - self._began,
            active=self.left - self._began,
            cpu=process_time() - self._cpu_began,
            at_work=self._workers(self.autotuner.size),
            tried=self._workers(self.autotuner.tried),
            load=os.getloadavg()[0],
        )

    def _workers(self, threads: int) -> int:
        """How many workers so many threads keep busy: a process has several, so that it need not wait for a piece."""
        return -(-threads * self._blank.workers // max(1, self._concurrency))
