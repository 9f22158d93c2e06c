"""Ends requests before Python ends.

obstore answers on threads of its own, which need Python's lock for a moment after an answer has come. Up to Python
3.13, a thread that asks for the lock while Python ends is ended in the middle of native code, and that aborts the
process: one in five programs that had just read a remote file ended with SIGABRT.
"""

import asyncio
import atexit
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

_LIMIT = 2.0  # seconds for requests to be cancelled
_LINGER = 0.1  # seconds for obstore's threads to let go of the last answers

_open: dict[asyncio.AbstractEventLoop, "asyncio.Task[Any]"] = {}
_changed = threading.Condition()
# set once Python ends: threads that read on must not begin requests
_over = threading.Event()


@contextmanager
def cancelled_at_exit() -> Iterator[None]:
    """Cancels the current task, which waits for requests, if Python ends before they do.

    Raises:
        asyncio.CancelledError: If Python has begun to end.
    """
    _register(os.getpid())
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    with _changed:
        if _over.is_set():
            raise asyncio.CancelledError
        _open[loop] = task
    try:
        yield
    finally:
        with _changed:
            del _open[loop]
            _changed.notify_all()


@cache
def _register(process: int) -> None:
    atexit.register(_end, process)


def _end(process: int) -> None:
    if os.getpid() != process:  # a fork has neither the tasks nor obstore's threads
        return
    with _changed:
        _over.set()
        for loop, task in _open.items():
            loop.call_soon_threadsafe(task.cancel)
        _changed.wait_for(lambda: not _open, _LIMIT)
    time.sleep(_LINGER)
