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

from loadax.errors import WorkerError
from loadax.loader.metrics.stats import Timing
from loadax.loader.workers.connection import Connection
from loadax.loader.workers.job import Job, SharedReader
from loadax.loader.workers.messages import PieceRead, ReadPiece
from loadax.loader.workers.remote_errors import Failure, unwrap

# What could make a worker use an accelerator; and the threads of numerical libraries, which would be those of all cores
# once more in every worker.
_HIDDEN = {
    "JAX_PLATFORMS": "cpu",
    "CUDA_VISIBLE_DEVICES": "-1",
    "HIP_VISIBLE_DEVICES": "-1",
    "ROCR_VISIBLE_DEVICES": "-1",
}
_SINGLE = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
# Bytes. Every piece takes and frees arrays of the same few sizes: glibc would give them back to the system each time,
# and clear their pages anew.
_REUSE = {"MALLOC_MMAP_THRESHOLD_": str(4 << 20), "MALLOC_TRIM_THRESHOLD_": str(16 << 20)}

When = Literal["at work", "idle", "starting", "before"]
"""When a worker was lost: with its piece, before it got one, before it could do any, or with an earlier piece."""


class LostError(Exception):
    """A worker is gone."""

    def __init__(self, when: When):
        self.when: When = when


@final
class _Sent:
    """A request that a worker was sent: whether it was answered, or never will be."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.lost = False


@final
class WorkerHandle:
    """One worker process and this end of the connection to it. Answers come in the order of the requests."""

    def __init__(self) -> None:
        if not sys.executable:
            raise WorkerError(
                "worker_type='process': this program has no Python interpreter to start (sys.executable is empty); use "
                "worker_type='thread'"
            )
        try:
            self._process, ours = _begin()
        except OSError as error:
            raise WorkerError(
                f"worker_type='process': can't start {sys.executable}: {error}; use fewer workers, or "
                "worker_type='thread'"
            ) from error
        self._channel = Connection(ours)
        self._job: weakref.ref[Job] | None = None  # that the process has taken up
        self._shared_reader: weakref.ref[SharedReader] | None = None  # that the process has unpacked
        self._begun = False  # whether it has ever taken up a job
        self.in_hand = 0
        """Requests that were sent and not answered, or are about to be; counted by `ProcessPool`."""
        self._asking = threading.Lock()
        self._newest = _Sent()  # the request that was sent last
        self._newest.over.set()
        self._reaping = threading.Lock()

    def run(self, job: Job, request: ReadPiece) -> Timing:
        """Has the process read a piece, and waits until it is done.

        Raises:
            LostError: when the process is gone.
            Exception: what it raised over there.
        """
        sent = before = _Sent()
        try:
            with self._asking:
                before = self._newest
                if before.over.is_set() and not before.lost and self._process.poll() is not None:
                    before.lost = True  # for whoever else has this worker in hand
                    raise LostError("idle" if self._begun else "starting")
                self._newest = sent
                if self._job is None or self._job() is not job:
                    before.over.wait()
                    self._load(job)
                self._channel.send(request)
            before.over.wait()
            answer, _ = self._channel.receive()
        except (OSError, EOFError):
            sent.lost = True
            # Of a worker that was gone before this request was due, it is not this request that killed it.
            before.over.wait()
            raise LostError("before" if before.lost else "at work" if self._begun else "starting") from None
        finally:
            sent.over.set()
        if isinstance(answer, Failure):
            raise unwrap(answer, f"worker process {self._process.pid}")
        assert isinstance(answer, PieceRead)
        return Timing(*answer.timing)._replace(worker=self._process.pid)

    def take_up(self, job: Job) -> None:
        """Tells the process about a job before there is a piece to read. If it is gone, the first piece says so.

        Raises:
            WorkerError: when it can't make use of the job.
        """
        with self._asking, contextlib.suppress(OSError, EOFError):
            self._load(job)

    def _load(self, job: Job) -> None:
        has_reader = self._shared_reader is not None and self._shared_reader() is job.shared_reader
        self._job = self._shared_reader = None
        job.load(self._channel, has_reader)
        self._job, self._shared_reader, self._begun = weakref.ref(job), weakref.ref(job.shared_reader), True

    def stop(self) -> None:
        """Tells the process to end, and the thread that waits for it that it is gone."""
        self._channel.shut()

    def reap(self, deadline: float) -> str:
        """Waits for the process to end, kills it at the deadline, and returns how it ended, as a message says it."""
        self._channel.shut()
        with self._reaping:
            try:
                code = self._process.wait(max(0.0, deadline - monotonic()))
            except subprocess.TimeoutExpired:
                self._process.kill()
                code = self._process.wait()
            self._channel.close()
        if code >= 0:
            return f"({self._process.pid}) ended with exit code {code}"
        killed = " (SIGKILL: often the system, when memory is short)" if code == -9 else ""
        return f"({self._process.pid}) was killed by signal {-code}{killed}"


def _begin() -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Starts a process; with this end of the connection to it."""
    ours, theirs = socket.socketpair()
    with theirs, contextlib.ExitStack() as unless_started:
        unless_started.enter_context(ours)
        command = [sys.executable, "-P", "-m", "loadax.loader.workers.main", str(theirs.fileno()), str(os.getpid())]
        with _no_interrupts():
            process = subprocess.Popen(  # noqa: S603 - this interpreter and a module of ours
                command, stdin=subprocess.DEVNULL, env=_environment(), pass_fds=[theirs.fileno()]
            )
        unless_started.pop_all()
    return process, ours


@contextlib.contextmanager
def _no_interrupts() -> Iterator[None]:
    """A process that is started meanwhile has them blocked.

    A Ctrl-C must not end a worker that is not yet able to say that it ignores it.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:  # an interrupt may come out of the next line too
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _environment() -> dict[str, str]:
    # In the order of this process, also what it has put there itself. An empty entry stands for the folder it is in.
    path = os.pathsep.join(each or str(Path.cwd()) for each in sys.path if isinstance(each, str))
    return {**_SINGLE, **_REUSE, **os.environ, **_HIDDEN, "PYTHONPATH": path}
