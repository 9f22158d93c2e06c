"""Parts of a pass over all rows: kept in a folder as they are finished, and claimed by the processes that share it.

The folder has, for part 12:

- `12.npz`: its arrays, once it is finished. It is renamed into place, and its checksum is verified when it is read.
- `12.claim`: a link, which is created with its text, to the name of the process that works on it or has its executor
  do so.

and for each process `NAME.alive`, which it touches every few seconds. Part `count` is the merging of all others.
"""

import os
import secrets
import shutil
import socket
import threading
import zipfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from loadax.core.log import log
from loadax.core.patience import NOTICE, Patience
from loadax.errors import SourceError
from loadax.sources.io.kept_files import open_kept, temporary_file
from loadax.sources.io.npy_header import NPY_FAILURES

_TOUCH = 2.0  # seconds between two signs of life of a process
_DEAD = 30.0  # seconds without one, after which others take its parts; by the clock of the file system
_LOOK = 0.3  # seconds between two looks at the parts of others


Arrays: TypeAlias = Mapping[str, NDArray[Any]]
Done: TypeAlias = Callable[[int], object]


class ChangedError(Exception):
    """Another process has merged the parts and deleted their folder, or a part was damaged: look again."""


@final
class PartsInMemory:
    """Parts of one process, which are lost when it ends.

    Args:
        count: Number of parts.
        done: Called on the thread that claims, with each part that is found to be finished.
    """

    def __init__(self, count: int, done: Done):
        self.count, self.done = count, done
        self._numbers = iter(range(count))
        self._arrays: dict[int, Arrays] = {}
        self._finished = 0

    def claim(self) -> int | None:
        return next(self._numbers, None)

    def is_complete(self) -> bool:
        return self._finished == self.count

    def put(self, part: int, arrays: Arrays) -> None:
        """Keeps the arrays of a part, on any thread."""
        self._arrays[part] = arrays

    def finish(self, part: int) -> None:
        self._finished += 1
        self.done(part)

    def take(self, part: int) -> Arrays:
        """Returns the arrays of a finished part, which are dropped here."""
        return self._arrays.pop(part)


