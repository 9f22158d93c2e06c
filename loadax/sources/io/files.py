"""Reads headers and sizes of many files at once, and opens regular files."""

import errno
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol, final

from loadax.errors import SourceError
from loadax.sources.io.paths import local_path

_KINDS = {
    stat.S_IFDIR: "folder",
    stat.S_IFIFO: "pipe (FIFO)",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
    stat.S_IFSOCK: "socket",
}


class ByteRange(NamedTuple):
    """Bytes `[start, stop)` of a file."""

    location: str
    start: int
    stop: int

    def __str__(self) -> str:
        return f"{self.location}, bytes {self.start} to {self.stop - 1}"


class Files(Protocol):
    """Reads local or remote files; every method takes a batch, so that remote requests run concurrently."""

    def exists(self, locations: Sequence[str]) -> list[bool]:
        """Tests which files exist."""
        ...

    def sizes(self, locations: Sequence[str]) -> list[int]:
        """Returns the sizes of files in bytes.

        Raises:
            SourceError: When a file does not exist; names it.
        """
        ...

    def contains(self, ranges: Sequence[ByteRange]) -> list[bool]:
        """Tests which ranges are within their files."""
        ...

    def read(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        """Reads the bytes of each range.

        Raises:
            SourceError: When a range exceeds its file, or the file does not exist; names it.
        """
        ...


@final
class LocalFiles:
    """Files on this machine; see `Files`."""

    def exists(self, locations: Sequence[str]) -> list[bool]:
        return [_path(location).is_file() for location in locations]

    def sizes(self, locations: Sequence[str]) -> list[int]:
        return [_size(location) for location in locations]

    def contains(self, ranges: Sequence[ByteRange]) -> list[bool]:
        return [byte_range.stop <= _size(byte_range.location) for byte_range in ranges]

    def read(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        return [_read(byte_range) for byte_range in ranges]


def open_regular(path: str | os.PathLike[str]) -> int:
    """Opens a regular file for reading and returns its descriptor; never blocks on a pipe, device or socket.

    Raises:
        OSError: When the file can't be opened, or is not a regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise OSError(
            errno.EINVAL,
            f"it is a {_KINDS.get(stat.S_IFMT(mode), 'special file')}, not a regular file",
            os.fspath(path),
        )
    return descriptor


def no_such_file(location: str) -> SourceError:
    """Error for a file that does not exist."""
    return SourceError(f"{location}: there is no such file")


def too_short(byte_range: ByteRange) -> SourceError:
    """Error for a range that exceeds its file."""
    return SourceError(
        f"{byte_range.location}: bytes {byte_range.start} to {byte_range.stop - 1} are missing: "
        "the file is cut short, or of another kind; copy it again"
    )


def _path(location: str) -> Path:
    path = local_path(location)
    assert path is not None
    return path


def _size(location: str) -> int:
    with _opened(location) as file:
        return os.fstat(file.fileno()).st_size


def _read(byte_range: ByteRange) -> bytes:
    with _opened(byte_range.location) as file:
        file.seek(byte_range.start)
        content = file.read(byte_range.stop - byte_range.start)
    if len(content) < byte_range.stop - byte_range.start:
        raise too_short(byte_range)
    return content


def _opened(location: str) -> BinaryIO:
    path = _path(location)
    try:
        return os.fdopen(open_regular(path), "rb")
    except FileNotFoundError:
        raise no_such_file(location) from None
    except OSError as error:
        raise SourceError(f"{location}: the file can't be opened: {error.strerror}") from error
