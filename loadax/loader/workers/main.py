"""Main program of a worker process, `python -m loadax.loader.workers.main`: reads pieces until its parent exits.

It does not import JAX, and its environment hides all accelerators.
"""

import contextlib
import faulthandler
import os
import random
import select
import signal
import socket
import sys
import threading
from types import ModuleType
from typing import Any, final

import numpy as np

from loadax.loader.assembly.assembler import Assembler, Piece
from loadax.loader.assembly.buffer_layout import BatchBuffers
from loadax.loader.workers.connection import Connection
from loadax.loader.workers.interpreter import unmark
from loadax.loader.workers.messages import (
    LoadJob,
    MissingModule,
    PieceRead,
    ReadPiece,
)
from loadax.loader.workers.payload import PickledPayload, unpack
from loadax.loader.workers.shared_memory import SharedMemoryView
from loadax.loader.workers.stacks import STACK_SIGNAL
from loadax.protocols import Visits
from loadax.reader import Reader
from loadax.work.pickling import pickle_answer
from loadax.work.remote_errors import wrap

_SEED = 0  # of the global generators of all workers
_POLL_MILLISECONDS = 1000  # between checks that the parent process is alive


def main() -> None:
    """Serves requests from a socket.

    The command line has its descriptor, that of a file for stacks, and the parent's process id.
    """
    unmark()
    descriptor, stacks, parent = (int(argument) for argument in sys.argv[1:])
    faulthandler.register(STACK_SIGNAL, stacks, all_threads=False)
    # A Ctrl-C reaches all processes of the terminal. The training process decides what to do.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # It was blocked by the training process when this one started.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(
        target=_end_with_parent,
        args=(descriptor, parent),
        name="loadax-lifeline",
        daemon=True,
    ).start()
    # Their states would differ in each process. torch begins with the same one everywhere.
    random.seed(_SEED)
    np.random.seed(_SEED)  # noqa: NPY002 - users' functions may draw from it
    connection = Connection(socket.socket(fileno=descriptor))
    handler = _RequestHandler()
    try:
        while True:
            request, descriptors = connection.receive()
            connection.send(handler.answer(request, descriptors))
            _flush()
    except (EOFError, OSError):
        pass  # the training process is gone


def _end_with_parent(descriptor: int, parent: int) -> None:
    """Exits when the parent process is gone, even while a user's function runs."""
    poll = select.poll()
    poll.register(descriptor, 0)  # a hang-up is always reported
    # A fork of the parent may keep the other end of the socket open, so check the parent's process id too.
    while not poll.poll(_POLL_MILLISECONDS) and os.getppid() == parent:
        pass
    _flush()
    os._exit(0)


def _flush() -> None:
    """Shows what users' functions print without waiting for a full buffer."""
    # they may be closed, or None
    with contextlib.suppress(AttributeError, OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()


@final
class _RequestHandler:
    """Handles requests, with the jobs that were loaded."""

    def __init__(self) -> None:
        self._readers: tuple[Reader, ...] = ()
        self._jobs: dict[int, tuple[Assembler, SharedMemoryView]] = {}

    def answer(self, request: Any, descriptors: list[int]) -> Any:
        """Computes the answer to a request; an error becomes a `RemoteError`."""
        try:
            if isinstance(request, LoadJob):
                return self._load(request, *descriptors)
            return self._fill(request)
        except BaseException as error:  # noqa: BLE001 - a user's function may raise anything, such as SystemExit
            return wrap(error)

    def _load(
        self, request: LoadJob, descriptor: int, payload: int | None = None
    ) -> MissingModule | None:
        memory = SharedMemoryView(descriptor)
        try:
            for number in self._jobs.keys() - request.others:
                self._jobs.pop(number)[1].close()
            if request.message is not None:
                assert payload is not None
                self._readers = ()
                try:
                    self._readers = unpack(
                        PickledPayload(request.message, payload, request.arrays)
                    )
                except ModuleNotFoundError as error:
                    return MissingModule(error.name or "")
                finally:
                    os.close(payload)
            self._jobs[request.number] = (
                Assembler(self._readers[request.which], request.options),
                memory,
            )
        finally:
            if request.number not in self._jobs:
                memory.close()
        return None

    def _fill(self, request: ReadPiece) -> PieceRead:
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


if __name__ == "__main__":
    # What users pickle of their own `__main__` is never looked up among the names of this module.
    sys.modules["__main__"] = sys.modules["__mp_main__"] = ModuleType("__main__")
    main()
