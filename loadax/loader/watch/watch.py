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

    def start(self) -> None:
        """Starts the thread, unless it runs or is closed already."""
        if self._thread is None and self._checks and not self._closed:
            self._thread = threading.Thread(target=self._run, name="loadax-watch", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Has all checks called for the last time, and waits briefly for them. Idempotent."""
        self._closed = True
        self._wake.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_CLOSE_TIMEOUT)

    def _run(self) -> None:
        closing = False
        while not closing:
            closing = self._closed
            delay = min(check(closing) for check in self._checks)
            if not closing:
                self._wake.wait(None if delay == float("inf") else delay)
