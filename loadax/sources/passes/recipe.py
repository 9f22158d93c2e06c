"""Recipe of a pass: what its tasks compute, written once beside the parts and read by every worker of an executor."""

import functools
import hashlib
import json
import mmap
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import cloudpickle

from loadax.core.tasks import Raised
from loadax.errors import ArgumentError, SourceError
from loadax.sources.io.kept_files import stamp_of, temporary_file
from loadax.sources.passes.parts import Arrays, PartsFolder
from loadax.sources.passes.pickling import dump, extents_of
from loadax.sources.passes.remote_errors import wrap

_PAGE = 1 << 12  # alignment of the arrays in the file

_CALL = "__import__('loadax.sources.passes.recipe', fromlist=['run_part']).run_part(*arguments)"

_loading = threading.Lock()  # a worker with several threads loads a recipe once


class Work(Protocol):
    """What a pass computes of each part: a pure function of the part's number, that can be pickled."""

    @property
    def label(self) -> str:
        """Name of the pass, for messages."""
        ...

    @property
    def unit(self) -> str:
        """Unit of `sizes`: `row` or `B`."""
        ...

    @property
    def sizes(self) -> Sequence[int]:
        """Size of each part, for progress."""
        ...

    def compute(self, part: int, over: threading.Event) -> Arrays:
        """Computes a part; may end with any exception once `over` is set."""
        ...


def write_recipe(folder: Path, work: Work, by_value: Sequence[str]) -> str:
    """Writes the recipe of a pass into the folder of its parts, and returns its path.

    Args:
        folder: The folder.
        work: What tasks compute.
        by_value: Modules that workers can't import, so that their code is in the recipe.

    Raises:
        ArgumentError: When it can't be pickled.
        SourceError: When it can't be written.
    """
    buffers: list[memoryview] = []
    try:
        message = dump(work, buffers.append, by_value)
    except Exception as error:
        raise ArgumentError(
            f"{work.label} can't be sent to the workers of the executor: {type(error).__name__}: {error}; leave "
            "executor= out, or make such objects where they are used",
            argument="executor",
        ) from error
    header = json.dumps({**versions(), "message": len(message), "arrays": extents_of(buffers)}).encode() + b"\n"
    name = f"recipe-{hashlib.sha256(message).hexdigest()[:16]}"
    try:
        with temporary_file(folder) as (file, temporary):
            file.write(header + message)
            begin = -(-file.tell() // _PAGE) * _PAGE
            for raw, (first, _) in zip(buffers, extents_of(buffers), strict=True):
                file.seek(begin + first)
                file.write(raw)
            file.flush()
            temporary.replace(folder / name)
    except OSError as error:
        raise SourceError(f"{folder / name} can't be written: {error}; free space, and call again") from error
    return str((folder / name).absolute())


def call_of(recipe: str, part: int, attempt: int) -> Sequence[Any]:
    """The call of `run_part`, of which a worker without loadax can tell that, since it has no function of loadax."""
    return eval, _CALL, {"arguments": (recipe, part), "attempt": attempt}


def run_part(recipe: str, part: int) -> Raised | float:
    """Computes a part in a worker of an executor, unless it is finished; returns the seconds that it took.

    Args:
        recipe: Path of the recipe.
        part: Number of the part.
    """
    try:
        began = perf_counter()
        with _loading:
            # An equal recipe may map files that were replaced since.
            work = _read(recipe, stamp_of(Path(recipe)))
        parts = PartsFolder(Path(recipe).parent, work.label, len(work.sizes), abs)
        if not parts.has(part) and parts.path.exists():  # else all are merged, and this is a second copy
            parts.put(part, work.compute(part, threading.Event()))
    except Exception as error:  # noqa: BLE001 - the process with the executor raises it
        error.add_note(f"loadax: in part {part}, on {socket.gethostname()}")
        return Raised(wrap(error))
    return perf_counter() - began


@functools.lru_cache(1)
def _read(recipe: str, _stamp: tuple[int, int] | None) -> Work:
    try:
        with Path(recipe).open("rb") as file:
            header = json.loads(file.readline())
            check_versions({name: header[name] for name in versions()}, "executor")
            message = file.read(header["message"])
            begin = -(-file.tell() // _PAGE) * _PAGE
            memory = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    except OSError as error:
        raise ArgumentError(
            f"a worker of the executor on {socket.gethostname()} can't read {recipe} ({error.strerror}); pass a folder "
            "that this process and all workers share, by the same path",
            argument="index",
        ) from error
    arrays = [memory[begin + first : begin + first + size] for first, size in header["arrays"]]
    work: Work = cloudpickle.loads(message, buffers=arrays)
    return work


def check_versions(known: dict[str, str], argument: str) -> None:
    """Checks, in a worker, that it has the versions that the process with the executor has.

    Raises:
        ArgumentError: When it has others.
    """
    if known != versions():
        raise ArgumentError(
            f"a worker of the executor on {socket.gethostname()} has {_text(versions())}, and this process "
            f"{_text(known)}; install the same versions in both",
            argument=argument,
        )


def versions() -> dict[str, str]:
    """Versions that a worker and the process with the executor must have in common, by name."""
    return {"loadax": sys.modules["loadax"].__version__, "Python": ".".join(map(str, sys.version_info[:2]))}


def _text(versions: dict[str, str]) -> str:
    return " and ".join(f"{name} {version}" for name, version in versions.items())
