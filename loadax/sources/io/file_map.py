"""FileMap: maps a file into memory without keeping its descriptor; Addresses: where several are side by side."""

import ctypes
import mmap
import os
from functools import cache
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from loadax.sources.io.files import open_regular

_FAILED = ctypes.c_void_p(-1).value
_UNREADABLE, _FIXED = 0x0, 0x10  # PROT_NONE and MAP_FIXED of Linux, macOS and BSD, which `mmap` lacks


@final
class Addresses:
    """Reserves addresses for the maps of files; a read where no file is mapped kills the process.

    Arrays that view them keep all of these maps alive.

    Args:
        size: Number of bytes.

    Raises:
        OSError: When the size is 0, or the process may not have more.
    """

    def __init__(self, size: int):
        self.start, self.size = 0, size
        self._libc = _libc()  # at the interpreter's exit, the globals of a module may be gone before the maps
        self.start = self.map(0, size, _UNREADABLE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)

    def __del__(self) -> None:
        if self.start:
            self._libc.munmap(self.start, self.size)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {"version": 3, "typestr": "|u1", "shape": (self.size,), "data": (self.start, True)}

    def map(self, *arguments: int) -> int:
        """Calls `mmap` of the C library."""
        address = self._libc.mmap(*arguments)
        if address in (None, _FAILED):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return int(address)


@final
class FileMap:
    """A file's bytes in memory, read only: `FileMap(path).bytes`.

    Python's `mmap` keeps a descriptor for each map, so that a process with the usual limit of 1,024 maps few files.
    This one has none. Arrays that view it keep it alive. Pickles as the path.

    Args:
        path: Path of the file.
        addresses: Reserved addresses to map it at; None: new ones, for the whole file.
        place: First of these that it takes, on a page boundary.
        begin: First byte to map, on a page boundary.
        size: Number of bytes to map at `addresses`, which the file need not have.

    Raises:
        OSError: When the file can't be opened or mapped, is empty, or is not a regular file.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        addresses: Addresses | None = None,
        place: int = 0,
        begin: int = 0,
        size: int = 0,
    ):
        self.path = Path(path).absolute()
        self._name = str(self.path)  # a Path takes longer on every read
        descriptor = open_regular(self.path)
        try:
            status = os.fstat(descriptor)
            self._identity = status.st_dev, status.st_ino
            self._modified = status.st_mtime_ns
            self.length = status.st_size
            self._addresses = Addresses(self.length) if addresses is None else addresses
            start, size = self._addresses.start + place, size or self.length
            self._addresses.map(start, size, mmap.PROT_READ, mmap.MAP_SHARED | _FIXED, descriptor, begin)
        finally:
            os.close(descriptor)

    def __reduce__(self) -> Any:
        return FileMap, (self.path,)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return self._addresses.__array_interface__

    @property
    def bytes(self) -> NDArray[np.uint8]:
        """All bytes of the file, uint8[length]."""
        return np.asarray(self)

    def forget(self, stop: int) -> None:
        """Gives the memory of the bytes before `stop` back to the page cache, from which they are read when needed."""
        _libc().madvise(self._addresses.start, stop // mmap.PAGESIZE * mmap.PAGESIZE, mmap.MADV_DONTNEED)

    @property
    def in_place(self) -> bool:
        """Whether the file at the path is the mapped one, not another one that replaced it."""
        return self._status() is not None

    def state(self) -> tuple[int, int]:
        """Size of the mapped file now, and time of its last change in ns; as they were, if it was deleted or replaced.

        Reading past its end would kill the process with SIGBUS.
        """
        status = self._status()
        return (self.length, self._modified) if status is None else (status.st_size, status.st_mtime_ns)

    def size(self) -> int:
        """Size of the mapped file now."""
        return self.state()[0]

    def _status(self) -> os.stat_result | None:
        """Status of the mapped file; None if it was deleted or replaced, after which it can't be truncated."""
        try:
            status = os.stat(self._name)  # noqa: PTH116
        except OSError:
            return None
        return status if (status.st_dev, status.st_ino) == self._identity else None


@cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_int64)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return libc
