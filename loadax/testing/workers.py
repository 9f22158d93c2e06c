"""Laws of reads by several threads and in a fresh process, and a timeout for work that may hang."""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from functools import partial
from itertools import count
from time import sleep
from typing import Any

from loadax.protocols import Integers
from loadax.testing.laws import Law, show_error, show_rows
from loadax.testing.subject import Subject

THREADS = Law(
    "threads",
    "concurrent reads must not share state (file positions, buffers) without a lock",
)
PROCESS = Law(
    "fresh process",
    "a pickled source must read the same rows in another process: define it at the "
    "top level of a module of its own, and reopen files in __setstate__; or pass "
    "pickled=False to skip this check",
)

_THREADS = 4
_READS = 3  # of each thread
_SWITCHES = 200  # calls of a read, and returns from them, that let other threads run


def check_threads(subject: Subject, timeout: float) -> None:
    """Checks that four concurrent threads read the same as one."""
    barrier = threading.Barrier(_THREADS)

    def read(asked: Sequence[Integers]) -> None:
        barrier.wait(timeout)
        for rows in asked:
            with _interleaved():
                got = subject.read(rows, THREADS)
            subject.compare(got, rows, THREADS, f"in read({show_rows(rows)})")

    # Rows are drawn in advance, because a generator is not thread-safe.
    size = 1 + len(subject.sample) // 2
    jobs = [
        partial(read, [subject.draw(size) for _ in range(_READS)])
        for _ in range(_THREADS)
    ]
    if not run_beside(jobs, timeout):
        raise THREADS.broken(
            subject.name,
            f"not done after {timeout:g} s (a deadlock, or pass a larger timeout)",
        )


@contextlib.contextmanager
def _interleaved() -> Iterator[None]:
    """Lets other threads run between the calls of this one, where a switch shows what they share.

    By default, Python switches every 5 ms, which is longer than most reads take; a shorter interval finds few races.
    Only the first calls and returns give way, so that long reads take little longer.
    """
    calls = count()

    def give_way(*_: Any) -> None:
        if next(calls) < _SWITCHES:
            sleep(0)

    before = sys.getprofile()
    sys.setprofile(give_way)
    try:
        yield
    finally:
        sys.setprofile(before)


def run_beside(jobs: Sequence[Callable[[], None]], timeout: float) -> bool:
    """Runs each job on its own thread; returns whether all ended in time, or raises the first exception of a job.

    A thread that hangs can't be stopped, but is a daemon, so that the program can exit.
    """
    futures: list[Future[None]] = [Future() for _ in jobs]

    def run(job: Callable[[], None], future: Future[None]) -> None:
        try:
            job()
            future.set_result(None)
        except BaseException as error:  # noqa: BLE001 - raised below, on the calling thread
            future.set_exception(error)

    for work in zip(jobs, futures, strict=True):
        threading.Thread(
            target=run, args=work, name="loadax-testing", daemon=True
        ).start()
    done, running = wait(futures, timeout, FIRST_EXCEPTION)
    for future in done:
        future.result()
    return not running


def check_process(subject: Subject, timeout: float) -> None:
    """Checks that a fresh process reads the same from the pickled source as this one."""
    rows = subject.draw(16)
    with PROCESS.during(subject.name, "pickling it"):
        parcel = pickle.dumps((subject.source, rows))
    # Not multiprocessing, which would run the caller's script again. The search path is this process's.
    program = (
        f"import sys; sys.path[:] = {sys.path!r}; from loadax.testing.workers import "
        "answer; answer()"
    )
    with subprocess.Popen(  # noqa: S603 - the command is this interpreter and the line above
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # a module that imports JAX must not claim the accelerators
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        start_new_session=True,
    ) as child:
        try:
            reply, complaints = child.communicate(parcel, timeout)
        except subprocess.TimeoutExpired as error:
            problem = (
                f"a fresh process had not read it after {timeout:g} s (a deadlock, "
                "or pass another timeout)"
            )
            raise PROCESS.broken(subject.name, problem) from error
        finally:
            # the whole process group, because its children would keep the pipes open
            if child.returncode is None:
                os.killpg(child.pid, signal.SIGKILL)
    if child.returncode or not reply:
        last = complaints.decode(errors="replace").strip().splitlines()[-1:]
        problem = ": ".join(
            [
                f"a fresh process that read it ended with code {child.returncode}",
                *last,
            ]
        )
        raise PROCESS.broken(subject.name, problem)
    got = subject.read(rows, PROCESS, lambda _: pickle.loads(reply))  # noqa: S301 - written by `answer`
    subject.compare(
        got, rows, PROCESS, f"in a fresh process, in read({show_rows(rows)})"
    )


def answer() -> None:
    """Main function of the fresh process: unpickles a source and rows from stdin, and writes the rows to stdout."""
    # Prints of the source must not get into the reply.
    reply = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        source, rows = pickle.load(sys.stdin.buffer)  # noqa: S301 - written by the process that started this one
        result = pickle.dumps(source.read(rows))
    except Exception as error:  # noqa: BLE001 - reported to the parent
        sys.exit(" ".join(f"it raised {show_error(error)}".split()))
    with reply:
        reply.write(result)
