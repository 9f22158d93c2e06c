"""Payload: how code and data travel to workers of every kind.

A pickled value whose arrays lie apart, in a file that workers map: they exist once on a machine, not once a process.
The file is anonymous for worker processes, in the task for remote workers, and in the folder of a pass.
"""

import mmap
import os
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, Generic, NamedTuple, TypeVar, final

import cloudpickle

from loadax.core import version
from loadax.core.buffers import align
from loadax.errors import ArgumentError, WorkerError
from loadax.work.pickling import dump

_unpacking: ContextVar[bool] = ContextVar("unpacking", default=False)
T = TypeVar("T")


def nameless_file() -> int:
    """Descriptor of an empty anonymous file in memory, or of a deleted temporary file if there is no `memfd_create`."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("loadax")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class Payload(NamedTuple):
    """A pickled object: a message, and a file with its arrays, `(first byte, bytes)` each."""

    message: bytes
    descriptor: int
    arrays: tuple[tuple[int, int], ...]


def pack(
    value: Any,
    by_value: Sequence[str] = (),
    instead: Sequence[tuple[Any, tuple[Any, ...]]] = (),
) -> Payload:
    """Pickles `value`, with its arrays in an anonymous file; see `dump`.

    Raises:
        Exception: Whatever pickling raises.
    """
    descriptor = nameless_file()
    try:
        return pack_into(descriptor, value, by_value, instead)
    except BaseException:
        os.close(descriptor)
        raise


def pack_into(
    descriptor: int,
    value: Any,
    by_value: Sequence[str] = (),
    instead: Sequence[tuple[Any, tuple[Any, ...]]] = (),
) -> Payload:
    """Pickles `value`, with its arrays in an empty file; see `dump`.

    Raises:
        Exception: Whatever pickling raises.
    """
    arrays = list[tuple[int, int]]()
    with open(descriptor, "wb", closefd=False) as file:

        def write(raw: memoryview) -> None:
            arrays.append((align(file.tell()), raw.nbytes))
            file.seek(arrays[-1][0])
            file.write(raw)

        message = dump(value, write, by_value, instead)
        file.write(b"\0")  # an empty file can't be mapped
    return Payload(message, descriptor, tuple(arrays))


def unpack(payload: Payload) -> Any:
    """Unpickles a payload. Its arrays are views of the payload's file, copied on write.

    Raises:
        Exception: Whatever unpickling raises, such as `ModuleNotFoundError`.
    """
    size = max((first + length for first, length in payload.arrays), default=0)
    memory = memoryview(
        mmap.mmap(payload.descriptor, max(size, 1), access=mmap.ACCESS_COPY)
    )
    arrays = [memory[first : first + length] for first, length in payload.arrays]
    token = _unpacking.set(True)
    try:
        return cloudpickle.loads(payload.message, buffers=arrays)
    finally:
        _unpacking.reset(token)


def refuse_while_unpacking() -> None:
    """Refuses to start worker processes from a module that a worker process imports.

    Raises:
        WorkerError: Names the module.
    """
    frame: Any = sys._getframe() if _unpacking.get() else None  # noqa: SLF001
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    if frame is not None:
        name = frame.f_globals.get("__name__")
        raise WorkerError(
            f"the module {name} iterates over a Dataloader with "
            "worker_type='process' when it is imported, and worker processes import "
            "it to find what it defines; move that code into a function, or under "
            f'`if __name__ == "__main__":`, and run it as `python -m {name}`'
        )


@final
class Package(Generic[T]):
    """A value that is packed once for all workers, and again with the code of each module that they lack.

    Args:
        make: Packs the value, with the code of modules of these names.

    Raises:
        Exception: Whatever `make` raises.
    """

    def __init__(self, make: Callable[[Sequence[str]], T]):
        self._make = make
        self._lock = threading.Lock()
        self._by_value: list[str] = []
        self.latest = make(())

    def add_module(self, module: str, sent: T) -> None:
        """Packs functions and classes of a module by value from now on.

        Args:
            module: Name of the module.
            sent: What a worker had that lacks the module.

        Raises:
            WorkerError: If that can't help.
        """
        with self._lock:
            if self.latest is not sent:
                # it has changed for another worker: try that one first
                return
            if module in self._by_value or module not in sys.modules:
                raise WorkerError(
                    f"a worker process can't import {module!r}, which the data or "
                    "its maps need; install it, or add its folder to sys.path"
                )
            self._by_value.append(module)
            self.latest = self._make(self._by_value)


def versions() -> dict[str, str]:
    """Versions that a worker must have in common with the process that gives it tasks, by name."""
    return {
        "loadax": version.__version__,
        "Python": ".".join(map(str, sys.version_info[:2])),
    }


def check_versions(known: dict[str, str], argument: str) -> None:
    """Checks, in a worker, that it has the versions that the process with the executor has.

    Raises:
        ArgumentError: When it has others.
    """
    if known != versions():
        raise ArgumentError(
            f"a worker of the executor on {socket.gethostname()} has "
            f"{_text(versions())}, and this process {_text(known)}; install the same "
            "versions in both",
            argument=argument,
        )


def _text(versions: dict[str, str]) -> str:
    return " and ".join(f"{name} {version}" for name, version in versions.items())
