"""RunWatch: the threads that watch a run."""

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import TypeAlias, final

from loadax.core.log import log

# Looks after something; returns the seconds until it should be called again. Its arguments: whether this is the last
# time, and the time of `perf_counter` at which the process was resumed last. Time for which it was stopped (SIGSTOP, a
# frozen cgroup, a suspended machine) is no time of waiting.
Check: TypeAlias = Callable[[bool, float], float]

_NAP = 0.5  # longest sleep, in seconds
# seconds by which a sleep ends late if the process was stopped, or some code has held the GIL
_LATE = 2.0
_CLOSE_TIMEOUT = 1.0  # seconds that closing waits for the last checks


@final
class RunWatch:
    """Calls each check from a thread of its own, from `start` to `close`, so that none waits for another.

    A check that raises is not called again.

    Args:
        checks: What to call.
    """

    def __init__(self, checks: Sequence[Check]):
        self._process = os.getpid()
        self._wakes: dict[Check, SimpleQueue[None]] = {
            check: SimpleQueue() for check in checks
        }
        self._threads: dict[Check, threading.Thread] = {}
        self._closed = False
        # When the process was resumed last. Of all threads: one that is stopped in the middle of its check, which may
        # wait for another process, can't tell the two apart; another one that naps can.
        self._resumed = float("-inf")
        # reentrant: garbage collection may close this watch while it starts
        self._lock = threading.RLock()

    def start(self) -> None:
        """Starts the threads, unless they run or are closed already."""
        with self._lock:  # several threads may share the iterator
            for check, wake in self._wakes.items():
                if not self._closed and (
                    check not in self._threads or self._threads[check].ident is None
                ):
                    thread = threading.Thread(
                        target=self._run,
                        args=(check, wake),
                        name="loadax-watch",
                        daemon=True,
                    )
                    # Before it runs: a Ctrl-C may come as soon as it does, and the next call would start another one.
                    self._threads[check] = thread
                    thread.start()

    def close(self) -> None:
        """Has all checks called for the last time, and waits briefly for them. Idempotent."""
        if os.getpid() != self._process:
            # a fork does not have the threads, and may have a copy of a lock that is held
            return
        with self._lock:
            self._closed = True
            threads = [
                thread
                for thread in self._threads.values()
                if thread.ident is not None
            ]
        self.wake()
        if threading.current_thread() not in threads:
            for thread in threads:
                # a Ctrl-C during `start` can leave a thread that never begins
                with suppress(RuntimeError):
                    thread.join(_CLOSE_TIMEOUT)

    def wake(self) -> None:
        """Has all checks called now."""
        for wake in self._wakes.values():
            wake.put(None)  # also from garbage collection, so without a lock

    def _run(self, check: Check, wake: "SimpleQueue[None]") -> None:
        closing = False
        due = float("-inf")
        while not closing:
            closing = self._closed
            began = perf_counter()
            if not closing and began < due:
                with suppress(Empty):
                    wake.get(timeout=min(due - began, _NAP))
                    due = began  # woken
                if perf_counter() - began > _NAP + _LATE:
                    self._resumed = perf_counter()
                continue
            try:
                due = check(closing, self._resumed) + perf_counter()
            except Exception:  # noqa: BLE001 - whatever it is, it is logged, and must not end the run
                log.exception(
                    "one of the checks of this run has failed and is not called "
                    "again; the run goes on"
                )
                break
        # for a second thread, if a Ctrl-C came while the first one began
        wake.put(None)
