"""The only file that starts threads."""

import threading
from time import monotonic
from typing import final

from loadax.loader.prefetch import Window

_PATIENCE = 5.0  # seconds that closing waits for pieces under way, in all; the threads are daemons, so none can hold up the end


@final
class Pool:
    """Threads that do a window's tasks until it is closed."""

    def __init__(self, window: Window, workers: int):
        self._window = window
        self._threads = [
            threading.Thread(target=_work, args=(window,), name=f"loadax-worker-{number}", daemon=True)
            for number in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Closes the window and waits for the threads. Idempotent; from any thread, one of its own included."""
        self._window.close()
        deadline = monotonic() + _PATIENCE
        for thread in self._threads:
            if thread is not threading.current_thread() and thread.is_alive():
                thread.join(max(0.0, deadline - monotonic()))


def _work(window: Window) -> None:
    try:
        while (task := window.claim()) is not None:
            task()
            # Drop the batch's memory now, not when the next task comes.
            del task
    except BaseException as error:  # noqa: BLE001 - say, no memory for the next run: the consumer must not wait for ever
        window.abort(error)
