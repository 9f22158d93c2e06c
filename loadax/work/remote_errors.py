"""Transfers an exception from a worker to the training process, with its type and traceback."""

import traceback
from contextlib import suppress
from typing import NamedTuple

from loadax.errors import WorkerError
from loadax.work.pickling import pickle_answer, unpickle_answer


class RemoteError(NamedTuple):
    """An exception: pickled if possible, its message as one line, and its traceback as text."""

    pickled: bytes | None
    line: str
    traceback: str


def wrap(error: BaseException) -> RemoteError:
    """Converts an exception to a message."""
    pickled = None
    with suppress(Exception):  # else its text is sent alone
        pickled = pickle_answer(error)
    return RemoteError(
        pickled, _line(error), "".join(traceback.format_exception(error))
    )


def _line(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - an exception whose str() fails must not end the worker
        return type(error).__name__


def unwrap(failure: RemoteError, origin: str) -> BaseException:
    """Restores the exception, or makes a `WorkerError`, with the worker's traceback as a note."""
    error: BaseException | None = None
    if failure.pickled is not None:
        with suppress(Exception):  # some exceptions can be pickled but not unpickled
            error = unpickle_answer(failure.pickled)
    if not isinstance(error, Exception):
        # An exception that exits a process, such as SystemExit, must not end this one.
        error = WorkerError(f"a worker process raised {failure.line}")
    error.add_note(f"loadax: in {origin}:\n{failure.traceback}")
    return error
