"""RunWatch: the one thread that watches a run."""

import threading
from collections.abc import Callable, Sequence
from typing import final

Check = Callable[[bool], float]
"""Looks after something; returns the seconds until it should be called again. Its argument is True the last time."""

_CLOSE_TIMEOUT = 1.0  # seconds that closing waits for the last checks


@final
class RunWatch:
    """Calls checks from a thread of its own, from `start` to `close`.

    Args:
        checks: What to call.
    """

    def __init__(self, checks: Sequence[Check]):
        self._checks = checks
        self._wake = threading.Event()
        self._closed = False
        self._thread: threading.Thread | None = None
        self._lock = threading.RLock()  # reentrant: garbage collection may close this watch while it starts

    def start(self) -> None:
        """Starts the thread, unless it runs or is closed already."""
        with self._lock:  # several threads may share the iterator
            if self._thread is None and self._checks and not self._closed:
                thread = threading.Thread(target=self._run, name="loadax-watch", daemon=True)
                thread.start()
                self._thread = thread

    def close(self) -> None:
        """Has all checks called for the last time, and waits briefly for them. Idempotent."""
        with self._lock:
            self._closed = True
            thread = self._thread
        self._wake.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(_CLOSE_TIMEOUT)

    def _run(self) -> None:
        closing = False
        while not closing:
            closing = self._closed
            delay = min(check(closing) for check in self._checks)
            if not closing:
                self._wake.wait(None if delay == float("inf") else delay)
