"""ProcessPool: starts worker processes, hands out pieces, replaces workers that die."""

import threading
import warnings
from collections import Counter, deque
from threading import get_ident
from time import monotonic
from typing import final

import numpy as np

from loadax.core.formatting import rows_text
from loadax.errors import ClosedError, WorkerError
from loadax.loader.assembly.assembler import FillOptions, Piece
from loadax.loader.metrics.stages import Mark, unmarked
from loadax.loader.metrics.stats import Timing
from loadax.loader.workers.filler import SharedMemoryFiller
from loadax.loader.workers.handle import LostError, When, WorkerHandle
from loadax.loader.workers.job import Job, LatestReader
from loadax.loader.workers.messages import PieceRead, ReadPiece
from loadax.reader import Reader
from loadax.work.capacity import Capacity
from loadax.work.payload import refuse_while_unpacking
from loadax.work.pickling import unpickle_answer

# seconds that all workers together have to exit before they are killed
_CLOSE_TIMEOUT = 1.0
_MAX_RETRIES = 2  # workers that a piece may kill before it fails
PIECE_SECONDS = 0.012  # each piece costs the training process 0.25 ms
_SETTLING = 0.6  # seconds until a new worker process has started and loaded its job
# pieces per worker: it starts the next one while the answer to the previous one is delivered
_PIECES_PER_WORKER = 2


