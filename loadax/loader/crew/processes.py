"""The trainer's side of worker processes: starts them, gives them pieces, and starts others where one dies."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import warnings
import weakref
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any, Literal, final

import numpy as np
from numpy.typing import NDArray

from loadax.errors import ClosedError, WorkerError
from loadax.loader.crew.arena import Arena
from loadax.loader.crew.channel import Channel
from loadax.loader.crew.failures import Failure, unwrap
from loadax.loader.crew.orders import Fill, Filled, Load, Loaded, Missing
from loadax.loader.crew.parcel import Parcel, pack
from loadax.loader.slab import SlabPlan
from loadax.loader.stats import Timing
from loadax.protocols import Visits
from loadax.reader import Reader
from loadax.transforms import name_of

_PATIENCE = 1.0  # seconds that workers have to end, in all, before they are killed
_MOST_MODULES = 64  # that a worker may lack; beyond that something else is wrong
_LIVES = 2  # a piece that has killed so many workers is not tried again
_IN_HAND = 2  # pieces that a worker is given at a time: it goes on with the next one while the one before is on its way back

# What could make a worker use an accelerator; and the threads of numerical libraries, which would be those of all cores once more in every worker.
_HIDDEN = {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "-1", "HIP_VISIBLE_DEVICES": "-1", "ROCR_VISIBLE_DEVICES": "-1"}
_SINGLE = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


@final
class Processes:
    """Worker processes, started at once and ended by `close`.

    Each does one piece at a time, since users' functions may rely on that, and has the next one in hand.

    Args:
        count: how many.
        least: how many are started now; the others when pieces would have to wait for them. None: all.

    Raises:
        WorkerError: when there is no interpreter to start.
    """

    def __init__(self, count: int, least: int | None = None):
        self._free = threading.Condition()  # there may be a worker with room in its hand
        self._closed = False
        self.count = count
        """How many they are meant to be."""
        self._started = count if least is None else min(least, count)
        self._workers: list[_Worker] = []
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

    def run(self, job: "Job", order: Fill) -> Timing:
        """Has a worker do it; waits until it is done. From any number of threads; `threads` of them keep all workers busy.

        Raises:
            WorkerError: when two workers died of it.
            Exception: what it raised over there.
        """
        lost: Counter[When] = Counter()
        while True:
            worker = self._claim()
            try:
                timing = worker.run(job, order)
            except _LostError as gone:
                died = self._replace(worker)
                lost[gone.when] += 1
                self._report(gone.when, lost[gone.when], died, order)
            else:
                return timing
            finally:
                with self._free:
                    worker.in_hand -= 1
                    self._free.notify()

    def _claim(self) -> "_Worker":
        """The worker that has least in hand; waits for one that has room there."""
        while not self._closed:
            with self._free:
                worker = min(self._workers, key=lambda each: each.in_hand, default=None)
                if worker is not None and worker.in_hand < _IN_HAND:
                    worker.in_hand += 1
                    return worker
                more = self._started < self.count
                self._started += more
                if not more and not self._closed:
                    self._free.wait()
            if more:
                self._start()
        raise ClosedError("the worker processes were closed")

    def _report(self, when: "When", times: int, died: str, order: Fill) -> None:
        """Says that a worker is gone, for this piece the so-manyth one.

        Raises:
            WorkerError: when no other one should try.
        """
        rows = _shown(np.frombuffer(order.rows, np.int64))
        if when == "at work" and times == _LIVES:
            raise WorkerError(
                f"{_LIVES} worker processes died, one after the other, reading {rows}; the last one {died}. Look at these rows, and at "
                "what the maps do with them, with num_workers=0; or use fewer workers where memory is short"
            ) from None
        if (
            when == "unborn" and times == self.count + _LIVES
        ):  # all that were there at first, and as many of the new ones as may die
            raise WorkerError(
                f"{times} worker processes ended before they had taken up the data; the last one {died}. What they wrote to stderr may say "
                "why; or use worker_type='thread'"
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
            workers, self._workers = self._workers, []
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

    def _start(self) -> None:
        worker = _Worker()
        with self._free:
            if not self._closed:
                self._workers.append(worker)
                self._free.notify_all()
                return
        worker.stop()
        worker.bury(monotonic() + _PATIENCE)

    def _replace(self, worker: "_Worker") -> str:
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


@final
class Job:
    """What workers need to know to read pieces of one kind of batch, and the memory that they write to.

    Args:
        processes: that read.
        reader: of the rows.
        plan: of the memory of steps.
        key_seed: of the random keys, where there are any.
        keep: idle bytes of memory that are kept for reuse.

    Raises:
        WorkerError: when the reader can't be sent to another process; names what can't.
    """

    def __init__(self, processes: Processes, reader: Reader, plan: SlabPlan, key_seed: int | None, keep: int):
        self.arena = Arena(keep)
        self._processes = processes
        self._content = (reader, plan, key_seed)
        self._lock = threading.Lock()
        self._by_value: list[str] = []
        self._descriptors: list[int] = []  # of parcels, older ones too: a worker may be about to open one
        weakref.finalize(self, _close, self.arena, self._descriptors)
        self._parcel = self._pack()

    def fill(self, memory: NDArray[np.uint8], count: int, low: int, per_step: int, visits: Visits) -> Timing:
        """Has a worker read visits to the rows from `low` on of a run of steps whose memory, a lease of the arena, is `memory`."""
        rows, epochs = (np.ascontiguousarray(each, np.int64).tobytes() for each in visits)
        return self._processes.run(self, Fill(self.arena.slot(memory), count, low, per_step, rows, epochs))

    def load(self, channel: Channel) -> None:
        """Tells a worker about this job.

        Raises:
            WorkerError: when the worker can't make use of it.
        """
        for _ in range(_MOST_MODULES):
            parcel = self._parcel
            channel.send(Load(parcel.message, parcel.arrays), (parcel.descriptor, self.arena.descriptor))
            answer, _ = channel.receive()
            if isinstance(answer, Loaded):
                return
            if isinstance(answer, Failure):
                error = WorkerError(f"a worker process could not take up the data: {answer.line}; {_OR_THREADS}")
                error.add_note(f"loadax: in the worker process:\n{answer.traceback}")
                raise error
            assert isinstance(answer, Missing)
            self._send_by_value(answer.module, parcel)

    def _send_by_value(self, module: str, sent: Parcel) -> None:
        """From now on, what comes from a module goes by value.

        Raises:
            WorkerError: when that can't help.
        """
        with self._lock:
            if self._parcel is not sent:
                return  # another worker has asked for something meanwhile: first see what comes of that
            if module in self._by_value or module not in sys.modules:
                raise WorkerError(
                    f"a worker process can't import {module!r}, which the data or its maps need; install it, or put its folder on sys.path"
                )
            self._by_value.append(module)
            self._parcel = self._pack()

    def _pack(self) -> Parcel:
        try:
            parcel = pack(self._content, self._by_value)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise WorkerError(
                f"{_culprit(self._content[0])} can't be sent to a worker process: {reason}; {_OR_THREADS}"
            ) from error
        self._descriptors.append(parcel.descriptor)
        return parcel


_OR_THREADS = "make it picklable (open files and connections again in __setstate__), or use worker_type='thread'"


def _culprit(reader: Reader) -> str:
    """The part of a reader that does not pickle."""
    parts = [(f"map {name_of(each.function)}", each.function) for each in reader.maps]
    for name, part in (("the source, " + repr(reader.source), reader.source), *parts):
        try:
            os.close(pack(part).descriptor)
        except Exception:  # noqa: BLE001 - whatever it is, this is the one
            return name
    return "the data"


def _close(arena: Arena, descriptors: list[int]) -> None:
    arena.close()
    for descriptor in descriptors:
        os.close(descriptor)


When = Literal["at work", "idle", "unborn", "before"]
"""Whether a worker was lost with the piece that it was to do, before it was given that, before it could do any, or with an earlier piece."""


class _LostError(Exception):
    """A worker is gone."""

    def __init__(self, when: When):
        self.when: When = when


@final
class _Sent:
    """An order that a worker was sent: whether it was answered, or never will be."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.lost = False


