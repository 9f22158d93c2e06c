"""ProcessPool: starts worker processes, hands out pieces, replaces workers that die."""

import threading
import warnings
from collections import Counter, deque
from time import monotonic
from typing import final

import numpy as np

from loadax.core.formatting import rows_text
from loadax.errors import ClosedError, WorkerError
from loadax.loader.assembly.assembler import Piece
from loadax.loader.assembly.buffer_layout import BufferLayout
from loadax.loader.metrics.stages import Mark, unmarked
from loadax.loader.metrics.stats import Timing
from loadax.loader.workers.handle import LostError, When, WorkerHandle
from loadax.loader.workers.job import Job, SharedReader
from loadax.loader.workers.messages import ReadPiece
from loadax.reader import Reader

_PATIENCE = 1.0  # seconds that workers have to end, in all, before they are killed
_MAX_RETRIES = 2  # workers that a piece may kill before it is given up
_SETTLING = 0.6  # seconds until a new worker process has started and knows its work
# pieces that a worker is given at a time: it goes on with the next one while the one before is on its way back
_IN_HAND = 2


@final
class ProcessPool:
    """Worker processes, started at once and ended by `close`.

    Each does one piece at a time, since users' functions may rely on that, and has the next one in hand.

    Args:
        workers: Largest number of workers.
        first: Number of workers that are started now, the others by `prepare`. None: all.
        mark: Marks a stretch of a thread's time while it waits for a piece.

    Raises:
        WorkerError: when there is no interpreter to start.
    """

    worker_type = "process"
    settling = _SETTLING
    isolated = True

    def __init__(self, workers: int, first: int | None = None, mark: Mark = unmarked):
        self._mark = mark
        self._free = threading.Condition()  # there may be a worker with room in its hand
        self.closed = False
        self.workers = workers
        self.concurrency = _IN_HAND * workers
        self._wanted = self._started = workers if first is None else min(first, workers)
        self.first = _IN_HAND * self._started
        self._handles: list[WorkerHandle] = []
        self._shared_reader: SharedReader | None = None  # the newest
        self._waiting: deque[object] = deque()  # who waits for a worker, in turn
        self._starting: list[WorkerHandle] = []  # processes that are not ready yet
        try:
            for _ in range(self._started):
                self._start()
        except BaseException:
            self.close()
            raise

    def run(self, job: Job, message: ReadPiece) -> Timing:
        """Has a worker read a piece, and waits until it is done. From any number of threads.

        Raises:
            WorkerError: when two workers died of it.
            Exception: what it raised over there.
        """
        lost: Counter[When] = Counter()
        while True:
            worker = self._next_worker()
            try:
                timing = worker.run(job, message)
            except LostError as gone:
                died = self._replace(worker)
                lost[gone.when] += 1
                self._report(gone.when, lost[gone.when], died, message)
            else:
                return timing
            finally:
                with self._free:
                    worker.in_hand -= 1
                    self._free.notify_all()

    def load(self, reader: Reader, layout: BufferLayout, key_seed: int | None, prefetch_bytes: int) -> "_PoolJob":
        """A job for these workers. A reader is sent once for all jobs in a row that have it.

        Raises:
            WorkerError: when the reader can't be sent to another process; names what can't.
        """
        if self._shared_reader is None or self._shared_reader.reader is not reader:
            self._shared_reader = None  # its copy of the data goes before the next one is made
            self._shared_reader = SharedReader(reader)
        return _PoolJob(self, Job(self._shared_reader, layout, key_seed, prefetch_bytes), self._mark)

    def prepare(self, job: Job, threads: int) -> None:
        """Starts more workers, as many as so many threads keep busy.

        Waits until they know the job, so that no piece has to wait for them.

        Raises:
            WorkerError: when one can't be started, or can't take up the job.
        """
        while not self.closed:
            with self._free:
                if self._wanted >= min(self.workers, -(-threads // _IN_HAND)):
                    return
                self._wanted += 1
                self._started += 1
            self._start(job)

    def _next_worker(self) -> WorkerHandle:
        """The worker with the fewest pieces in hand.

        Waits for one that has room, first come, first served: the first caller has the piece that is wanted first.
        """
        turn = object()
        with self._free:
            self._waiting.append(turn)
            try:
                while not self.closed:
                    worker = min(self._handles, key=lambda handle: handle.in_hand, default=None)
                    if worker is not None and worker.in_hand < _IN_HAND and self._waiting[0] is turn:
                        worker.in_hand += 1
                        return worker
                    if self._started < self._wanted:  # one could not be started in place of one that is gone
                        self._started += 1
                        break
                    self._free.wait()
                else:
                    raise ClosedError("the worker processes were closed")
            finally:
                self._waiting.remove(turn)
                self._free.notify_all()
        self._start()
        return self._next_worker()

    def _report(self, when: When, times: int, died: str, message: ReadPiece) -> None:
        """Warns that a worker is gone, the `times`-th one of this piece.

        Raises:
            WorkerError: when no other one should try.
        """
        rows = rows_text(np.frombuffer(message.rows, np.int64))
        if when == "at work" and times == _MAX_RETRIES:
            raise WorkerError(
                f"{_MAX_RETRIES} worker processes died, one after the other, reading {rows}; the last one {died}. "
                "Look at these rows, and at what the maps do with them, with num_workers=0; "
                "or use fewer workers where memory is short"
            ) from None
        # All that were there at first may be dead at once; of those that were started then, no more than a piece may
        # kill.
        if when == "starting" and times == self.workers + _MAX_RETRIES:
            raise WorkerError(
                f"{times} worker processes ended before they had taken up the data; the last one {died}. "
                "What they wrote to stderr may say why; or use worker_type='thread'"
            ) from None
        what = {
            "at work": f"while it read {rows}; another one is started, which reads them again",
            "starting": "before it had taken up the data; another one is started",
            "idle": "while it had nothing to do; another one is started",
        }
        if when in what:
            warnings.warn(f"a worker process {died} {what[when]}", RuntimeWarning, stacklevel=4)

    def close(self) -> None:
        """Ends all workers, those at work too. Idempotent; from any thread."""
        with self._free:
            self.closed = True
            workers, self._handles = [*self._handles, *self._starting], []
            self._shared_reader = None
            self._free.notify_all()
        for worker in workers:
            worker.stop()
        deadline = monotonic() + _PATIENCE
        for worker in workers:
            worker.reap(deadline)

    def _start(self, job: Job | None = None) -> None:
        """Starts a worker; with a job, it knows that before anybody gives it a piece."""
        try:
            worker = WorkerHandle()
            with self._free:
                self._starting.append(worker)
            if job is not None and not self.closed:
                worker.take_up(job)
        except BaseException:
            with self._free:  # whoever waits for this one tries for himself
                self._started -= 1
                self._free.notify_all()
            raise
        with self._free:
            self._starting.remove(worker)
            if not self.closed:
                self._handles.append(worker)
                self._free.notify_all()
                return
        worker.stop()
        worker.reap(monotonic() + _PATIENCE)

    def _replace(self, worker: WorkerHandle) -> str:
        """Starts another one in place of a worker that is gone; how that ended.

        Raises:
            ClosedError: when it was told to.
        """
        with self._free:
            closed, first = self.closed, worker in self._handles
            if first:
                self._handles.remove(worker)
        if closed:
            raise ClosedError("the worker processes were closed")
        died = worker.reap(monotonic() + _PATIENCE)
        if first:
            self._start()
        return died


@final
class _PoolJob:
    """A job of the workers of a pool."""

    def __init__(self, pool: ProcessPool, job: Job, mark: Mark):
        self._pool, self._job, self._mark = pool, job, mark
        self.buffers = job.buffers

    def run(self, piece: Piece) -> Timing:
        with self._mark("loadax.process"):
            return self._pool.run(self._job, self._job.message(piece))

    def prepare(self, threads: int) -> None:
        self._pool.prepare(self._job, threads)
