"""Code that a worker runs for a task: it opens what the tasks need once, calls it, and answers with what it raises.

A task for an executor has no class of loadax in it, only texts and tuples, so that a worker without loadax can tell
that it lacks it.
"""

import mmap
import os
import socket
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from loadax.errors import LoadaxError, WorkerError
from loadax.work.payload import Payload, check_versions, nameless_file, unpack
from loadax.work.remote_errors import wrap

_MOST_OPEN = 4  # values that a worker keeps, such as those of training and evaluation
_CALL = "__import__('loadax.work.worker', fromlist=['run']).run(*arguments)"

# A payload as a task has it: message, arrays and memory; or path, first byte, bytes and key of a `PayloadFile`. None:
# the worker may have opened it before.
Content: TypeAlias = tuple[Any, ...] | None


class Raised(NamedTuple):
    """Answer: a task has raised an error. Whatever a future raises itself is a failure of its executor.

    Args:
        error: The `RemoteError`; the exception itself, if the task has run in this process.
    """

    error: Any


class PayloadMissing(NamedTuple):
    """Answer: the worker lacks the payload with this digest, or a module that it needs."""

    digest: str
    module: str | None = None


class Ready(NamedTuple):
    """Answer to a task without arguments: the worker has opened the payload with this digest."""

    digest: str


class PayloadSource(NamedTuple):
    """Where a worker finds what a task calls. It goes there as a plain tuple.

    Args:
        digest: Digest of the payload, by which a worker knows it.
        argument: Argument that names the executor, for messages.
        versions: Versions that the worker must have too.
        content: The payload.
    """

    digest: str
    argument: str
    versions: dict[str, str]
    content: Content


def call_of(name: Any, source: PayloadSource, *arguments: Any) -> Sequence[Any]:
    """The call of `run`: a function and its arguments.

    Args:
        name: Unique, since Dask runs equal calls once.
        source: What the task calls.
        arguments: With what it is called; none: the task only shows that there is a worker.
    """
    return eval, _CALL, {"arguments": (tuple(source), *arguments), "name": name}


def run(source: tuple[Any, ...], *arguments: Any) -> Any:
    """Runs a task in a worker of an executor.

    Args:
        source: Entries of a `PayloadSource`, whose payload is a function.
        arguments: Its arguments.

    Returns:
        What the function returns, `Ready`, `PayloadMissing`, or `Raised` with a `RemoteError`.
    """
    return answer(_run, PayloadSource(*source), arguments)


def answer(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function returns; `Raised` with a `RemoteError` if it raises."""
    try:
        return function(*arguments)
    except BaseException as error:  # noqa: BLE001 - a user's function may raise anything, such as SystemExit
        return Raised(wrap(error))


def open_payload(payload: Payload, digest: str = "") -> Any:
    """The value of a payload; `PayloadMissing` if it needs a module that is not there.

    Raises:
        Exception: Whatever unpickling raises.
    """
    try:
        return unpack(payload)
    except ModuleNotFoundError as error:
        return PayloadMissing(digest, error.name or "")


_opened: OrderedDict[str, Callable[..., Any]] = OrderedDict()
_opening = threading.Lock()  # a worker with several threads opens a payload once


def _run(source: PayloadSource, arguments: Sequence[Any]) -> Any:
    try:
        return _called(source, arguments)
    except Exception as error:
        error.add_note(f"loadax: in process {os.getpid()}, on {socket.gethostname()}")
        raise


def _called(source: PayloadSource, arguments: Sequence[Any]) -> Any:
    with _opening:
        function = _opened.get(source.digest)
        if function is None:
            function = _open(source)
            if isinstance(function, PayloadMissing):
                return function
            _opened[source.digest] = function
            while len(_opened) > _MOST_OPEN:
                _opened.popitem(last=False)
        _opened.move_to_end(source.digest)
    if arguments:
        return function(*arguments)
    return Ready(source.digest)


def _open(source: PayloadSource) -> Any:
    if source.content is None:
        return PayloadMissing(source.digest)
    check_versions(source.versions, source.argument)
    payload = _payload_of(source.content)
    try:
        return open_payload(payload, source.digest)
    except LoadaxError:
        raise
    except Exception as error:
        raise WorkerError(
            f"a worker of {source.argument}= on {socket.gethostname()} could not load "
            f"the data: {type(error).__name__}: {error}; make it picklable: open files "
            f"and connections on first use, or leave out {source.argument}="
        ) from error
    finally:
        os.close(payload.descriptor)


def _payload_of(content: tuple[Any, ...]) -> Payload:
    if isinstance(content[0], str):
        # of a pass: worker processes, which import this file too, have none
        from loadax.work.payload_file import read_payload

        return read_payload(*content)
    message, arrays, memory = content
    with os.fdopen(nameless_file(), "wb") as file:
        file.write(memory)
        file.flush()
        return Payload(message, os.dup(file.fileno()), arrays)


def content_of(payload: Payload) -> tuple[bytes, Any, bytes]:
    """A payload as a task has it: its message, its arrays, and their bytes."""
    with mmap.mmap(payload.descriptor, 0, access=mmap.ACCESS_READ) as memory:
        return payload.message, payload.arrays, memory[:]
