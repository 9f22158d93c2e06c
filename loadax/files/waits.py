"""Counts the seconds that each thread has waited for answers of remote storage."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

_of_thread = threading.local()


def storage_seconds() -> float:
    """Seconds that this thread has waited so far."""
    seconds: float = getattr(_of_thread, "seconds", 0.0)
    return seconds


@contextmanager
def waiting_for_storage() -> Iterator[None]:
    """A block in which this thread waits."""
    began = perf_counter()
    try:
        yield
    finally:
        _of_thread.seconds = storage_seconds() + perf_counter() - began