@final
class _Worker:
    """One process, and this end of the connection to it. It answers in the order in which it was asked."""

    def __init__(self) -> None:
        if not sys.executable:
            raise WorkerError(
                "worker_type='process': this program has no Python interpreter to start (sys.executable is empty); use worker_type='thread'"
            )
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-P", "-m", "loadax.loader.worker", str(theirs.fileno()), str(os.getpid())]
            with _no_interrupts():
                self._process = subprocess.Popen(  # noqa: S603 - this interpreter and a module of ours
                    command, stdin=subprocess.DEVNULL, env=_environment(), pass_fds=[theirs.fileno()]
                )
        self._channel = Channel(ours)
        self._job: weakref.ref[Job] | None = None
        self._begun = False  # whether it has ever taken up a job
        self.in_hand = 0
        """Orders that were sent and not answered, or are about to be; counted by `Processes`."""
        self._asking = threading.Lock()
        self._newest = _Sent()  # the order that was sent last
        self._newest.over.set()
        self._burying = threading.Lock()

    def run(self, job: Job, order: Fill) -> Timing:
        """Has the process do it.

        Raises:
            _LostError: when it is gone.
            Exception: what it raised over there.
        """
        mine = before = _Sent()
        try:
            with self._asking:
                before = self._newest
                if before.over.is_set() and not before.lost and self._process.poll() is not None:
                    before.lost = True  # for whoever else has this worker in hand
                    raise _LostError("idle" if self._begun else "unborn")
                self._newest = mine
                if self._job is None or self._job() is not job:
                    before.over.wait()
                    self._job = None
                    job.load(self._channel)
                    self._job = weakref.ref(job)
                    self._begun = True
                self._channel.send(order)
            before.over.wait()
            answer, _ = self._channel.receive()
        except (OSError, EOFError):
            mine.lost = True
            # Of a worker that was gone before this order was due, it is not this order that killed it.
            before.over.wait()
            raise _LostError("before" if before.lost else "at work" if self._begun else "unborn") from None
        finally:
            mine.over.set()
        if isinstance(answer, Failure):
            raise unwrap(answer, f"worker process {self._process.pid}")
        assert isinstance(answer, Filled)
        return Timing(*answer.timing)._replace(worker=self._process.pid)

    def stop(self) -> None:
        """Tells the process to end, and the thread that waits for it that it is gone."""
        self._channel.shut()

    def bury(self, deadline: float) -> str:
        """Waits for the end of the process, or brings it about; how that was."""
        self._channel.shut()
        with self._burying:
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


@contextlib.contextmanager
def _no_interrupts() -> Iterator[None]:
    """A process that is started meanwhile has them blocked: a Ctrl-C must not end a worker that is not yet able to say that it ignores it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:  # an interrupt may come out of the next line too
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _environment() -> dict[str, str]:
    # In the order of this process, also what it has put there itself. An empty entry stands for the folder it is in.
    path = os.pathsep.join(each or str(Path.cwd()) for each in sys.path if isinstance(each, str))
    return {**_SINGLE, **os.environ, **_HIDDEN, "PYTHONPATH": path}


def _shown(rows: NDArray[Any]) -> str:
    numbers = rows.tolist()
    return (
        f"row {numbers[0]}"
        if len(numbers) == 1
        else f"{len(numbers)} rows, {str(numbers[:8])[:-1]}{', …]' if len(numbers) > 8 else ']'}"
    )