@final
class PartsFolder:
    """Parts in a folder, which this process and others finish together.

    Args:
        path: Path of the folder, which exists.
        label: Name of the pass, for messages.
        count: Number of parts.
        done: Called on the thread that claims, with each part that is found to be finished.
    """

    def __init__(self, path: Path, label: str, count: int, done: Done):
        self.path, self.count, self.done, self._label = path, count, done, label
        self._name = f"{_HOST}.{os.getpid()}.{secrets.token_hex(4)}"
        self._alive = path / f"{self._name}.alive"
        self._waiting: deque[int] = deque(range(count))  # parts that may have to be done
        self._others: list[int] = []  # parts that others have claimed
        self._claimed: set[int] = set()
        self._next_look = 0.0
        self._patience = Patience(NOTICE, inf)

    @contextmanager
    def joined(self) -> Iterator[None]:
        """A block in which this process takes part. At its end, others may claim what it has not finished.

        Raises:
            ChangedError: When the parts have been merged.
        """
        try:
            self._alive.touch()
        except FileNotFoundError:
            raise ChangedError from None
        over = threading.Event()
        thread = threading.Thread(target=self._stay_alive, args=(over,), name="loadax-alive", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            for part in list(self._claimed):
                self._release(part)
            self._alive.unlink(missing_ok=True)

    def claim(self) -> int | None:
        """Claims a part that nobody works on; None: there is none at the moment.

        Raises:
            ChangedError: When the parts have been merged.
        """
        while True:
            while self._waiting:
                part = self._waiting.popleft()
                if self._claim(part):
                    return part
            if not self._others or perf_counter() < self._next_look:
                return None
            if not self._claimed and self._patience.due():
                text = "%s: waiting for %d of %d parts that other processes work on: %s"
                owners = {_owner(self._claim_of(part)) or "unknown" for part in self._others}
                log.warning(text, self._label, len(self._others), self.count, ", ".join(sorted(owners)))
            self._next_look = perf_counter() + _LOOK
            self._waiting.extend(self._others)
            self._others.clear()

    def is_complete(self) -> bool:
        return not self._waiting and not self._others and not self._claimed

    def rejoin(self) -> None:
        """Gives back what this process has claimed, so that it claims it again."""
        self._waiting.extend(sorted(self._claimed))
        for part in list(self._claimed):
            self._release(part)

    def claim_merge(self) -> bool:
        """Claims the merging of all parts; False if another process does it.

        Raises:
            ChangedError: When it is done.
        """
        return self._claim(self.count)

    def put(self, part: int, arrays: Arrays) -> None:
        """Keeps the arrays of a part.

        Raises:
            SourceError: When they can't be written.
        """
        try:
            with temporary_file(self.path) as (file, temporary):
                np.savez(file, allow_pickle=False, **arrays)
                file.flush()
                temporary.replace(self._file(part))
        except OSError as error:
            if not self.path.exists():  # this is the second copy of a part that was merged
                return
            raise SourceError(
                f"{self._file(part)} can't be written: {error}; free space, and call again: finished parts are kept"
            ) from error

    def has(self, part: int) -> bool:
        """Whether a part is finished."""
        return self._file(part).exists()

    def finish(self, part: int) -> None:
        self._release(part)
        self.done(part)

    def take(self, part: int) -> Arrays:
        """Returns the arrays of a finished part.

        Raises:
            ChangedError: When the part was damaged, such as by a crash of the machine, and so deleted.
        """
        file = self._file(part)
        try:
            with os.fdopen(open_kept(file), "rb") as content, np.load(content, allow_pickle=False) as arrays:
                return {name: arrays[name] for name in arrays.files}
        except (*NPY_FAILURES, zipfile.BadZipFile) as error:
            file.unlink(missing_ok=True)
            log.warning("%s is damaged (%s): this part is computed again", file, error)
            raise ChangedError from error

    def delete(self) -> None:
        """Deletes the folder, at once for all that look at it: without its file, they would do a part again."""
        gone = self.path.with_name(f"{self.path.name}.{secrets.token_hex(4)}")
        with suppress(OSError):
            shutil.rmtree(self.path.rename(gone), ignore_errors=True)

    def others(self) -> list[str]:
        """Names of the other processes that take part."""
        clock = self._alive.with_suffix(".look")  # a sign of life would mislead others that look
        signs: list[Path] = []
        with suppress(OSError):  # another process may delete the folder
            clock.touch()
            signs = [sign for sign in self.path.glob("*.alive") if sign != self._alive]
        try:
            return [sign.stem for sign in signs if not self._is_dead(sign.stem, sign, clock)]
        finally:
            clock.unlink(missing_ok=True)

    def _file(self, part: int) -> Path:
        return self.path / f"{part}.npz"

    def _claim_of(self, part: int) -> Path:
        return self.path / f"{part}.claim"

    def _claim(self, part: int) -> bool:
        """Claims a part, unless it is finished or claimed by a process that is alive."""
        claim = self._claim_of(part)
        if self.has(part):
            self.done(part)
            return False
        owner = _owner(claim)
        if owner is not None and self._is_dead(owner, claim, self._alive) and _owner(claim) == owner:
            log.info("%s: taking part %d of %s, which has ended", self._label, part, owner)
            claim.unlink(missing_ok=True)
        try:
            claim.symlink_to(self._name)
        except FileExistsError:
            self._others.append(part)
            return False
        except FileNotFoundError:
            raise ChangedError from None
        except OSError as error:
            raise SourceError(f"{claim} can't be made: {error}; pass a folder on a file system with links") from error
        self._claimed.add(part)
        if self.has(part):  # another process has finished it between the two looks
            self.finish(part)
            return False
        return True

    def _release(self, part: int) -> None:
        self._claimed.discard(part)
        self._claim_of(part).unlink(missing_ok=True)

    def _is_dead(self, name: str, claim: Path, clock: Path) -> bool:
        """Whether a process with a claim has ended, or has given no sign of life for long. `clock`: a new file."""
        host, _, process = name.rpartition(".")[0].rpartition(".")
        if host == _HOST and process.isdecimal() and not _is_running(int(process)):
            return True
        for sign in (self.path / f"{name}.alive", claim):
            with suppress(FileNotFoundError):
                return clock.stat().st_mtime - sign.lstat().st_mtime > _DEAD
        return True

    def _stay_alive(self, over: threading.Event) -> None:
        while not over.wait(_TOUCH):
            with suppress(OSError):
                os.utime(self._alive)


# Results of parts, by number, and which of them are claimed; see `loadax.core.tasks.Tasks`.
PartStore: TypeAlias = PartsInMemory | PartsFolder


def _owner(path: Path) -> str | None:
    """The process that a claim names; None: there is no claim. Copies of a folder may have files in place of links."""
    with suppress(FileNotFoundError):
        return os.readlink(path) if path.is_symlink() else path.read_text()  # noqa: PTH115
    return None


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError as error:  # else it is of another user
        return not isinstance(error, ProcessLookupError)
    return True


def _host() -> str:
    """Name of this machine, or of the container in which process numbers mean something."""
    with suppress(OSError):
        return f"{socket.gethostname()}-{Path('/proc/self/ns').joinpath('pid').stat().st_ino}"
    return socket.gethostname()


_HOST = _host()
