"""Parts of a pass over all rows: kept in a folder as they are finished, and claimed by the processes that share it.

The folder has, for part 12:

- `12.npz`: its arrays, once it is finished. It is renamed into place, and its checksum is verified when it is read.
- `12.claim`: a link, which is created with its text, to the name of the process that works on it or has its executor
  do so.
- `12.worker`: a link to the name of the worker of an executor that computes it. Workers may outlive the process with
  the executor, and what they finish is kept.

and for each process `NAME.alive`, which it touches every few seconds. Part `count` is the merging of all others.

Anything may be in the folder, as its parent may be writable by others: it is opened through no link, files in it are
regular ones of limited size, and their names are those of files here.
"""

import errno
import os
import secrets
import socket
import stat
import threading
import zipfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Any, BinaryIO, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from loadax.core.log import log
from loadax.core.memory import machine_memory
from loadax.core.patience import NOTICE, Patience
from loadax.errors import SourceError
from loadax.files.kept_files import (
    check_size,
    delete_folder,
    kept_folder,
    open_kept,
    read_kept,
    sweep,
    temporary_file,
)
from loadax.files.npy_header import NPY_FAILURES, parse_npy
from loadax.work.payload_file import PAYLOAD_PREFIX

TOUCH = 2.0  # seconds between two signs of life of a process
# seconds without one, after which others take its parts; by the clock of the file system
DEAD = 30.0
_LOOK = 0.3  # seconds between two looks at the parts of others
GONE = 4  # bytes of the number in the name of a folder that is being deleted
_LONGEST = 300  # characters of the name of a process
_PRIVATE = (
    0o700  # rights of the folder: payloads and claims are nobody else's concern
)


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
        self.count = count
        self._done = done
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
        self._done(part)

    def take(self, part: int) -> Arrays:
        """Returns the arrays of a finished part, which are dropped here."""
        return self._arrays.pop(part)


