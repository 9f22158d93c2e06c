"""Parent-side handle of one worker process: spawns it, sends requests, reaps it."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Literal, final

from loadax.core.memory import MMAP_THRESHOLD, TRIM_THRESHOLD
from loadax.errors import WorkerError
from loadax.loader.metrics.stats import Timing
from loadax.loader.workers.connection import Connection
from loadax.loader.workers.interpreter import interpreter, mark
from loadax.loader.workers.job import Job, SharedReader
from loadax.loader.workers.messages import PieceRead, ReadPiece
from loadax.loader.workers.stacks import STATES, WorkerStacks, state_of
from loadax.work.remote_errors import unwrap
from loadax.work.worker import Raised

_WAKING = 1.0  # seconds that threads have to wake up when their worker has ended

# Hides accelerators from workers.
_NO_ACCELERATORS = {
    "JAX_PLATFORMS": "cpu",
    "CUDA_VISIBLE_DEVICES": "-1",
    "HIP_VISIBLE_DEVICES": "-1",
    "ROCR_VISIBLE_DEVICES": "-1",
}
# By default, numerical libraries would start a thread per core in every worker.
_ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"
)
_KEEP_FREED_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(MMAP_THRESHOLD),
    "MALLOC_TRIM_THRESHOLD_": str(TRIM_THRESHOLD),
}

_STDERR = 2

# When a worker died: while reading the piece, before it got it, before it loaded a job, or on an earlier piece.
When = Literal["at work", "idle", "starting", "before"]


class LostError(Exception):
    """A worker process has died."""

    def __init__(self, when: When):
        self.when: When = when


@final
class _Request:
    """State of a request: `over` once it is answered, or `lost` with its worker."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.lost = False


@final
class WorkerHandle:
    """One worker process and this end of its connection. Answers arrive in the order of the requests."""

    def __init__(self) -> None:
        python = interpreter()
        try:
            self._process, ours, self._stacks = _spawn(python)
        except OSError as error:
            raise WorkerError(
                f"worker_type='process': can't start {python}: {error}; use fewer "
                "workers, or 'thread'"
            ) from error
        self._connection = Connection(ours)
        # Jobs that the process has loaded, by number, and what it has unpickled for them
        self._jobs: weakref.WeakValueDictionary[int, Job] = (
            weakref.WeakValueDictionary()
        )
        self._shared_reader: weakref.ref[SharedReader] | None = None
        self._has_loaded_job = False
        # Number of unanswered requests, including those about to be sent; counted by `ProcessPool`.
        self.pending = 0
        self._send_lock = threading.Lock()
        self._last_request = _Request()
        self._last_request.over.set()
        self._reaping = threading.Lock()

    def run(self, job: Job, request: ReadPiece) -> PieceRead:
        """Has the process read a piece, and waits for it. The timing has the process's id.

        Raises:
            LostError: If the process has died.
            Exception: Whatever the worker raised.
        """
        sent = before = _Request()
        try:
            with self._send_lock:
                before = self._last_request
                if (
                    before.over.is_set()
                    and not before.lost
                    and self._process.poll() is not None
                ):
                    before.lost = True  # for other threads that use this worker
                    raise LostError("idle" if self._has_loaded_job else "starting")
                self._last_request = sent
                if job.number not in self._jobs:
                    before.over.wait()
                    self._load(job)
                self._connection.send(request)
            before.over.wait()
            answer, _ = self._connection.receive()
        except (OSError, EOFError):
            sent.lost = True
            # If the worker died before this request was its turn, this request did not kill it.
            before.over.wait()
            raise LostError(
                "before"
                if before.lost
                else "at work"
                if self._has_loaded_job
                else "starting"
            ) from None
        finally:
            sent.over.set()
        if isinstance(answer, Raised):
            raise unwrap(answer.error, f"worker process {self._process.pid}")
        assert isinstance(answer, PieceRead)
        return answer._replace(
            timing=Timing(*answer.timing)._replace(worker=self._process.pid)
        )

    def preload(self, job: Job) -> None:
        """Loads a job before there is a piece to read. If the process has died, the first `run` raises.

        Raises:
            WorkerError: If the job can't be loaded.
        """
        with self._send_lock, contextlib.suppress(OSError, EOFError):
            self._load(job)

    def _load(self, job: Job) -> None:
        has_reader = (
            self._shared_reader is not None
            and self._shared_reader() is job.shared_reader
        )
        self._shared_reader = None
        if not has_reader:
            self._jobs.clear()
        job.load(self._connection, has_reader, tuple(self._jobs))
        self._jobs[job.number] = job
        self._shared_reader = weakref.ref(job.shared_reader)
        self._has_loaded_job = True

    def text(self) -> str:
        """The process, whether it is stopped, and its Python stack."""
        process = self._process.pid
        state = state_of(process)
        if state in ("T", "t"):
            return (
                f"worker process {process}, which is stopped (SIGSTOP; kill -CONT "
                f"{process} continues it)"
            )
        # Before it has loaded a job, it may not be ready for the signal.
        if self._has_loaded_job:
            stack = self._stacks.read(process)
        else:
            stack = ""
        return f"worker process {process}{STATES.get(state, '')}{stack}"

    def stop(self) -> None:
        """Asks the process to exit, and wakes up threads that wait for it."""
        self._connection.shutdown()

    def reap(self, deadline: float) -> str:
        """Waits for the process to exit, kills it at the deadline, and returns how it ended, as text."""
        self._connection.shutdown()
        with self._reaping:
            try:
                code = self._process.wait(max(0.0, deadline - monotonic()))
            except subprocess.TimeoutExpired:
                self._process.kill()
                code = self._process.wait()
            # Threads that wait for an answer see the end first: a closed descriptor may soon be that of a new worker.
            self._last_request.over.wait(_WAKING)
            self._connection.close()
            self._stacks.close()
        if code >= 0:
            return f"({self._process.pid}) ended with exit code {code}"
        if code == -9:
            killed = " (SIGKILL: often the OOM killer, when memory is short)"
        else:
            killed = ""
        return f"({self._process.pid}) was killed by signal {-code}{killed}"