@final
class ProcessPool:
    """A pool of worker processes, until `close`.

    Each worker reads one piece at a time, since users' functions may rely on that, with the next one queued.

    Args:
        workers: Largest number of workers.
        first: Number of workers to start now; `prepare` starts the others. None: all.
        mark: Marks the time that a thread waits for a piece, for a profiler.

    Raises:
        WorkerError: If no interpreter can be started, or this is a worker process that unpickles its data.
    """

    def __init__(self, workers: int, first: int | None = None, mark: Mark = unmarked):
        refuse_while_unpacking()
        self._mark = mark
        self._free = threading.Condition()  # notified if a worker may accept a piece
        self.closed = False
        self._wanted = self._started = (
            workers if first is None else min(first, workers)
        )
        self.capacity = Capacity(
            worker_type="process",
            workers=workers,
            concurrency=_PIECES_PER_WORKER * workers,
            first=_PIECES_PER_WORKER * self._started,
            piece_seconds=PIECE_SECONDS,
            settling=_SETTLING,
        )
        self._handles: list[WorkerHandle] = []
        # worker that reads for a thread, by the thread's identifier
        self._serving: dict[int, WorkerHandle] = {}
        self._latest = LatestReader(SharedMemoryFiller)
        # threads that wait for a worker, first come, first served
        self._waiting: deque[object] = deque()
        self._starting: list[WorkerHandle] = []  # processes that are not ready yet
        try:
            for _ in range(self._started):
                self._start()
        except BaseException:
            self.close()
            raise

    def run(self, job: Job, message: ReadPiece) -> PieceRead:
        """Has a worker read a piece, and waits for it. Thread-safe.

        Raises:
            WorkerError: If two workers died while reading it.
            Exception: Whatever the worker raised.
        """
        lost: Counter[When] = Counter()
        while True:
            worker = self._next_worker()
            try:
                self._serving[get_ident()] = worker
                answer = worker.run(job, message)
            except LostError as gone:
                died = self._replace(worker)
                lost[gone.when] += 1
                self._report(gone.when, lost[gone.when], died, message)
            else:
                return answer
            finally:
                self._serving.pop(get_ident(), None)
                with self._free:
                    worker.pending -= 1
                    self._free.notify_all()

    def places(self) -> int:
        return 0

    def worker_text(self, thread: int) -> str:
        """The worker process that reads for a thread, with its state and its Python stack; empty if there is none."""
        worker = self._serving.get(thread)
        if worker is None:
            return " on no worker process yet"
        return f" on {worker.text()}"

    def load(
        self,
        reader: Reader,
        options: FillOptions,
        prefetch_bytes: int,
        family: tuple[Reader, ...] = (),
    ) -> "_PoolJob":
        """Makes a job for these workers. Consecutive jobs with the same reader, or family of readers, send it once.

        Raises:
            WorkerError: If the reader can't be pickled; names the part that can't.
        """
        return _PoolJob(
            self,
            Job(self._latest.share(reader, family), reader, options, prefetch_bytes),
            self._mark,
        )

    def prepare(self, job: Job, threads: int) -> None:
        """Starts as many workers as `threads` keep busy, and waits until they have loaded the job.

        Raises:
            WorkerError: If one can't be started, or can't load the job.
        """
        while not self.closed:
            with self._free:
                if self._wanted >= min(
                    self.capacity.workers, -(-threads // _PIECES_PER_WORKER)
                ):
                    return
                self._wanted += 1
                self._started += 1
            self._start(job)

    def _next_worker(self) -> WorkerHandle:
        """Waits for the worker with the fewest pieces.

        First come, first served: the first caller has the piece that is needed first.
        """
        turn = object()
        with self._free:
            self._waiting.append(turn)
            try:
                while not self.closed:
                    worker = min(
                        self._handles, key=lambda handle: handle.pending, default=None
                    )
                    if (
                        worker is not None
                        and worker.pending < _PIECES_PER_WORKER
                        and self._waiting[0] is turn
                    ):
                        worker.pending += 1
                        return worker
                    # a replacement for a dead worker could not be started
                    if self._started < self._wanted:
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
        """Warns that a worker died, the `times`-th one in this way for this piece.

        Raises:
            WorkerError: If the piece should not be retried.
        """
        rows = rows_text(np.frombuffer(message.rows, np.int64))
        if when == "at work" and times == _MAX_RETRIES:
            raise WorkerError(
                f"{_MAX_RETRIES} worker processes died, one after the other, reading "
                f"{rows}; the last one {died}. Debug these rows and their maps with "
                "num_workers=0, or use fewer workers if memory is short"
            ) from None
        # All initial workers may die at once. Of their replacements, no more than the retries of a piece.
        if when == "starting" and times == self.capacity.workers + _MAX_RETRIES:
            raise WorkerError(
                f"{times} worker processes ended before they had loaded the data; "
                f"the last one {died}. Their output on stderr may say why; or use "
                "worker_type='thread'"
            ) from None
        consequence = {
            "at work": f"while it read {rows}; a new worker retries them",
            "starting": "before it had loaded the data; a new worker replaces it",
            "idle": "while it was idle; a new worker replaces it",
        }
        if when in consequence:
            warnings.warn(
                f"a worker process {died} {consequence[when]}",
                RuntimeWarning,
                stacklevel=4,
            )

    def close(self) -> None:
        """Stops all workers, including busy ones. Idempotent and thread-safe."""
        with self._free:
            self.closed = True
            workers = [*self._handles, *self._starting]
            self._handles = []
            self._latest = LatestReader(SharedMemoryFiller)
            self._free.notify_all()
        for worker in workers:
            worker.stop()
        deadline = monotonic() + _CLOSE_TIMEOUT
        for worker in workers:
            worker.reap(deadline)

    def _start(self, job: Job | None = None) -> None:
        """Starts a worker. If a job is given, the worker loads it before it gets pieces."""
        try:
            worker = WorkerHandle()
            with self._free:
                self._starting.append(worker)
            if job is not None and not self.closed:
                worker.preload(job)
        except BaseException:
            with self._free:  # a waiting thread tries to start one itself
                self._started -= 1
                self._free.notify_all()
            raise
        with self._free:
            self._starting.remove(worker)
            if not self.closed:
                self._handles.append(worker)
                self._free.notify_all()
                return
        worker.reap(monotonic() + _CLOSE_TIMEOUT)

    def _replace(self, worker: WorkerHandle) -> str:
        """Replaces a dead worker; returns how it ended, as text.

        Raises:
            ClosedError: If the pool was closed.
        """
        with self._free:
            closed = self.closed
            first = worker in self._handles
            if first:
                self._handles.remove(worker)
        if closed:
            raise ClosedError("the worker processes were closed")
        died = worker.reap(monotonic() + _CLOSE_TIMEOUT)
        if first:
            self._start()
        return died


@final
class _PoolJob:
    def __init__(self, pool: ProcessPool, job: Job, mark: Mark):
        self._pool = pool
        self._job = job
        self._mark = mark
        self.buffers = job.buffers

    def run(self, piece: Piece) -> Timing:
        with self._mark("loadax.process"):
            answer = self._pool.run(self._job, self._job.message(piece))
        if answer.objects:
            objects = piece.buffers.objects(piece.low, piece.high)
            for rows, values in zip(
                objects, unpickle_answer(answer.objects), strict=True
            ):
                rows[:] = values
        return Timing(*answer.timing)

    def prepare(self, threads: int) -> None:
        self._pool.prepare(self._job, threads)
