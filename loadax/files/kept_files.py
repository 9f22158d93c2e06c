"""Files that loadax keeps for itself, in caches and indices: private folders, reads through no link, temporary files.

A temporary file is locked by its writer for as long as that lives, so another process can tell which ones were left
behind, and deletes them.
"""

import errno
import fcntl
import grp
import mmap
import os
import pwd
import secrets
import shutil
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from loadax.core.formatting import count_text
from loadax.errors import ArgumentError
from loadax.files.files import open_regular

# locks of other hosts may be invisible here
_TEMPORARY = f".loadax-{zlib.crc32(os.uname().nodename.encode()):08x}-"
# bytes of a file from which it is mapped: a smaller one is read as fast, and safe from truncation
_MAPPED = 16 << 20
# Suffixes of the folders that belong to a temporary file.
BESIDE = (".new", ".old")


def private_folder(path: Path, name: str) -> Path:
    """Returns the folder `name` in the folder that the user passed as `cache=`; checks that nobody else can change it.

    It is not created. Other users that can write to it could have loadax read, overwrite or delete what they choose.

    Raises:
        ArgumentError: When one of the two belongs to another user, or others can write to it, or is not a folder.
    """
    own = path / name
    for folder, is_own in ((path, False), (own, True)):
        try:
            if is_own:
                status = folder.lstat()
            else:
                status = folder.stat()
        except FileNotFoundError:
            break
        except OSError as error:
            raise not_writable(path, error) from error
        problem = _distrust(status, is_own)
        if problem:
            if is_own:
                remedy = f"delete {own}, or pass a folder of your own"
            else:
                remedy = "pass a folder of your own"
            raise ArgumentError(
                f"cache={str(path)!r} is not used: {folder} {problem}; {remedy}"
            )
    return own


def make_private_folder(path: Path, name: str) -> Path:
    """Creates what `private_folder` returns, where it is missing.

    Raises:
        ArgumentError: As `private_folder`.
        OSError: When it can't be created.
    """
    path.mkdir(0o755, parents=True, exist_ok=True)
    (path / name).mkdir(0o700, exist_ok=True)
    return private_folder(path, name)


def not_writable(path: Path, error: OSError) -> ArgumentError:
    """Error for a cache in which nothing can be created."""
    return ArgumentError(
        f"cache={str(path)!r} can't be written: {error}; pass a folder of your own, "
        "or free space"
    )


def _distrust(status: os.stat_result, is_own: bool) -> str:
    """Reason why a folder may have been prepared by others; empty if there is none."""
    if not stat.S_ISDIR(status.st_mode):
        if stat.S_ISLNK(status.st_mode):
            return "is a link, not a folder"
        return "is not a folder"
    if status.st_uid != os.geteuid() and (is_own or status.st_uid != 0):
        return f"belongs to another user (uid {status.st_uid})"
    shared = status.st_mode & stat.S_IWOTH or (
        status.st_mode & stat.S_IWGRP and not _is_private(status.st_gid)
    )
    if shared and (is_own or not status.st_mode & stat.S_ISVTX):
        return (
            f"can be written by other users (mode {stat.S_IMODE(status.st_mode):o})"
        )
    return ""


def check_folder(path: Path) -> None:
    """Checks that a path is a folder, and no link to one.

    Raises:
        OSError: When it is not.
    """
    if not stat.S_ISDIR(path.lstat().st_mode):
        raise OSError(errno.ENOTDIR, "it is not a folder", os.fspath(path))


def _is_private(gid: int) -> bool:
    """Whether a group is the one that many systems make for each user, with their name and no other member."""
    try:
        user = pwd.getpwuid(os.geteuid())
        group = grp.getgrgid(gid)
    except KeyError:
        return False
    return user.pw_name == group.gr_name and not {*group.gr_mem} - {user.pw_name}


def open_kept(
    path: str | os.PathLike[str], flags: int = os.O_RDONLY, folder: int | None = None
) -> int:
    """Opens a regular file as `open_regular` does, and through no link.

    Raises:
        OSError: When it is a link, not a regular file, or can't be opened.
    """
    return open_regular(path, flags | os.O_NOFOLLOW, folder)


def read_kept(
    path: str | os.PathLike[str], most: int, folder: int | None = None
) -> bytes:
    """All bytes of a file that `open_kept` opens.

    Raises:
        OSError: As `open_kept`, or when it has more than `most` bytes.
    """
    with os.fdopen(open_kept(path, folder=folder), "rb") as file:
        size = check_size(file, most)
        # a buffer of that length is made first, so not of `most`
        return file.read(size)


