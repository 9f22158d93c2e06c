"""Pools of threads that a Ctrl-C does not wait for."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import Context, copy_context


@contextmanager
def thread_pool(workers: int, name: str) -> Iterator[ThreadPoolExecutor]:
    """A pool whose queued calls are cancelled by an exception, and whose running ones are waited for.

    After a Ctrl-C they are not waited for: one of them may sleep, or read from a server that does not answer. The
    threads have the context variables of the caller.

    Args:
        workers: Number of threads.
        name: Prefix of the names of the threads.
    """
    pool = ThreadPoolExecutor(workers, name, _enter, (copy_context(),))
    wait = True
    try:
        yield pool
    except KeyboardInterrupt:
        wait = False
        raise
    finally:
        pool.shutdown(wait, cancel_futures=True)


def _enter(context: Context) -> None:
    for variable, value in context.items():
        variable.set(value)