def _spawn(
    python: str,
) -> tuple[subprocess.Popen[bytes], socket.socket, WorkerStacks]:
    """Starts a process; returns it with this end of the connection, and the file for its stacks."""
    _open_standard_descriptors()
    ours, theirs = socket.socketpair()
    with theirs, contextlib.ExitStack() as unless_started:
        unless_started.enter_context(ours)
        stacks = unless_started.enter_context(contextlib.closing(WorkerStacks()))
        descriptors = theirs.fileno(), stacks.descriptor
        arguments = map(str, (*descriptors, os.getpid()))
        command = [python, "-P", "-m", "loadax.loader.workers.main", *arguments]
        with _no_interrupts():
            process = subprocess.Popen(  # noqa: S603 - this interpreter and our own module
                command,
                stdin=subprocess.DEVNULL,
                env=_environment(),
                pass_fds=descriptors,
            )
        unless_started.pop_all()
    return process, ours, stacks


@contextlib.contextmanager
def _no_interrupts() -> Iterator[None]:
    """Blocks SIGINT in processes started meanwhile: a Ctrl-C must not end a worker before it can ignore the signal."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:  # the next line may raise KeyboardInterrupt too
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _open_standard_descriptors() -> None:
    """Opens those of 0, 1 and 2 that a daemon has closed: else sockets and memory get them, and what C code prints."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


def _environment() -> dict[str, str]:
    # The import path of this process, including its own changes. An empty entry is the current folder.
    path = os.pathsep.join(
        folder or str(Path.cwd()) for folder in sys.path if isinstance(folder, str)
    )
    return {
        **_ONE_THREAD,
        **_KEEP_FREED_MEMORY,
        **os.environ,
        **_NO_ACCELERATORS,
        **mark(),
        "PYTHONPATH": path,
    }
