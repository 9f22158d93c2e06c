"""ProcessPool: starts worker processes, hands out pieces, replaces workers that die."""

import threading
import warnings
from collections import Counter, deque
from time import monotonic
from typing import final

import numpy as np

from loadax.core.formatting import rows_text
from loadax.errors import ClosedError, WorkerError
from loadax.loader.assembly.buffer_layout import BufferLayout
from loadax.loader.metrics.stats import Timing
from loadax.loader.workers.handle import LostError, When, WorkerHandle
from loadax.loader.workers.job import Job, SharedReader
from loadax.loader.workers.messages import ReadPiece
from loadax.reader import Reader

_PATIENCE = 1.0  # seconds that workers have to end, in all, before they are killed
_LIVES = 2  # a piece that has killed so many workers is not tried again
# pieces that a worker is given at a time: it goes on with the next one while the one before is on its way back
_IN_HAND = 2


@final
class ProcessPool:
    """Worker processes, started at once and ended by `close`.

    Each does one piece at a time, since users' functions may rely on that, and has the next one in hand.

    Args:
        count: how many.
        least: how many are started now; the others by `prepare`. None: all.

    Raises:
        WorkerError: when there is no interpreter to start.
    """

    def __init__(self, count: int, least: int | None = None):
        self._free = threading.Condition()  # there may be a worker with room in its hand
        self._closed = False
        self.count = count
        """How many they are meant to be."""
        self._wanted = self._started = count if least is None else min(least, count)
        self._workers: list[WorkerHandle] = []
        self._shipment: SharedReader | None = None  # the newest
        self._waiting: deque[object] = deque()  # who waits for a worker, in turn
        self._newcomers: list[WorkerHandle] = []  # that are not ready yet
        try:
            for _ in range(self._started):
                self._start()
        except BaseException:
            self.close()
            raise

    @property
    def closed(self) -> bool:
        """Whether they were told to end."""
        return self._closed

    def run(self, job: Job, order: ReadPiece) -> Timing:
        """Has a worker do it; waits until it is done.

        From any number of threads; `threads` of them keep all workers busy.

        Raises:
            WorkerError: when two workers died of it.
            Exception: what it raised over there.
        """
        lost: Counter[When] = Counter()
        while True:
            worker = self._claim()
            try:
                timing = worker.run(job, order)
            except LostError as gone:
                died = self._replace(worker)
                lost[gone.when] += 1
                self._report(gone.when, lost[gone.when], died, order)
            else:
                return timing
            finally:
                with self._free:
                    worker.in_hand -= 1
                    self._free.notify_all()

    def job(self, reader: Reader, plan: BufferLayout, key_seed: int | None, keep: int) -> Job:
        """A job for these workers; see `Job`. What a reader reads from is sent once for all jobs in a row that have it.

        Raises:
            WorkerError: when the reader can't be sent to another process; names what can't.
        """
        if self._shipment is None or self._shipment.reader is not reader:
            self._shipment = None  # its copy of the data goes before the next one is made
            self._shipment = SharedReader(reader)
        return Job(self._shipment, plan, key_seed, keep)

    def prepare(self, job: Job, threads: int) -> None:
        """Starts more workers, as many as so many threads keep busy.

        Waits until they know the job, so that no piece has to wait for them.

        Raises:
            WorkerError: when one can't be started, or can't take up the job.
        """
        while not self._closed:
            with self._free:
                if self._wanted >= min(self.count, -(-threads // _IN_HAND)):
                    return
                self._wanted += 1
                self._started += 1
            self._start(job)

    def _claim(self) -> WorkerHandle:
        """The worker that has least in hand.

        Waits for one that has room there, for its turn: who came first has the piece that is wanted first.
        """
        mine = object()
        with self._free:
            self._waiting.append(mine)
            try:
                while not self._closed:
                    worker = min(self._workers, key=lambda each: each.in_hand, default=None)
                    if worker is not None and worker.in_hand < _IN_HAND and self._waiting[0] is mine:
                        worker.in_hand += 1
                        return worker
                    if self._started < self._wanted:  # one could not be started in place of one that is gone
                        self._started += 1
                        break
                    self._free.wait()
                else:
                    raise ClosedError("the worker processes were closed")
            finally:
                self._waiting.remove(mine)
                self._free.notify_all()
        self._start()
        return self._claim()

    def _report(self, when: When, times: int, died: str, order: ReadPiece) -> None:
        """Says that a worker is gone, for this piece the so-manyth one.

        Raises:
            WorkerError: when no other one should try.
        """
        rows = rows_text(np.frombuffer(order.rows, np.int64))
        if when == "at work" and times == _LIVES:
            raise WorkerError(
                f"{_LIVES} worker processes died, one after the other, reading {rows}; the last one {died}. "
                "Look at these rows, and at what the maps do with them, with num_workers=0; "
                "or use fewer workers where memory is short"
            ) from None
        # All that were there at first may be dead at once; of those that were started then, no more than a piece may
        # kill.
        if when == "unborn" and times == self.count + _LIVES:
            raise WorkerError(
                f"{times} worker processes ended before they had taken up the data; the last one {died}. "
                "What they wrote to stderr may say why; or use worker_type='thread'"
            ) from None
        what = {
            "at work": f"while it read {rows}; another one is started, which reads them again",
            "unborn": "before it had taken up the data; another one is started",
            "idle": "while it had nothing to do; another one is started",
        }
        if when in what:
            warnings.warn(f"a worker process {died} {what[when]}", RuntimeWarning, stacklevel=4)

    def close(self) -> None:
        """Ends all workers, those at work too. Idempotent; from any thread."""
        with self._free:
            self._closed = True
            workers, self._workers = [*self._workers, *self._newcomers], []
            self._shipment = None
            self._free.notify_all()
        for worker in workers:
            worker.stop()
        deadline = monotonic() + _PATIENCE
        for worker in workers:
            worker.bury(deadline)

    @property
    def least_threads(self) -> int:
        """How many of those are of use to begin with, before all processes are started."""
        return _IN_HAND * len(self._workers)

    @property
    def threads(self) -> int:
        """How many threads may wait for them at a time, so that none of them is ever without work."""
        return _IN_HAND * self.count

    def _start(self, job: Job | None = None) -> None:
        """Starts a worker; with a job, it knows that before anybody gives it a piece."""
        try:
            worker = WorkerHandle()
            with self._free:
                self._newcomers.append(worker)
            if job is not None and not self._closed:
                worker.take_up(job)
        except BaseException:
            with self._free:  # whoever waits for this one tries for himself
                self._started -= 1
                self._free.notify_all()
            raise
        with self._free:
            self._newcomers.remove(worker)
            if not self._closed:
                self._workers.append(worker)
                self._free.notify_all()
                return
        worker.stop()
        worker.bury(monotonic() + _PATIENCE)

    def _replace(self, worker: WorkerHandle) -> str:
        """Starts another one in place of a worker that is gone; how that ended.

        Raises:
            ClosedError: when it was told to.
        """
        with self._free:
            closed, first = self._closed, worker in self._workers
            if first:
                self._workers.remove(worker)
        if closed:
            raise ClosedError("the worker processes were closed")
        died = worker.bury(monotonic() + _PATIENCE)
        if first:
            self._start()
        return died
