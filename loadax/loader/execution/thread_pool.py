"""The reader threads. No other module starts threads."""

import os
import threading
from time import monotonic
from typing import final

from loadax.loader.execution.scheduler import PrefetchScheduler
from loadax.loader.workers.process_pool import ProcessPool

# seconds that closing waits for pieces under way, in all; the threads are daemons, so none can hold up the end
_PATIENCE = 1.0
_NAME = "loadax-worker-"


@final
class Pool:
    """Threads that do a window's tasks until it is closed.

    Args:
        window: gives the tasks.
        workers: how many threads.
        processes: that these threads have do the reading; None: they read themselves.
    """

    def __init__(self, window: PrefetchScheduler, workers: int, processes: ProcessPool | None = None):
        self._window = window
        self._processes = processes
        self._process = os.getpid()
        self._threads = [
            threading.Thread(target=_work, args=(window,), name=f"{_NAME}{number}", daemon=True)
            for number in range(workers)
        ]
        try:
            for thread in self._threads:
                thread.start()
        except BaseException:  # an interrupt, or no thread to be had: those that have begun must not stay
            window.close()
            raise

    def close(self) -> None:
        """As `pause`, and ends the processes too."""
        if os.getpid() != self._process:
            # a copy of this process by fork, at its end: it has none of the threads, and the processes are not its own
            return
        self._window.close()
        if self._processes is not None:
            self._processes.close()
        self.pause()

    def pause(self) -> bool:
        """Closes the window and waits for the threads, not for long; whether all have ended.

        Idempotent; from any thread.

        A worker (of any pool) that collected the iterator as garbage does not wait: it may hold a lock that others need
        to end.
        """
        self._window.close()
        if threading.current_thread().name.startswith(_NAME):
            return False
        deadline = monotonic() + _PATIENCE
        for thread in (thread for thread in self._threads if thread.ident is not None):
            thread.join(max(0.0, deadline - monotonic()))
        return not any(thread.is_alive() for thread in self._threads)


def _work(window: PrefetchScheduler) -> None:
    try:
        while (task := window.claim()) is not None:
            task()
            # Drop the batch's memory now, not when the next task comes.
            del task
    except BaseException as error:  # noqa: BLE001 - say, no memory for the next run: the consumer must not wait for ever
        window.abort(error)
