"""Requests of a worker process: opens the payload of the readers, loads jobs, fills pieces in shared memory."""

import os
from collections.abc import Collection
from typing import Any, final

import numpy as np

from loadax.loader.assembly.assembler import Assembler, Piece
from loadax.loader.assembly.buffer_layout import BatchBuffers
from loadax.loader.workers.messages import LoadJob, PieceRead, ReadPiece
from loadax.loader.workers.shared_memory import SharedMemoryView
from loadax.protocols import Visits
from loadax.reader import Reader
from loadax.work.payload import Payload
from loadax.work.pickling import pickle_answer
from loadax.work.worker import PayloadMissing, open_payload


@final
class WorkerRequests:
    """Answers requests, with the filler that was opened last."""

    def __init__(self) -> None:
        self._filler = SharedMemoryFiller(())

    def __call__(self, request: Any, descriptors: list[int]) -> Any:
        """Computes the answer to a request.

        Raises:
            Exception: Whatever loading or reading raises.
        """
        if isinstance(request, ReadPiece):
            return self._filler.fill(request)
        memory = descriptors[0]
        if request.message is not None:
            payload = descriptors[1]
            self._filler.close_except(())
            self._filler = SharedMemoryFiller(())
            try:
                opened = open_payload(
                    Payload(request.message, payload, request.arrays)
                )
            except BaseException:
                os.close(memory)
                raise
            finally:
                os.close(payload)
            if isinstance(opened, PayloadMissing):
                os.close(memory)
                return opened
            self._filler = opened
        return self._filler.load(request, SharedMemoryView(memory))


@final
class SharedMemoryFiller:
    """Fills pieces by readers of a dataset. It is pickled as its arguments.

    Args:
        readers: Readers of the dataset.
    """

    def __init__(self, readers: tuple[Reader, ...]):
        self._readers = readers
        self._jobs: dict[int, tuple[Assembler, SharedMemoryView]] = {}

    def __reduce__(self) -> Any:
        return SharedMemoryFiller, (self._readers,)

    def close_except(self, jobs: Collection[int]) -> None:
        """Closes all jobs but those with these numbers."""
        for number in self._jobs.keys() - jobs:
            self._jobs.pop(number)[1].close()

    def load(self, request: LoadJob, memory: SharedMemoryView) -> None:
        """Loads a job, whose pieces lie in this memory."""
        try:
            self.close_except(request.others)
            self._jobs[request.number] = (
                Assembler(self._readers[request.which], request.options),
                memory,
            )
        finally:
            if request.number not in self._jobs:
                memory.close()

    def fill(self, request: ReadPiece) -> PieceRead:
        """Fills a piece."""
        assembler, shared = self._jobs[request.job]
        layout = assembler.layout
        memory = shared.memory(request.block, request.steps * layout.bytes_per_step)
        visits = Visits(
            np.frombuffer(request.rows, np.int64),
            np.frombuffer(request.epochs, np.int64),
        )
        piece = Piece(
            visits, request.low, BatchBuffers(layout, memory, request.steps)
        )
        timing = assembler.fill(piece)
        objects = piece.buffers.objects(piece.low, piece.high)
        return PieceRead(tuple(timing), pickle_answer(objects) if objects else b"")
