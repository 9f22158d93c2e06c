"""Transfers an exception from a worker to the training process, with its type and traceback."""

import functools
import io
import pickle
import sys
import traceback
from typing import Any, NamedTuple, final

from loadax.errors import WorkerError


class Failure(NamedTuple):
    """An exception: pickled if possible, its message as one line, and its traceback as text."""

    pickled: bytes | None
    line: str
    traceback: str


def wrap(error: BaseException) -> Failure:
    """Converts an exception to a message."""
    out = io.BytesIO()
    try:
        _Pickler(out, protocol=5).dump(error)
    except Exception:  # noqa: BLE001 - send its text only
        out = io.BytesIO()
    return Failure(out.getvalue() or None, _line(error), "".join(traceback.format_exception(error)))


def _line(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - an exception whose str() fails must not end the worker
        return type(error).__name__


def unwrap(failure: Failure, origin: str) -> BaseException:
    """Restores the exception, or makes a `WorkerError`, with the worker's traceback as a note."""
    error: BaseException | None = None
    if failure.pickled is not None:
        try:
            error = _Unpickler(io.BytesIO(failure.pickled)).load()
        except Exception:  # noqa: BLE001 - some exceptions can be pickled but not unpickled
            error = None
    if not isinstance(error, Exception):
        # An exception that exits a process, such as SystemExit, must not end this one.
        error = WorkerError(f"a worker process raised {failure.line}")
    error.add_note(f"loadax: in {origin}:\n{failure.traceback}")
    return error


@final
class _Pickler(pickle.Pickler):
    """Pickles classes that were sent here by value by their names: the training process has them."""

    def persistent_id(self, obj: Any) -> Any:
        by_value = isinstance(obj, type) and (obj.__module__ == "__main__" or obj.__module__ not in sys.modules)
        return (obj.__module__, obj.__qualname__) if by_value else None


@final
class _Unpickler(pickle.Unpickler):
    def persistent_load(self, pid: Any) -> Any:
        module, name = pid
        return functools.reduce(getattr, name.split("."), sys.modules[module])
