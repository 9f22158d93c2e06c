"""PieceExecutor: who reads pieces. Threads of this process or worker processes; other machines could."""

from collections.abc import Callable
from typing import Protocol, final

from jax.profiler import TraceAnnotation

from loadax.core.buffers import BufferPool
from loadax.loader.assembly.assembler import Assembler, Piece
from loadax.loader.assembly.buffer_layout import BatchBuffers, BufferLayout
from loadax.loader.metrics.stats import Timing
from loadax.loader.options import LoaderOptions
from loadax.loader.workers.process_pool import ProcessPool
from loadax.reader import Reader


class LoadedJob(Protocol):
    """What the workers of an executor know of one kind of batch."""

    def buffers(self, count: int) -> BatchBuffers:
        """Buffers of `count` steps that the workers can write to; free again when the last view of them is gone."""
        ...

    def run(self, piece: Piece) -> Timing:
        """Has a worker read a piece, and waits until it is done. From any thread.

        Raises:
            Exception: what the source or a map raised.
        """
        ...

    def prepare(self, threads: int) -> None:
        """Starts as many workers as so many threads keep busy, and waits until they know the job."""
        ...


class PieceExecutor(Protocol):
    """Reads pieces. Jobs may overlap: an old one is still in use while batches of another shape begin.

    Args:
        worker_type: Kind of the workers, "thread" or "process".
        isolated: Whether pieces are read outside this process: then they cost more to hand over and wait for no GIL.
        workers: Largest number of workers.
        concurrency: Threads of this process that keep all workers busy; 0: the consumer's own does all the work.
        first: Threads of use to begin with, before all workers are started.
        settling: Seconds until a new worker does its share.
        closed: Whether the workers were told to end.
    """

    worker_type: str
    isolated: bool
    workers: int
    concurrency: int
    first: int
    settling: float
    closed: bool

    def load(self, reader: Reader, layout: BufferLayout, key_seed: int | None, prefetch_bytes: int) -> LoadedJob:
        """A job for the workers.

        Args:
            reader: Reader of the rows.
            layout: Layout of the buffers of one step.
            key_seed: Seed of the random keys, where there are any.
            prefetch_bytes: Bytes of idle buffers that are kept for reuse.
        """
        ...

    def close(self) -> None:
        """Ends all workers, also those at work. Idempotent; from any thread."""
        ...


def open_executor(options: LoaderOptions) -> PieceExecutor:
    """The executor that the options ask for."""
    # Where the dataset is cached on the devices, all that is read are row numbers: no work for processes.
    if options.worker_type == "process" and options.num_workers and not options.keep_on_device:
        return ProcessPool(options.num_workers, options.first_workers, TraceAnnotation)
    return ThreadExecutor(options.num_workers, options.first_workers)


@final
class ThreadExecutor:
    """Reads each piece on the thread that asks for it.

    Args:
        workers: Largest number of threads.
        first: Number of threads to begin with.
    """

    worker_type = "thread"
    settling = 0.0
    isolated = False
    closed = False

    def __init__(self, workers: int = 0, first: int = 0):
        self.workers = self.concurrency = workers
        self.first = first

    def load(self, reader: Reader, layout: BufferLayout, key_seed: int | None, prefetch_bytes: int) -> LoadedJob:
        return _LocalJob(reader, layout, key_seed, prefetch_bytes)

    def close(self) -> None:
        pass


@final
class _LocalJob:
    def __init__(self, reader: Reader, layout: BufferLayout, key_seed: int | None, prefetch_bytes: int):
        self._layout = layout
        self._pool = BufferPool(prefetch_bytes)
        self.run: Callable[[Piece], Timing] = Assembler(reader, layout, key_seed, TraceAnnotation).fill

    def buffers(self, count: int) -> BatchBuffers:
        return BatchBuffers(self._layout, self._pool.lease(count * self._layout.bytes_per_step), count)

    def prepare(self, threads: int) -> None:
        pass
