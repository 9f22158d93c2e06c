"""The threads that read and place. No other module starts threads."""

import os
import threading
from time import monotonic
from typing import final

from loadax.loader.execution.executor import PieceExecutor
from loadax.loader.execution.scheduler import PrefetchScheduler

# seconds that closing waits for pieces under way, in all; the threads are daemons, so none can hold up the end
_PATIENCE = 1.0
_NAME = "loadax-worker-"


@final
class ThreadPool:
    """Threads that do a scheduler's tasks until it is closed.

    Args:
        scheduler: Scheduler of the tasks.
        executor: Executor that reads for these threads; it says how many they are.
    """

    def __init__(self, scheduler: PrefetchScheduler, executor: PieceExecutor):
        self._scheduler = scheduler
        self._executor = executor
        self._process = os.getpid()
        self._threads = [
            threading.Thread(target=_work, args=(scheduler,), name=f"{_NAME}{number}", daemon=True)
            for number in range(executor.concurrency)
        ]
        try:
            for thread in self._threads:
                thread.start()
        except BaseException:  # an interrupt, or no thread to be had: those that have begun must not stay
            scheduler.close()
            raise

    def close(self) -> None:
        """As `pause`, and ends the workers of the executor too."""
        if os.getpid() != self._process:
            # a copy of this process by fork, at its end: it has none of the threads, and the processes are not its own
            return
        self._scheduler.close()
        self._executor.close()
        self.pause()

    def pause(self) -> bool:
        """Closes the scheduler and waits for the threads, not for long; whether all have ended.

        Idempotent; from any thread.

        A worker (of any pool) that collected the iterator as garbage does not wait: it may hold a lock that others need
        to end.
        """
        self._scheduler.close()
        if threading.current_thread().name.startswith(_NAME):
            return False
        deadline = monotonic() + _PATIENCE
        for thread in (thread for thread in self._threads if thread.ident is not None):
            thread.join(max(0.0, deadline - monotonic()))
        return not any(thread.is_alive() for thread in self._threads)


def _work(scheduler: PrefetchScheduler) -> None:
    try:
        while (task := scheduler.next_task()) is not None:
            task()
            # Drop the batch's memory now, not when the next task comes.
            del task
    except BaseException as error:  # noqa: BLE001 - say, no memory for the next run: the consumer must not wait for ever
        scheduler.abort(error)
