"""`--executor`: the text of the option as a function that makes a `concurrent.futures.Executor`."""

import argparse
import multiprocessing
import os
import re
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from typing import Any, final

from loadax.errors import ArgumentError, UnsupportedError

_FORM = re.compile(r"(processes|threads):([1-9]\d*)|dask:(\w+://.+:\d+)")
_CONNECT = 10.0  # seconds that a Dask scheduler has to answer


def executor_maker(text: str) -> Callable[[], Executor]:
    """Parses `processes:N`, `threads:N` or `dask:ADDRESS`.

    Raises:
        argparse.ArgumentTypeError: When it is something else.
    """
    match = _FORM.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not an executor; pass processes:8, threads:8, or dask:tcp://host:8786 for the Dask scheduler "
            "at that address"
        )
    kind, count, address = match.groups()
    if address is not None:
        return partial(DaskExecutor, address)
    return partial(_process_pool if kind == "processes" else _thread_pool, int(count))


def _thread_pool(count: int) -> Executor:
    return ThreadPoolExecutor(count, thread_name_prefix="loadax-executor")


def _process_pool(count: int) -> Executor:
    # Fresh interpreters: a forked child would inherit locks that threads of JAX or TensorStore hold.
    return ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), _begin_process)


def _begin_process() -> None:
    """Prepares a process of a pool: a Ctrl-C is for the command alone, and its death ends the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, name="loadax-parent", daemon=True).start()


def _end_with_parent() -> None:
    parent: Any = multiprocessing.parent_process()
    parent.join()
    os._exit(1)


@final
class DaskExecutor(Executor):
    """Runs each call as a task of a Dask scheduler. Shutting it down closes the connection.

    Args:
        address: Address of the scheduler, such as "tcp://host:8786".

    Raises:
        UnsupportedError: When distributed is not installed.
        ArgumentError: When no scheduler answers.
    """

    def __init__(self, address: str):
        try:
            from distributed import Client
        except ImportError as error:
            raise UnsupportedError(
                f"--executor dask:{address} needs distributed, which can't be imported ({error}); "
                "pip install distributed, or, in a clone of loadax, pip install -e '.[dask]'"
            ) from error
        try:
            self._client = Client(address, timeout=_CONNECT)
        except Exception as error:
            raise ArgumentError(
                f"--executor dask:{address}: no Dask scheduler answers there ({error}); start one by "
                "`dask scheduler`, and pass the address that it prints"
            ) from error
        # Dask runs equal calls once, unless they are said to be impure: a second try would be the failed first one.
        self._tasks = self._client.get_executor(pure=False)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Runs `fn(*args, **kwargs)` on a worker."""
        future: Future[Any] = self._tasks.submit(fn, *args, **kwargs)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Waits for all tasks, or cancels them, and closes the connection."""
        self._tasks.shutdown(wait=wait and not cancel_futures)
        self._client.close()
