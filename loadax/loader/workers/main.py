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

import numpy as np

from loadax.loader.workers.connection import Connection
from loadax.loader.workers.filler import WorkerRequests
from loadax.loader.workers.interpreter import unmark
from loadax.loader.workers.stacks import STACK_SIGNAL
from loadax.work.worker import answer

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
    requests = WorkerRequests()
    try:
        while True:
            request, descriptors = connection.receive()
            connection.send(answer(requests, request, descriptors))
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


if __name__ == "__main__":
    # What users pickle of their own `__main__` is never looked up among the names of this module.
    sys.modules["__main__"] = sys.modules["__mp_main__"] = ModuleType("__main__")
    main()