@final
class PartsFolder:
    """Parts in a folder, which this process and others finish together.

    Args:
        path: Path of the folder, which exists.
        label: Name of the pass, for messages.
        count: Number of parts; 0 for what concerns the folder alone.
        done: Called on the thread that claims, with each part that is found to be finished. None: nobody asks.
    """

    def __init__(
        self, path: Path, label: str, count: int = 0, done: Done | None = None
    ):
        self.path = path
        self.count = count
        self._done = done
        self._label = label
        self._name = f"{HOST}.{os.getpid()}.{secrets.token_hex(4)}"
        self._alive = f"{self._name}.alive"
        # parts that may have to be done
        self._waiting: deque[int] = deque(range(count))
        self._others: list[int] = []  # parts that others have claimed
        self._claimed: set[int] = set()
        self._next_look = 0.0
        self._patience = Patience(NOTICE, inf)

    def make(self) -> None:
        """Makes the folder, which is this user's alone, and the folders above it.

        Raises:
            OSError: When it can't be made, or there is a link or something else in its place.
        """
        self.path.mkdir(_PRIVATE, parents=True, exist_ok=True)
        with kept_folder(self.path) as folder:
            status = os.fstat(folder)
            if status.st_uid == os.geteuid() and status.st_mode & 0o077:
                os.fchmod(folder, _PRIVATE)

    @contextmanager
    def written(self, name: str) -> Iterator[BinaryIO]:
        """A block that writes a file of the folder, which is there once the block is complete.

        Raises:
            OSError: When it can't be written.
        """
        with (
            kept_folder(self.path) as folder,
            temporary_file(Path(), beneath=folder) as (file, temporary),
        ):
            yield file
            file.flush()
            os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)

    def read(self, name: str, most: int) -> bytes:
        """The bytes of a file of the folder.

        Raises:
            OSError: When there is none, it is not a regular file, or it has more than `most` bytes.
        """
        with kept_folder(self.path) as folder:
            return read_kept(name, most, folder)

    @contextmanager
    def joined(self) -> Iterator[None]:
        """A block in which this process takes part. At its end, others may claim what it has not finished.

        Raises:
            ChangedError: When the parts have been merged.
        """
        with self._opened() as folder:
            sweep(self.path, beneath=folder)
            sweep(self.path, PAYLOAD_PREFIX, folder)
            _make_file(self._alive, folder)
        over = threading.Event()
        thread = threading.Thread(
            target=self._touch,
            args=(self._alive, over),
            name="loadax-alive",
            daemon=True,
        )
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            # the folder was deleted, or is not one any more
            with suppress(ChangedError, SourceError):
                for part in list(self._claimed):
                    self._release(part)
                self._delete(self._alive)

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
                text = (
                    "%s: waiting for %d of %d parts that other processes work on: %s"
                )
                with self._opened() as folder:
                    owners = {
                        self._owner(part, folder) or "unknown"
                        for part in self._others
                    }
                log.warning(
                    text,
                    self._label,
                    len(self._others),
                    self.count,
                    ", ".join(sorted(owners)),
                )
            self._next_look = perf_counter() + _LOOK
            self._waiting.extend(self._others)
            self._others.clear()

    def is_complete(self) -> bool:
        return not self._waiting and not self._others and not self._claimed

    @contextmanager
    def computing(self, part: int) -> Iterator[None]:
        """A block in which this process, a worker of an executor, computes a part: meanwhile no other process does.

        That is, none that finds the process with the executor dead; that process may have a second copy computed.
        """
        mark = f"{part}.worker"
        over = threading.Event()
        thread = threading.Thread(
            target=self._touch, args=(mark, over), name="loadax-alive", daemon=True
        )
        # it is deleted once all parts are merged
        with suppress(OSError), kept_folder(self.path) as folder:
            _unlink(mark, folder)
            os.symlink(self._name, mark, dir_fd=folder)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            with suppress(OSError), kept_folder(self.path) as folder:
                if _name_in(mark, folder) == self._name:
                    _unlink(mark, folder)

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
            with self.written(f"{part}.npz") as file:
                # NumPy 2.1 takes `allow_pickle=` for an array; reading allows no pickle
                np.savez(file, **arrays)  # type: ignore[arg-type]
        except OSError as error:
            if not self.exists():  # this is the second copy of a part that was merged
                return
            if isinstance(error, IsADirectoryError):
                remedy = "delete this folder"
            else:
                remedy = "free space"
            raise SourceError(
                f"{self.path / f'{part}.npz'} can't be written: {error}; {remedy}, "
                "and call again: finished parts are kept"
            ) from error

    def exists(self) -> bool:
        """Whether anything has the path of the folder, which is deleted once all parts are merged."""
        return os.path.lexists(self.path)

    def has(self, part: int) -> bool:
        """Whether a part is finished: there is a file of it, and no link, pipe or folder."""
        with suppress(OSError), kept_folder(self.path) as folder:
            return stat.S_ISREG(
                os.stat(f"{part}.npz", dir_fd=folder, follow_symlinks=False).st_mode
            )
        return False

    def finish(self, part: int) -> None:
        self._release(part)
        self._found(part)

    def take(self, part: int) -> Arrays:
        """Returns the arrays of a finished part.

        Raises:
            ChangedError: When the part was damaged, such as by a crash of the machine, and so deleted.
        """
        name = f"{part}.npz"
        with self._opened() as folder:
            try:
                with os.fdopen(open_kept(name, folder=folder), "rb") as file:
                    return _arrays_in(file)
            except (*NPY_FAILURES, zipfile.BadZipFile) as error:
                os.unlink(name, dir_fd=folder)
                text = "%s is damaged (%s): this part is computed again"
                log.warning(text, self.path / name, error)
        raise ChangedError

    def delete(self) -> None:
        """Deletes the folder, at once for all that look at it: without its file, they would do a part again."""
        gone = self.path.with_name(f"{self.path.name}.{secrets.token_hex(GONE)}")
        with suppress(OSError):
            delete_folder(self.path.rename(gone))

    def others(self) -> list[str]:
        """Names of the other processes that take part."""
        clock = f"{self._name}.look"  # a sign of life would mislead others that look
        # another process may delete it
        with suppress(OSError), kept_folder(self.path) as folder:
            _make_file(clock, folder)
            try:
                signs = [
                    name
                    for name in os.listdir(folder)  # noqa: PTH208
                    if name.endswith(".alive")
                ]
                names = [
                    sign.removesuffix(".alive")
                    for sign in signs
                    if sign != self._alive
                ]
                return [
                    name for name in names if not _is_dead(name, None, clock, folder)
                ]
            finally:
                _unlink(clock, folder)
        return []

    def _claim(self, part: int) -> bool:
        """Claims a part, unless it is finished or claimed by a process that is alive."""
        claim = f"{part}.claim"
        if self.has(part):
            self._found(part)
            return False
        with self._opened() as folder:
            owner = self._owner(part, folder)
            is_dead = owner is not None and _is_dead(
                owner, claim, self._alive, folder
            )
            if (
                is_dead
                and not self._has_worker(part, folder)
                and self._owner(part, folder) == owner
            ):
                log.info(
                    "%s: taking part %d of %s, which has ended",
                    self._label,
                    part,
                    owner,
                )
                _unlink(claim, folder)
            try:
                os.symlink(self._name, claim, dir_fd=folder)
            except FileExistsError:
                self._others.append(part)
                return False
            except FileNotFoundError:
                raise
            except OSError as error:
                path = self.path / claim
                raise SourceError(
                    f"{path} can't be made: {error}; pass a folder on a file system "
                    "with links"
                ) from error
        self._claimed.add(part)
        if self.has(part):  # another process has finished it between the two looks
            self.finish(part)
            return False
        return True

    def _found(self, part: int) -> None:
        # anything may have the name of the part that merges all others
        if self._done is not None and part < self.count:
            self._done(part)

    def _release(self, part: int) -> None:
        self._claimed.discard(part)
        self._delete(f"{part}.claim")

    def _delete(self, name: str) -> None:
        with self._opened() as folder:
            _unlink(name, folder)

    def _owner(self, part: int, folder: int) -> str | None:
        """The process that a claim names; None: there is no claim.

        Raises:
            SourceError: When it is not a claim.
        """
        name = f"{part}.claim"
        try:
            return _name_in(name, folder)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise SourceError(
                f"{self.path / name} is not a claim of a process ({error}); delete "
                f"{self.path}, and call again"
            ) from error

    def _has_worker(self, part: int, folder: int) -> bool:
        """Whether a worker of an executor computes a part, and is alive."""
        mark = f"{part}.worker"
        with suppress(OSError):  # there is none, or something else has its name
            return not _is_dead(_name_in(mark, folder), mark, self._alive, folder)
        return False

    @contextmanager
    def _opened(self) -> Iterator[int]:
        """A block with the descriptor of the folder.

        Raises:
            ChangedError: When the parts have been merged, so that there is none.
            SourceError: When something else has its path, or it can't be used.
        """
        try:
            with kept_folder(self.path) as folder:
                yield folder
        except FileNotFoundError:
            raise ChangedError from None
        except OSError as error:
            raise SourceError(
                f"{self.path} can't be used: {error}; delete it, and call again"
            ) from error

    def _touch(self, sign: str, over: threading.Event) -> None:
        """Gives a sign of life every few seconds."""
        while not over.wait(TOUCH):
            with suppress(OSError), kept_folder(self.path) as folder:
                os.utime(sign, dir_fd=folder, follow_symlinks=False)


