"""`--executor`: the text of the option as a function that makes a `concurrent.futures.Executor`."""

import argparse
import multiprocessing
import os
import re
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from typing import Any

from loadax.cli.command import add_value
from loadax.cli.functions import import_function

_FORM = re.compile(r"(processes|threads):([1-9]\d*)|([^\W\d][\w.]*:[^\W\d][\w.]*)")


def add_executor(command: argparse.ArgumentParser) -> None:
    """Adds `--executor`."""
    text = (
        "what runs the parts instead of threads: processes:N, threads:N, or "
        "MODULE:FUNCTION that makes an executor"
    )
    add_value(command, "--executor", "KIND", text, executor_maker)


def executor_maker(text: str) -> Callable[[], Executor]:
    """Parses `processes:N`, `threads:N` or `MODULE:FUNCTION`, which is imported when the executor is made.

    Raises:
        argparse.ArgumentTypeError: When it is something else.
    """
    match = _FORM.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not an executor; pass processes:8, threads:8, or "
            "cluster:pool for the executor that the function pool in cluster.py makes"
        )
    kind, count, name = match.groups()
    if name is not None:
        return lambda: import_function(name, "--executor")()  # noqa: PLW0108 - it is imported when it is called
    if kind == "threads":
        return partial(ThreadPoolExecutor, int(count), "loadax-executor")
    # Fresh interpreters: a forked child would inherit locks that threads of JAX or TensorStore hold.
    return partial(
        ProcessPoolExecutor,
        int(count),
        multiprocessing.get_context("spawn"),
        _begin_process,
    )


def _begin_process() -> None:
    """Prepares a process of a pool: a Ctrl-C is for the command alone, and its death ends the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(
        target=_end_with_parent, name="loadax-parent", daemon=True
    ).start()


def _end_with_parent() -> None:
    parent: Any = multiprocessing.parent_process()
    parent.join()
    os._exit(1)
