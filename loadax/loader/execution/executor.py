"""PieceExecutor: reads pieces on threads of this process, in worker processes, or on other machines."""

from collections.abc import Callable
from functools import partial
from typing import Protocol, final

from jax.profiler import TraceAnnotation

from loadax.core.buffers import BufferPool
from loadax.loader.assembly.assembler import Assembler, FillOptions, Piece
from loadax.loader.assembly.buffer_layout import BatchBuffers, lease_buffers
from loadax.loader.metrics.stats import Timing
from loadax.loader.options import LoaderOptions
from loadax.loader.remote.executor import RemoteExecutor
from loadax.loader.workers.process_pool import ProcessPool
from loadax.reader import Reader


class LoadedJob(Protocol):
    """A job that the workers of an executor have loaded: reader and buffer layout of one kind of batch."""

    def buffers(self, count: int) -> BatchBuffers:
        """Buffers of `count` steps that workers can write to; reused when their last view is gone."""

    def run(self, piece: Piece) -> Timing:
        """Has a worker read a piece, and waits for it. Thread-safe.

        Raises:
            Exception: Whatever the source or a map raised.
        """

    def prepare(self, threads: int) -> None:
        """Starts as many workers as `threads` keep busy, and waits until they have loaded the job."""


class PieceExecutor(Protocol):
    """Reads pieces. Jobs may overlap: an old one is still in use when batches of another shape begin.

    Args:
        worker_type: Kind of the workers, "thread", "process" or "remote".
        piece_seconds: CPU seconds that a piece should take, if pieces are read outside this process, with more
            overhead but without this process's GIL. 0: in this process.
        workers: Largest number of workers.
        concurrency: Threads of this process that keep all workers busy; 0: the consumer's thread does all the work.
        first: Threads that keep the initial workers busy.
        settling: Seconds until a new worker runs at full speed.
        closed: Whether `close` was called.
    """

    worker_type: str
    piece_seconds: float
    workers: int
    concurrency: int
    first: int
    settling: float
    closed: bool

    def load(
        self, reader: Reader, options: FillOptions, prefetch_bytes: int, family: tuple[Reader, ...] = ()
    ) -> LoadedJob:
        """Makes a job for the workers.

        Args:
            reader: Reader of the rows.
            options: How to fill the buffers of a step.
            prefetch_bytes: Bytes of idle buffers to keep for reuse.
            family: Readers of one source, this one among them, of jobs whose pieces alternate.
        """

    def places(self) -> int:
        """Number of workers that pieces are placed on, each with the same rows of all steps; 0: it has no choice."""

    def worker_text(self, thread: int) -> str:
        """The worker that reads for a thread, its state and its stack, to follow "reads row 3"; empty: the thread."""

    def close(self) -> None:
        """Stops all workers, including busy ones. Idempotent and thread-safe."""


def open_executor(options: LoaderOptions) -> PieceExecutor:
    """Makes the executor that the options ask for."""
    if options.remote is not None and options.num_workers:
        return RemoteExecutor(options.remote, options.num_workers, options.first_workers, TraceAnnotation)
    # If the dataset is cached on the devices, only row indices are read, which needs no processes.
    if options.worker_type == "process" and options.num_workers and not options.keep_on_device:
        return ProcessPool(options.num_workers, options.first_workers, TraceAnnotation)
    return ThreadExecutor(options.num_workers, options.first_workers)


@final
class ThreadExecutor:
    """Reads each piece on the calling thread.

    Args:
        workers: Largest number of threads.
        first: Initial number of threads.
    """

    worker_type = "thread"
    settling = 0.0
    piece_seconds = 0.0
    closed = False

    def __init__(self, workers: int = 0, first: int = 0):
        self.workers = self.concurrency = workers
        self.first = first

    def load(
        self,
        reader: Reader,
        options: FillOptions,
        prefetch_bytes: int,
        family: tuple[Reader, ...] = (),  # noqa: ARG002
    ) -> LoadedJob:
        return _LocalJob(reader, options, prefetch_bytes)

    def places(self) -> int:
        return 0

    def worker_text(self, thread: int) -> str:  # noqa: ARG002
        return ""

    def close(self) -> None:
        pass


@final
class _LocalJob:
    def __init__(self, reader: Reader, options: FillOptions, prefetch_bytes: int):
        self.buffers = partial(lease_buffers, options.layout, BufferPool(prefetch_bytes).lease)
        self.run: Callable[[Piece], Timing] = Assembler(reader, options, TraceAnnotation).fill

    def prepare(self, threads: int) -> None:
        pass
