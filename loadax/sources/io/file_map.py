"""FileMap: maps a file into memory without keeping its descriptor."""

import ctypes
import mmap
import os
from functools import cache
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from loadax.sources.io.files import open_regular

HUGE = 2 << 20  # bytes of a huge page on most processors
_FAILED = ctypes.c_void_p(-1).value
_UNREADABLE, _FIXED = 0x0, 0x10  # PROT_NONE and MAP_FIXED of Linux, macOS and BSD, which `mmap` lacks


@final
class FileMap:
    """A file's bytes in memory, read only: `FileMap(path).bytes`.

    Python's `mmap` keeps a descriptor for each map, so that a process with the usual limit of 1,024 maps few files.
    This one has none. Arrays that view it keep it alive. Pickles as the path.

    Args:
        path: Path of the file.
        part: Reserved address to map a part of the file at, its first byte, and its size, which may exceed the file's.
            Address and first byte are multiples of a page. None: the whole file, at an address of its own.

    Raises:
        OSError: When the file can't be opened or mapped, is empty, or is not a regular file.
    """

    def __init__(self, path: str | os.PathLike[str], part: tuple[int, int, int] | None = None):
        self.path = Path(path).absolute()
        self._name = str(self.path)  # a Path takes longer on every read
        descriptor = open_regular(self.path)
        try:
            status = os.fstat(descriptor)
            self._identity = status.st_dev, status.st_ino
            self._modified = status.st_mtime_ns
            self.length = status.st_size
            if part is None:
                self._reserved = reserve(self.length)  # which unmaps the file when it goes
                part = self._reserved.ctypes.data, 0, self.length
            self._address, begin, size = part
            shared = mmap.MAP_SHARED | _FIXED
            if _libc().mmap(self._address, size, mmap.PROT_READ, shared, descriptor, begin) == _FAILED:
                code = ctypes.get_errno()
                # What failed may have left a hole, where other memory would be unmapped along with the reserved.
                anonymous = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _FIXED
                _libc().mmap(self._address, size, _UNREADABLE, anonymous, -1, 0)
                raise OSError(code, os.strerror(code))
        finally:
            os.close(descriptor)

    def __reduce__(self) -> Any:
        return FileMap, (self.path,)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {"version": 3, "typestr": "|u1", "shape": (self.length,), "data": (self._address, True)}

    @property
    def bytes(self) -> NDArray[np.uint8]:
        """All bytes of the file, uint8[length]."""
        return np.asarray(self)

    def forget(self, stop: int) -> None:
        """Gives the memory of the bytes before `stop` back to the page cache, from which they are read when needed."""
        _libc().madvise(self._address, stop // mmap.PAGESIZE * mmap.PAGESIZE, mmap.MADV_DONTNEED)

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


def reserve(size: int) -> NDArray[np.uint8]:
    """Reserves addresses for files, large ones from a huge page on; reading where none is mapped kills the process."""
    more = HUGE if size >= HUGE else 0
    reserved = mmap.mmap(-1, max(1, size + more), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, _UNREADABLE)
    memory = np.frombuffer(reserved, np.uint8)
    begin = -memory.ctypes.data % HUGE if more else 0
    return memory[begin : begin + size]


@cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_int64)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return libc
