"""RunMonitor: passes the events of a scheduler to statistics, timeline, pacing, piece sizes and autotuning."""

import os
import sys
import threading
from copy import copy
from dataclasses import replace
from time import perf_counter, process_time
from typing import final

from loadax.loader.execution.autotune import WorkerAutotuner
from loadax.loader.execution.pacing import ConsumerPace
from loadax.loader.execution.piece_size import PieceSizes
from loadax.loader.execution.producer import StepProducer
from loadax.loader.metrics.stats import UNMEASURED, Stats, Timing
from loadax.loader.metrics.timeline import Piece, Recorder, Recording, Timeline
from loadax.loader.options import LoaderOptions


@final
class RunMonitor:
    """Listens to one scheduler, which makes one call per event while holding `lock`.

    Measurements affect when work is done and by how many workers, never the content of a batch. References no batch.

    Args:
        producer: Producer of the scheduler's batches.
        options: Options of the loader.
        first: First step of the scheduler.
        autotuner: Autotuner of the number of active threads. None: all are active.
        earlier: Monitor of the previous steps, whose statistics and timeline continue. None: they start here.
    """

    def __init__(
        self,
        producer: StepProducer,
        options: LoaderOptions,
        first: int,
        autotuner: WorkerAutotuner | None = None,
        earlier: "RunMonitor | None" = None,
    ):
        capacity = producer.executor.capacity
        # Reentrant: garbage collection under the lock may close this scheduler. One lock per scheduler: a Ctrl-C may
        # leave it held.
        self.lock = threading.RLock()
        self.autotuner = autotuner or WorkerAutotuner(
            capacity.concurrency, capacity.concurrency
        )
        self.pace = ConsumerPace(producer.to_accelerator)
        self.piece_sizes = PieceSizes(
            producer.rows_per_step,
            capacity.concurrency,
            capacity.piece_seconds,
            producer.places,
        )
        self._batch_rows = producer.batch_rows
        self._concurrency = capacity.concurrency
        self._first = first
        if earlier is None:
            self._earlier = Stats()
        else:
            self._earlier = earlier.stats()
        self._recorder: Recorder = (
            Recorder() if earlier is None else earlier._recorder  # noqa: SLF001 - of this class
        )
        self._blank = Stats(
            probed=producer.probed,
            workers=capacity.workers,
            worker_type=capacity.worker_type,
            prefetch=options.prefetch,
            prefetch_bytes=options.prefetch_bytes,
        )
        self._final: Stats | None = None  # set when the scheduler is closed
        self._ready = 0
        self._begin()

    def _begin(self) -> None:
        self._stats = copy(self._blank)
        self._began = perf_counter()
        self._cpu_began = process_time()
        self._refused_before = _request_counts()[1]
        # Time at which the consumer got its last batch.
        self.left = self._began

    def restart(self) -> None:
        """Resets statistics and timeline after a warm-up, for which no consumer waited."""
        with self.lock:
            self._earlier = Stats()
            self._recorder = Recorder()
            self._begin()

    def follow(self, earlier: "RunMonitor") -> None:
        """Continues the statistics and the timeline of a run that has ended, after this one has read ahead."""
        with self.lock:
            self._earlier, self._recorder = earlier.stats(), earlier._recorder  # noqa: SLF001 - of this class
            self._began = perf_counter()
            self._cpu_began = process_time()
            self._refused_before = _request_counts()[1]
            self.left = earlier.left

    def read(
        self, timing: Timing, step: int, steps: int, low: int, high: int
    ) -> None:
        """A piece was read: this host's rows `low` to `high`, with padding, of each of `steps` steps from `step` on."""
        self._stats.add(timing)
        piece = Piece(timing.seconds, step, steps, low, high)
        self._recorder.piece(timing, perf_counter(), piece)
        self.piece_sizes.measured((high - low) * steps - timing.cached, timing)
        self.autotuner.worked(timing.processor_seconds)

    def placed(self, timing: Timing, step: int) -> None:
        """The batch of a step was placed."""
        self._ready += 1
        self._stats.place += timing.place
        self._recorder.placed(timing, step)
        self.pace.placed(timing.place)

    def taken(self, step: int, began: float, away: float, starved: float) -> bool:
        """The consumer got the batch of a step. Returns whether the number of active threads has increased.

        Args:
            step: Step of the batch.
            began: Time of the request, in seconds.
            away: Seconds between the consumer's last batch and the request.
            starved: Seconds that the consumer waited for rows.
        """
        now = perf_counter()
        self._ready -= 1
        rows = self._batch_rows(step)
        self._stats.took(step, now - began, away, rows)
        self._recorder.taken(began, now - began, step, self._ready, rows)
        self.left = now
        if self._stats.steps == UNMEASURED:
            self._stats.early = self._snapshot()
        self.pace.delivered(starved)
        return self.autotuner.on_batch(now, self.pace.starving, away)

    def idle(self, seconds: float, no_room: bool) -> None:
        """The consumer waited for rows; `no_room`: while `prefetch_bytes` kept a thread idle."""
        self._stats.no_room += seconds * no_room

    def stats(self) -> Stats:
        """Statistics until now, or until the scheduler was closed."""
        with self.lock:
            return self._earlier.plus(self._final or self._snapshot())

    @property
    def step(self) -> int:
        """Next step."""
        with self.lock:
            return self._first + self._stats.steps

    def recording(self) -> Recording:
        """Latest events, and the whole run in bins."""
        with self.lock:
            return self._recorder.recording()

    def timeline(self) -> Timeline:
        """Latest events."""
        return self.recording().timeline()

    def close(self) -> None:
        """Stops counting. Idempotent."""
        with self.lock:
            self._ready = 0
            self._final = self._final or self._snapshot()

    def _snapshot(self) -> Stats:
        in_flight, refused = _request_counts()
        return replace(
            self._stats,
            ready=self._ready,
            elapsed=perf_counter() - self._began,
            active=self.left - self._began,
            cpu=process_time() - self._cpu_began,
            at_work=self._workers(self.autotuner.size),
            tried=self._workers(self.autotuner.tried),
            load=os.getloadavg()[0],
            in_flight=in_flight,
            refused=refused - self._refused_before,
        )

    def _workers(self, threads: int) -> int:
        """Number of workers that `threads` threads keep busy: several per process, so that it never waits for work."""
        return -(-threads * self._blank.workers // max(1, self._concurrency))


def _request_counts() -> tuple[int, int]:
    """Requests to storage in flight, and refused; those who read no remote files have not loaded what sends them."""
    module = sys.modules.get("loadax.files.requests")
    if module is None:
        return 0, 0
    counts: tuple[int, int] = module.request_counts()
    return counts
