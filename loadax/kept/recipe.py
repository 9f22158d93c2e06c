"""Recipe of a pass: what its tasks compute, written once beside the parts and read by every worker of an executor.

Its message is a pickle, which runs whatever code it says, and may have passwords in it. So a task has the digest of
the file, which is compared before the message is opened, and the key of the message, which is written encrypted: the
stream that it is combined with is SHAKE-256 of a key that is used once. Large arrays are apart, in clear: they are
mapped. The file is its owner's alone, exists while tasks may need it, and is swept if the process was killed.
"""

import functools
import hashlib
import json
import mmap
import os
import secrets
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple, Protocol

import cloudpickle
import numpy as np

from loadax.core import version
from loadax.errors import ArgumentError, SourceError
from loadax.files.kept_files import kept_folder, open_kept, stamp_of, temporary_file
from loadax.kept.parts import RECIPE, Arrays, PartsFolder
from loadax.work.pickling import dump, extents_of
from loadax.work.remote_errors import wrap
from loadax.work.tasks import Raised

_PAGE = 1 << 12  # alignment of the arrays in the file
_KEY = 32  # bytes

_CALL = "__import__('loadax.kept.recipe', fromlist=['run_part']).run_part(*arguments)"

_loading = threading.Lock()  # a worker with several threads loads a recipe once


class Work(Protocol):
    """The work of a pass on each part: a pure function of the part's number, that can be pickled."""

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


class Recipe(NamedTuple):
    """Address of the file of a recipe, as a task has it.

    Args:
        path: Path of the file.
        size: Bytes of the header and the encrypted message, which the file begins with.
        digest: Their SHA-256.
        key: Key of the message, in hexadecimal digits.
    """

    path: str
    size: int
    digest: str
    key: str


@contextmanager
def written_recipe(
    folder: Path, work: Work, by_value: Sequence[str]
) -> Iterator[Recipe]:
    """A block in which the folder of the parts of a pass has its recipe.

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
            f"{work.label} can't be sent to the workers of the executor: "
            f"{type(error).__name__}: {error}; leave executor= out, or make such "
            "objects where they are used",
            argument="executor",
        ) from error
    key = secrets.token_hex(_KEY)
    header = (
        json.dumps(
            {**versions(), "message": len(message), "arrays": extents_of(buffers)}
        ).encode()
        + b"\n"
    )
    start = header + _combined(message, key)
    with ExitStack() as stack:
        try:
            with ExitStack() as begun:
                beneath = begun.enter_context(kept_folder(folder))
                file, name = begun.enter_context(
                    temporary_file(Path(), 0o600, RECIPE, beneath)
                )
                file.write(start)
                begin = -(-file.tell() // _PAGE) * _PAGE
                for raw, (first, _) in zip(buffers, extents_of(buffers), strict=True):
                    file.seek(begin + first)
                    file.write(raw)
                file.flush()
                # network file systems send what is written when it is closed
                os.close(os.dup(file.fileno()))
                stack.push(begun.pop_all())
        except OSError as error:
            raise SourceError(
                f"the recipe in {folder} can't be written: {error}; free space, and "
                "call again"
            ) from error
        yield Recipe(
            str((folder / name).absolute()),
            len(start),
            hashlib.sha256(start).hexdigest(),
            key,
        )


def _combined(message: bytes, key: str) -> bytes:
    """A message, encrypted or decrypted by a key that is used for it alone."""
    stream = np.frombuffer(
        hashlib.shake_256(bytes.fromhex(key)).digest(len(message)), np.uint8
    )
    return (np.frombuffer(message, np.uint8) ^ stream).tobytes()


def call_of(recipe: Recipe, part: int, attempt: int) -> Sequence[Any]:
    """The call of `run_part`, of which a worker without loadax can tell that, since it has no function of loadax."""
    return eval, _CALL, {"arguments": (tuple(recipe), part), "attempt": attempt}


def run_part(recipe: tuple[str, int, str, str], part: int) -> Raised | float:
    """Computes a part in a worker of an executor, unless it is finished; returns the seconds that it took.

    Args:
        recipe: Entries of a `Recipe`.
        part: Number of the part.
    """
    known = Recipe(*recipe)
    try:
        began = perf_counter()
        with _loading:
            # An equal recipe may map files that were replaced since.
            work = _read(known, stamp_of(Path(known.path)))
        parts = PartsFolder(Path(known.path).parent, work.label, len(work.sizes), abs)
        # else all are merged, and this is a second copy
        if not parts.has(part) and parts.exists():
            with parts.computing(part):
                parts.put(part, work.compute(part, threading.Event()))
    except Exception as error:  # noqa: BLE001 - the process with the executor raises it
        error.add_note(f"loadax: in part {part}, on {socket.gethostname()}")
        return Raised(wrap(error))
    return perf_counter() - began


@functools.lru_cache(1)
def _read(recipe: Recipe, _stamp: tuple[int, int] | None) -> Work:
    path = Path(recipe.path)
    try:
        with (
            kept_folder(path.parent) as folder,
            os.fdopen(open_kept(path.name, folder=folder), "rb") as file,
        ):
            start = file.read(recipe.size)
            if hashlib.sha256(start).hexdigest() != recipe.digest:
                raise SourceError(
                    f"{recipe.path} was changed after it was written, and nothing of "
                    "it is used; pass a folder that only you can write to"
                )
            header = json.loads(start[: start.index(b"\n")])
            check_versions({name: header[name] for name in versions()}, "executor")
            begin = -(-file.tell() // _PAGE) * _PAGE
            memory = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    except OSError as error:
        raise ArgumentError(
            f"a worker of the executor on {socket.gethostname()} can't read "
            f"{recipe.path} ({error.strerror}); pass a folder that this process and "
            "all workers share, by the same path",
            argument="index",
        ) from error
    arrays = [
        memory[begin + first : begin + first + size]
        for first, size in header["arrays"]
    ]
    work: Work = cloudpickle.loads(
        _combined(start[len(start) - header["message"] :], recipe.key), buffers=arrays
    )
    return work


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


def versions() -> dict[str, str]:
    """Versions that a worker and the process with the executor must have in common, by name."""
    return {
        "loadax": version.__version__,
        "Python": ".".join(map(str, sys.version_info[:2])),
    }


def _text(versions: dict[str, str]) -> str:
    return " and ".join(f"{name} {version}" for name, version in versions.items())
