"""Readers of pieces: threads of this process by default, or worker processes, or other machines."""

from collections.abc import Callable
from functools import partial
from typing import final

from jax.profiler import TraceAnnotation

from loadax.core.buffers import BufferPool
from loadax.loader.assembly.assembler import Assembler, FillOptions, Piece
from loadax.loader.assembly.buffer_layout import lease_buffers
from loadax.loader.metrics.stats import Timing
from loadax.loader.options import LoaderOptions
from loadax.loader.slots import LoadedJob, PieceExecutor
from loadax.reader import Reader
from loadax.work.capacity import Capacity


def open_executor(options: LoaderOptions) -> PieceExecutor:
    """Makes the executor that the options ask for."""
    if options.remote is not None and options.num_workers:
        from loadax.loader.remote.remote_executor import RemoteExecutor

        return RemoteExecutor(
            options.remote,
            options.num_workers,
            options.first_workers,
            TraceAnnotation,
        )
    # If the dataset is cached on the devices, only row indices are read, which needs no processes.
    if (
        options.worker_type == "process"
        and options.num_workers
        and not options.keep_on_device
    ):
        from loadax.loader.workers.process_pool import ProcessPool

        return ProcessPool(
            options.num_workers, options.first_workers, TraceAnnotation
        )
    return ThreadExecutor(options.num_workers, options.first_workers)


@final
class ThreadExecutor:
    """Reads each piece on the calling thread.

    Args:
        workers: Largest number of threads.
        first: Initial number of threads.
    """

    closed = False

    def __init__(self, workers: int = 0, first: int = 0):
        self.capacity = Capacity("thread", workers, workers, first)

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
        self.buffers = partial(
            lease_buffers, options.layout, BufferPool(prefetch_bytes).lease
        )
        self.run: Callable[[Piece], Timing] = Assembler(
            reader, options, TraceAnnotation
        ).fill

    def prepare(self, threads: int) -> None:
        pass
