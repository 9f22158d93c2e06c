"""ThreadPool: the threads that read and place. No other module starts reader threads."""

import os
import threading
from contextlib import suppress
from time import monotonic
from typing import final

from loadax.core.context import Caller
from loadax.loader.execution.scheduler import PrefetchScheduler
from loadax.loader.slots import PieceExecutor

# Seconds that closing waits for running tasks, in total. The threads are daemons, so they don't block interpreter exit.
CLOSE_TIMEOUT = 1.0
_NAME = "loadax-worker-"


@final
class ThreadPool:
    """Threads that run a scheduler's tasks, from `start` until it is closed.

    Args:
        scheduler: Scheduler of the tasks.
        executor: Executor that reads for these threads and determines their number.
        caller: Context that the threads run in.
    """

    def __init__(
        self, scheduler: PrefetchScheduler, executor: PieceExecutor, caller: Caller
    ):
        self._scheduler = scheduler
        self._executor = executor
        self._process = os.getpid()
        self._threads = [
            threading.Thread(
                target=caller.run,
                args=(_work, scheduler),
                name=f"{_NAME}{index}",
                daemon=True,
            )
            for index in range(executor.capacity.concurrency)
        ]

    def start(self) -> None:
        """Starts the threads, once whoever closes them knows of them."""
        try:
            for thread in self._threads:
                thread.start()
        except (
            BaseException
        ):  # an interrupt, or a thread that can't start: stop those that have started
            self._scheduler.close()
            raise

    def close(self) -> bool:
        """Closes the scheduler and the executor and waits briefly for the threads; returns whether all have ended."""
        if os.getpid() != self._process:
            # This process is a fork: it does not have the threads, and does not own the worker processes.
            return False
        self._scheduler.close()
        self._executor.close()
        return self.pause()

    def pause(self) -> bool:
        """Closes the scheduler and waits briefly for the threads; returns whether all have ended.

        Idempotent and thread-safe. A worker thread (of any pool) that garbage-collects the iterator does not wait: it
        may hold a lock that others need to end.
        """
        self._scheduler.close()
        if threading.current_thread().name.startswith(_NAME):
            return False
        deadline = monotonic() + CLOSE_TIMEOUT
        for thread in (
            thread for thread in self._threads if thread.ident is not None
        ):
            # a Ctrl-C during `start` can leave a thread that never begins
            with suppress(RuntimeError):
                thread.join(max(0.0, deadline - monotonic()))
        return not any(thread.is_alive() for thread in self._threads)


def _work(scheduler: PrefetchScheduler) -> None:
    try:
        while (task := scheduler.next_task()) is not None:
            task()
            # Free the batch's memory now, not at the next task.
            del task
    except BaseException as error:  # noqa: BLE001 - such as too little memory; else the consumer would hang
        scheduler.abort(error)
