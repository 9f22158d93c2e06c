"""Executors of `concurrent.futures`: which objects are any, how one is opened and shut down, and what it tells."""

import sys
import threading
from concurrent.futures import Executor
from contextlib import suppress
from inspect import signature
from multiprocessing import current_process, parent_process
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

from loadax.core.arguments import shown
from loadax.errors import ArgumentError
from loadax.protocols import Engine

_FIRST_OF_ALL = 100  # before the queues of a pool, which have 10


def checked_engine(value: Any, name: str = "executor") -> Engine | None:
    """Returns the value of the argument `name`.

    Raises:
        ArgumentError: When it is neither an executor nor a function, or this is a worker that imports the main script.
    """
    if value is not None and hasattr(current_process(), "_inheriting"):
        # this process ends now; each one of a pool would print a traceback
        sys.tracebacklimit = 0
        raise ArgumentError(
            f"{name}= in a worker process that imports the main script to find what "
            "it defines; put the code that "
            'runs there under `if __name__ == "__main__":`'
        )
    is_function = (
        callable(value)
        and not isinstance(value, type)
        and not _takes_arguments(value)
    )
    if value is None or isinstance(value, Executor) or is_function:
        return value
    if type(value).__name__ == "Parallel" and str(type(value).__module__).startswith(
        "joblib."
    ):
        remedy = (
            "pass the processes that joblib uses: "
            f"{name}=joblib.externals.loky.get_reusable_executor"
        )
    elif str(type(value).__module__).partition(".")[0] == "submitit":
        remedy = (
            "on SLURM, pass a cluster of dask_jobqueue: "
            f"{name}=distributed.Client(SLURMCluster(…)).get_executor()"
        )
    elif isinstance(value, type) and issubclass(value, Executor):
        remedy = f"pass a function that makes one: {name}=lambda: {value.__name__}(…)"
    elif callable(getattr(value, "get_executor", None)):
        remedy = f"pass {name}=client.get_executor()"
    else:
        remedy = (
            "pass an instance of concurrent.futures.Executor, or a function without "
            "arguments that makes one"
        )
    raise ArgumentError(f"{name}={shown(value)} is not an executor; {remedy}")


def _takes_arguments(function: Any) -> bool:
    """Whether a callable object must be called with arguments, as `joblib.Parallel`."""
    try:
        signature(function).bind()
    except TypeError:
        return True
    except ValueError:  # a function of C code without a signature
        return False
    return False


def open_engine(engine: Engine, name: str = "executor") -> Executor:
    """The executor, or a new one that the function makes.

    Raises:
        ArgumentError: When the function returns something else, or processes that import a main script that is no file.
            `name`: argument that has it.
    """
    executor: Any
    if isinstance(engine, Executor):
        executor = engine
    else:
        executor = engine()
    if isinstance(executor, Executor):
        _check_main_script(executor, name)
        return executor
    remedy = (
        "return a concurrent.futures.Executor, such as Dask's client.get_executor()"
    )
    raise ArgumentError(
        f"the function of {name}= returned {shown(executor)}; {remedy}", argument=name
    )


def shut_down(executor: Executor, *, wait: bool) -> None:
    """Shuts an executor down that a function has made, if need be without waiting for its workers.

    A child process of multiprocessing ends without the threads of its pools: workers that these have not told to end
    would be waited for without end. There, its end waits until they are told.
    """
    if wait or parent_process() is None:
        executor.shutdown(wait)
        return
    ending = threading.Thread(
        target=executor.shutdown, name="loadax-shutdown", daemon=True
    )
    ending.start()
    Finalize(None, ending.join, exitpriority=_FIRST_OF_ALL)


def _check_main_script(executor: Executor, name: str) -> None:
    """Refuses a pool of spawned processes, which import the main script, if that is no file, such as `<stdin>`."""
    script = _imported_script(executor)
    if script is None or script.exists():
        return
    raise ArgumentError(
        f"{name}= is a pool of spawned processes, which import the main script, "
        f"{script}, that is no file; save the "
        "script to a file, with the code that runs under `if __name__ == "
        '"__main__":`, or run it by python -c',
        argument=name,
    )


def check_import(error: BaseException, whose: str, argument: str) -> None:
    """Checks that a worker has not failed since it can't import loadax.

    Args:
        error: What its task has raised.
        whose: What has the worker, for the message.
        argument: Argument that names it.

    Raises:
        ArgumentError: When it has.
    """
    if (
        isinstance(error, ImportError)
        and (error.name or "").partition(".")[0] == "loadax"
    ):
        raise ArgumentError(
            f"the workers of {whose} can't import loadax ({error}); install it "
            "there, in the same version",
            argument=argument,
        ) from error


def capacity_of(executor: Executor) -> int:
    """Number of tasks that an executor runs at a time, as far as it tells; else a number that limits nothing."""
    # Dask has no public way from an executor to its client
    client = getattr(executor, "_client", None)
    # whatever a lost scheduler raises, or an executor that has no such attribute
    with suppress(Exception):
        if client is not None and str(type(executor).__module__).startswith(
            "distributed."
        ):
            return sum(client.nthreads().values())
        # of those of Python, loky and mpi4py; of executorlib
        for name in ("_max_workers", "max_workers"):
            workers = getattr(executor, name, None)
            if isinstance(workers, int):
                return workers
    return sys.maxsize


def runs_main_script(executor: Executor) -> bool:
    """Whether processes of a pool import a main script that never asks for its name, and so run all of it."""
    script = _imported_script(executor)
    try:
        return script is not None and "__name__" not in script.read_text(
            errors="replace"
        )
    except OSError:
        return False


def _imported_script(executor: Executor) -> Path | None:
    """The main script that processes of a pool import when they start; None: they import no script."""
    context = getattr(executor, "_mp_context", None)
    if context is None or context.get_start_method() not in ("spawn", "forkserver"):
        return None
    main = sys.modules["__main__"]
    script = getattr(main, "__file__", None)
    if script is None or getattr(main, "__spec__", None) is not None:
        return None
    return Path(script)


def index_engine(value: Any, index: Any) -> Engine | None:
    """Returns the value of `executor=` of a verb that keeps parts at `index=`.

    Raises:
        ArgumentError: When it is not an executor, or there is no index.
    """
    engine = checked_engine(value)
    if engine is not None and index is None:
        raise ArgumentError(
            "executor= needs index=, a folder that all its workers share: they keep "
            "parts of the result there",
            argument="index",
        )
    return engine
