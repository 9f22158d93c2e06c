"""RunWatch: the one thread that watches a run."""

import logging
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import final

Check = Callable[[bool], float]
"""Looks after something; returns the seconds until it should be called again. Its argument is True the last time."""

_CLOSE_TIMEOUT = 1.0  # seconds that closing waits for the last checks

_log = logging.getLogger("loadax")


@final
class RunWatch:
    """Calls checks from a thread of its own, from `start` to `close`. A check that raises is not called again.

    Args:
        checks: What to call.
    """

    def __init__(self, checks: Sequence[Check]):
        self._checks = checks
        self._process = os.getpid()
        self._wake: SimpleQueue[None] = SimpleQueue()  # garbage collection may put into it at any time
        self._closed = False
        self._thread: threading.Thread | None = None
        self._lock = threading.RLock()  # reentrant: garbage collection may close this watch while it starts

    def start(self) -> None:
        """Starts the thread, unless it runs or is closed already."""
        with self._lock:  # several threads may share the iterator
            if self._closed or not self._checks or (self._thread is not None and self._thread.ident is not None):
                return
            # Known before it runs: a Ctrl-C may come as soon as it does, and the next call would start another one.
            self._thread = threading.Thread(target=self._run, name="loadax-watch", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Has all checks called for the last time, and waits briefly for them. Idempotent."""
        if os.getpid() != self._process:
            return  # a fork does not have the thread, and may have a copy of a lock that is held
        with self._lock:
            self._closed = True
            thread = self._thread
        self._wake.put(None)
        if thread is not None and thread.ident is not None and thread is not threading.current_thread():
            with suppress(RuntimeError):  # a Ctrl-C during `start` can leave a thread that never begins
                thread.join(_CLOSE_TIMEOUT)

    def _run(self) -> None:
        closing = False
        while not closing:
            closing = self._closed
            delay = min((self._call(check, closing) for check in self._checks), default=float("inf"))
            if not closing:
                with suppress(Empty):
                    self._wake.get(timeout=None if delay == float("inf") else delay)
        self._wake.put(None)  # for a second thread, if a Ctrl-C came while the first one began

    def _call(self, check: Check, closing: bool) -> float:
        try:
            return check(closing)
        except Exception:  # noqa: BLE001 - whatever it is, it is logged, and must not end what the other checks do
            _log.exception("one of the checks of this run has failed and is not called again; the run goes on")
            self._checks = [other for other in self._checks if other is not check]
            return float("inf")
