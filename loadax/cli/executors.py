"""`--executor`: the text of the option as a function that makes a `concurrent.futures.Executor`."""

import argparse
import multiprocessing
import os
import re
import signal
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from typing import Any

from loadax.cli.options import add_value
from loadax.errors import ArgumentError
from loadax.sources.library import require

_FORM = re.compile(r"(processes|threads):([1-9]\d*)|dask:(\w+://.+:\d+)")
_CONNECT = 10.0  # seconds that a Dask scheduler has to answer


def add_executor(command: argparse.ArgumentParser) -> None:
    """Adds `--executor`."""
    text = "what runs the parts instead of threads: processes:N, threads:N, or dask:ADDRESS of a scheduler"
    add_value(command, "--executor", "KIND", text, executor_maker)


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
        return partial(_dask, address)
    if kind == "threads":
        return partial(ThreadPoolExecutor, int(count), "loadax-executor")
    # Fresh interpreters: a forked child would inherit locks that threads of JAX or TensorStore hold.
    return partial(ProcessPoolExecutor, int(count), multiprocessing.get_context("spawn"), _begin_process)


def _begin_process() -> None:
    """Prepares a process of a pool: a Ctrl-C is for the command alone, and its death ends the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, name="loadax-parent", daemon=True).start()


def _end_with_parent() -> None:
    parent: Any = multiprocessing.parent_process()
    parent.join()
    os._exit(1)


def _dask(address: str) -> Executor:
    """Connects to a Dask scheduler.

    Raises:
        UnsupportedError: When distributed is not installed.
        ArgumentError: When no scheduler answers.
    """
    require(f"--executor dask:{address}", {"distributed": "distributed"}, "dask")
    from distributed import Client

    try:
        client = Client(address, timeout=_CONNECT)
    except Exception as error:
        raise ArgumentError(
            f"--executor dask:{address}: no Dask scheduler answers there ({error}); start one by `dask scheduler`, and "
            "pass the address that it prints"
        ) from error
    # Dask runs equal calls once, unless they are said to be impure: a second try would be the failed first one.
    executor: Executor = client.get_executor(pure=False)
    weakref.finalize(executor, client.close)  # else it tries for ever to reach a scheduler that has ended
    return executor
