"""Pools of threads that a Ctrl-C does not wait for."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import TypeVar

from loadax.core.context import Caller

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@contextmanager
def thread_pool(workers: int, name: str) -> Iterator[ThreadPoolExecutor]:
    """A pool whose queued calls are cancelled by an exception, and whose running ones are waited for.

    After a Ctrl-C they are not waited for: one of them may sleep, or read from a server that does not answer.

    Args:
        workers: Number of threads.
        name: Prefix of the names of the threads.
    """
    pool, wait = ThreadPoolExecutor(workers, name), True
    try:
        yield pool
    except KeyboardInterrupt:
        wait = False
        raise
    finally:
        pool.shutdown(wait, cancel_futures=True)


def call_in_threads(
    workers: int,
    name: str,
    function: Callable[[_Item, Event], _Result],
    items: Iterable[_Item],
    take: Callable[[_Result], object],
) -> None:
    """Calls a function for each item in threads, in this thread's context, and takes the results in order.

    Args:
        workers: Number of threads. At most two calls for each are queued, so memory is bounded.
        name: Prefix of the names of the threads.
        function: Function of an item, and of an event that is set when an exception ends the calls.
        items: The items.
        take: Function that is called with each result, on this thread.
    """
    over, caller = Event(), Caller()
    under_way: deque[Future[_Result]] = deque()
    with thread_pool(workers, name) as pool:
        try:
            for item in items:
                if len(under_way) > 2 * workers:
                    take(under_way.popleft().result())
                under_way.append(pool.submit(caller.run, function, item, over))
            while under_way:
                take(under_way.popleft().result())
        except BaseException:
            over.set()
            raise
