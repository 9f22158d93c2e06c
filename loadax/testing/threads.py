"""Thread safety, and a timeout for work that may hang."""

import sys
import threading
from collections.abc import Callable, Sequence
from time import monotonic

from loadax.testing.laws import Law
from loadax.testing.subject import Subject

THREADS = Law(
    "threads",
    "workers read concurrently: reads must not share state (file positions, buffers) without a lock",
)

_THREADS = 8
_READS = 16  # of each thread
_SWITCH = 1e-5  # seconds of the GIL's switch interval: 500 times as often as by default


def check_threads(subject: Subject, timeout: float) -> None:
    """Checks that eight concurrent threads read the same as one."""
    barrier = threading.Barrier(_THREADS)
    # Drawn in advance, because a generator is not thread-safe.
    asked = [[subject.draw(1 + len(subject.sample) // 2) for _ in range(_READS)] for _ in range(_THREADS)]

    def reader(thread: int) -> Callable[[], None]:
        def read() -> None:
            barrier.wait(timeout)
            for rows in asked[thread]:
                subject.compare(subject.read(rows, THREADS), rows, THREADS)

        return read

    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH)
    try:
        done = run_beside([reader(thread) for thread in range(_THREADS)], timeout)
    finally:
        sys.setswitchinterval(before)
    if not done:
        raise THREADS.broken(
            subject.name,
            f"{_THREADS} threads of {_READS} reads were not done after {timeout:g} s (a deadlock, "
            "or pass a larger timeout)",
        )


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

    threads = [
        threading.Thread(target=run, args=(job,), name=f"loadax-testing-{index}", daemon=True)
        for index, job in enumerate(jobs)
    ]
    for thread in threads:
        thread.start()
    deadline = monotonic() + timeout
    for thread in threads:
        thread.join(max(0.0, deadline - monotonic()))
    if errors:
        raise errors[0]
    return not any(thread.is_alive() for thread in threads)
