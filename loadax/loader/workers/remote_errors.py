"""Carries an exception from a worker to the training process, and raises it there with its type."""

import functools
import io
import pickle
import sys
import traceback
from typing import Any, NamedTuple, final

from loadax.errors import WorkerError


class Failure(NamedTuple):
    """An exception: pickled, where that can be, its last line, and all of its traceback."""

    pickled: bytes | None
    line: str
    traceback: str


def wrap(error: BaseException) -> Failure:
    """The exception, made ready to travel."""
    out = io.BytesIO()
    try:
        _Pickler(out, protocol=5).dump(error)
    except Exception:  # noqa: BLE001 - then its text has to do
        out = io.BytesIO()
    return Failure(out.getvalue() or None, _line(error), "".join(traceback.format_exception(error)))


def _line(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - an exception that can't be shown must not end the worker
        return type(error).__name__


def unwrap(failure: Failure, where: str) -> BaseException:
    """The exception as it was, or a `WorkerError` in its place, with a note that shows where it came from."""
    error: BaseException | None = None
    if failure.pickled is not None:
        try:
            error = _Unpickler(io.BytesIO(failure.pickled)).load()
        except Exception:  # noqa: BLE001 - some exceptions pickle and don't come back
            error = None
    if not isinstance(error, Exception):
        # What would end a process is not for this one to obey.
        error = WorkerError(f"a worker process raised {failure.line}")
    error.add_note(f"loadax: in {where}:\n{failure.traceback}")
    return error


@final
class _Pickler(pickle.Pickler):
    """Classes that came here by value go by their names: the other process has them."""

    def persistent_id(self, obj: Any) -> Any:
        by_value = isinstance(obj, type) and (obj.__module__ == "__main__" or obj.__module__ not in sys.modules)
        return (obj.__module__, obj.__qualname__) if by_value else None


@final
class _Unpickler(pickle.Unpickler):
    def persistent_load(self, pid: Any) -> Any:
        module, name = pid
        return functools.reduce(getattr, name.split("."), sys.modules[module])
