"""Thread safety, and a timeout for work that may hang."""

import random
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from time import monotonic, sleep
from typing import Any

from loadax.protocols import Integers
from loadax.testing.laws import Law, show_rows
from loadax.testing.subject import Subject

THREADS = Law(
    "threads", "workers read concurrently: reads must not share state (file positions, buffers) without a lock"
)

_THREADS = 4
_READS = 3  # of each thread
_CERTAIN = 32  # calls of a read, and returns from them, that let other threads run for certain; later ones seldom


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
    count = 1 + len(subject.sample) // 2
    jobs = [partial(read, [subject.draw(count) for _ in range(_READS)]) for _ in range(_THREADS)]
    if not run_beside(jobs, timeout):
        hung = f"{_THREADS} threads of {_READS} reads were not done after {timeout:g} s"
        raise THREADS.broken(subject.name, f"{hung} (a deadlock, or pass a larger timeout)")


@contextmanager
def _interleaved() -> Iterator[None]:
    """Lets other threads run between the calls of this one, where a switch shows what they share.

    By itself, Python switches every 5 ms, which is longer than most reads take. The n-th call or return gives way with
    probability 32 / n, so that long reads take little longer.
    """
    calls = 0
    chance = random.Random()  # noqa: S311 - of its own: a test may have seeded the one that all share

    def give_way(*_: Any) -> None:
        nonlocal calls
        calls += 1
        if chance.random() * calls < _CERTAIN:
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
    errors: list[BaseException] = []

    def run(job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:  # noqa: BLE001 - raised below, on the calling thread
            errors.append(error)

    threads = [threading.Thread(target=run, args=(job,), name="loadax-testing", daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    deadline = monotonic() + timeout
    for thread in threads:
        thread.join(max(0.0, deadline - monotonic()))
    if errors:
        raise errors[0]
    return not any(thread.is_alive() for thread in threads)