# Results of parts, by number, and which of them are claimed; see `loadax.work.tasks.Tasks`.
PartStore: TypeAlias = PartsInMemory | PartsFolder


def _arrays_in(file: BinaryIO) -> Arrays:
    """The arrays of an `.npz` file as `numpy.savez` writes it, so that none is larger than the file.

    Raises:
        Exception: One of `NPY_FAILURES`, or `zipfile.BadZipFile`.
    """
    check_size(file, machine_memory() // 2)
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        if any(member.compress_type != zipfile.ZIP_STORED for member in members):
            raise zipfile.BadZipFile("it is compressed")
        if (
            sum(member.file_size for member in members)
            > os.fstat(file.fileno()).st_size
        ):
            raise zipfile.BadZipFile("its arrays overlap")
        return {
            member.filename.removesuffix(".npy"): parse_npy(archive.read(member))
            for member in members
        }


def _name_in(claim: str, folder: int) -> str:
    """The name of a process that a claim has. Copies of a folder may have files in place of links.

    Raises:
        OSError: When there is no claim, or no name in it.
    """
    try:
        name = os.readlink(claim, dir_fd=folder)
    except FileNotFoundError:
        raise
    except OSError:  # it is not a link
        name = read_kept(claim, _LONGEST, folder).decode(errors="replace")
    if len(name) > _LONGEST or {*name} & {"/", "\0"}:
        raise OSError(errno.EINVAL, "it does not name a process")
    return name


def _make_file(name: str, folder: int) -> None:
    os.close(
        os.open(
            name,
            os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC,
            0o600,
            dir_fd=folder,
        )
    )


def _unlink(name: str, folder: int) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def _is_dead(name: str, claim: str | None, clock: str, folder: int) -> bool:
    """Whether a process has ended, or has given no sign of life for long. `clock`: name of a new file."""
    host, _, process = name.rpartition(".")[0].rpartition(".")
    if host == HOST and process.isdecimal() and not _is_running(int(process)):
        return True
    for sign in (f"{name}.alive", *([] if claim is None else [claim])):
        with suppress(FileNotFoundError):
            given = os.stat(sign, dir_fd=folder, follow_symlinks=False)
            return (
                os.stat(clock, dir_fd=folder, follow_symlinks=False).st_mtime
                - given.st_mtime
                > DEAD
            )
    return True


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError as error:  # else it is of another user
        return not isinstance(error, ProcessLookupError)
    except OverflowError:  # it is no number of a process
        return False
    return True


def _host() -> str:
    """Name of this machine, or of the container in which process numbers mean something."""
    with suppress(OSError):
        return f"{socket.gethostname()}-{Path('/proc/self/ns').joinpath('pid').stat().st_ino}"
    return socket.gethostname()


HOST = _host()
