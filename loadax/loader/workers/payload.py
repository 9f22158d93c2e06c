"""Payload: a pickled dataset whose arrays lie in an anonymous file that every worker process maps.

So they exist once, not once per process.
"""

import mmap
import os
import sys
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

import cloudpickle

from loadax.core.buffers import align
from loadax.errors import WorkerError
from loadax.loader.workers.shared_memory import nameless_file
from loadax.work.pickling import dump

_unpacking: ContextVar[bool] = ContextVar("unpacking", default=False)


class PickledPayload(NamedTuple):
    """A pickled object: a message, and a file with its arrays, `(first byte, bytes)` each."""

    message: bytes
    descriptor: int
    arrays: tuple[tuple[int, int], ...]


def pack(
    value: Any,
    by_value: Sequence[str] = (),
    instead: Sequence[tuple[Any, tuple[Any, ...]]] = (),
) -> PickledPayload:
    """Pickles `value`; see `dump`.

    Raises:
        Exception: Whatever pickling raises.
    """
    descriptor = nameless_file()
    arrays = list[tuple[int, int]]()
    try:
        with open(descriptor, "wb", closefd=False) as file:

            def write(raw: memoryview) -> None:
                arrays.append((align(file.tell()), raw.nbytes))
                file.seek(arrays[-1][0])
                file.write(raw)

            message = dump(value, write, by_value, instead)
            file.write(b"\0")  # an empty file can't be mapped
    except BaseException:
        os.close(descriptor)
        raise
    return PickledPayload(message, descriptor, tuple(arrays))


def unpack(payload: PickledPayload) -> Any:
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