def map_kept(path: str | os.PathLike[str], most: int) -> memoryview:
    """All bytes of a file that `open_kept` opens; a large one is mapped, so that processes share its memory.

    The file must never be overwritten: reading a mapped file that was truncated kills the process. Deleting it, or
    renaming another one onto it, is allowed.

    Raises:
        OSError: As `open_kept`, or when it has more than `most` bytes.
    """
    with os.fdopen(open_kept(path), "rb") as file:
        size = check_size(file, most)
        if size < _MAPPED:
            return memoryview(file.read(size))
        return memoryview(mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ))


def check_size(file: BinaryIO, most: int) -> int:
    """Returns the size of an open file, in bytes.

    Raises:
        OSError: When it has more than `most` bytes.
    """
    size = os.fstat(file.fileno()).st_size
    if size > most:
        raise OSError(
            errno.EFBIG,
            f"it has {count_text(size, 'byte')}, and {most:,} is the most",
        )
    return size


@contextmanager
def kept_folder(path: Path) -> Iterator[int]:
    """A block with the descriptor of a folder, for `dir_fd=`, by which nothing happens behind a link in its place.

    Raises:
        OSError: When it is a link, not a folder, or can't be opened.
    """
    try:
        folder = os.open(
            path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        )
    except OSError as error:
        if path.is_symlink():
            raise OSError(
                errno.ELOOP, "it is a link, not a folder", os.fspath(path)
            ) from error
        raise
    try:
        yield folder
    finally:
        os.close(folder)


def delete_folder(path: Path) -> None:
    """Deletes a folder with all that is in it, or the link in its place, as far as that is possible."""
    shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):  # it was a folder
        path.unlink()


def stamp_of(path: Path) -> tuple[int, int] | None:
    """A stamp that changes whenever a file is written; None if there is none."""
    with suppress(OSError):
        status = path.stat()
        return status.st_ino, status.st_mtime_ns
    return None


@contextmanager
def temporary_file(
    folder: Path, mode: int = 0o666, prefix: str = "", beneath: int | None = None
) -> Iterator[tuple[BinaryIO, Path]]:
    """A block that writes a new file in a folder, and may rename it; otherwise it is deleted.

    Folders named after it, with one of `BESIDE` appended, are deleted when it is swept; as long as there are any, the
    file stays.

    Args:
        folder: Path of the folder.
        mode: Rights of the file.
        prefix: Beginning of its name.
        beneath: Descriptor of a folder that the path begins at; None: the working directory.
    """
    while True:
        path = folder / f"{prefix}{_TEMPORARY}{secrets.token_hex(8)}"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        file = os.fdopen(os.open(path, flags, mode, dir_fd=beneath), "wb")
        with suppress(OSError):  # not every file system has locks
            fcntl.flock(file, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):  # it was swept before it was locked
            os.stat(path, dir_fd=beneath, follow_symlinks=False)
            break
        file.close()
    try:
        with file:
            yield file, path
    finally:
        if not any(os.path.lexists(f"{path}{suffix}") for suffix in BESIDE):
            # it was renamed, or something else is in its place
            with suppress(OSError):
                os.unlink(path, dir_fd=beneath)


@contextmanager
def whole_file(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """A block that writes a file, which replaces the one at `path` once it is whole and on disk."""
    with temporary_file(path.parent, mode) as (file, temporary):
        yield file
        file.flush()
        os.fsync(file.fileno())
        temporary.replace(path)


def sweep(folder: Path, prefix: str = "", beneath: int | None = None) -> None:
    """Deletes temporary files of a folder whose writers on this host are dead, and the folders beside them.

    Args:
        folder: Path of the folder.
        prefix: As in `temporary_file`.
        beneath: Descriptor of the folder itself, in which the files are then looked for; None: its path is used.
    """
    for path in left_behind(folder, prefix, beneath):
        for suffix in BESIDE:
            shutil.rmtree(f"{path}{suffix}", ignore_errors=True, dir_fd=beneath)
        with suppress(OSError):
            os.unlink(path, dir_fd=beneath)


def left_behind(
    folder: Path, prefix: str = "", beneath: int | None = None
) -> Iterator[Path]:
    """Yields the temporary files of a folder whose writers on this host are dead, each while it is locked.

    Arguments are those of `sweep`.
    """
    names: list[str] = []
    with suppress(OSError):  # no such folder, or one that can't be read
        names = os.listdir(folder if beneath is None else beneath)  # noqa: PTH208
    for name in names:
        if name.startswith(f"{prefix}{_TEMPORARY}") and not name.endswith(BESIDE):
            if beneath is None:
                path = folder / name
            else:
                path = Path(name)
            # Else it is locked, or another process was faster.
            with (
                suppress(OSError),
                os.fdopen(open_kept(path, folder=beneath), "rb") as file,
            ):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield path
