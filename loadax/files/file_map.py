"""FileMap: maps a file into memory without keeping its descriptor."""

import ctypes
import mmap
import os
from functools import cache
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from loadax.files.files import open_regular

HUGE = 2 << 20  # bytes of a huge page on most processors
FAILED = ctypes.c_void_p(-1).value
# PROT_NONE and MAP_FIXED of Linux, macOS and BSD, which `mmap` lacks
_UNREADABLE = 0x0
_FIXED = 0x10


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

    def __init__(
        self, path: str | os.PathLike[str], part: tuple[int, int, int] | None = None
    ):
        self.path = Path(path).absolute()
        self._name = str(self.path)  # a Path takes longer on every read
        descriptor = open_regular(self.path)
        try:
            self._opened = os.fstat(descriptor)
            self.length = self._opened.st_size
            if part is None:
                # which unmaps the file when it goes
                self._reserved = reserve(self.length)
                part = self._reserved.ctypes.data, 0, self.length
            self._address, begin, size = part
            shared = mmap.MAP_SHARED | _FIXED
            if (
                c_library().mmap(
                    self._address, size, mmap.PROT_READ, shared, descriptor, begin
                )
                == FAILED
            ):
                code = ctypes.get_errno()
                # What failed may have left a hole, where other memory would be unmapped along with the reserved.
                anonymous = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _FIXED
                c_library().mmap(self._address, size, _UNREADABLE, anonymous, -1, 0)
                raise OSError(code, os.strerror(code))
        finally:
            os.close(descriptor)

    def __reduce__(self) -> Any:
        return FileMap, (self.path,)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {
            "version": 3,
            "typestr": "|u1",
            "shape": (self.length,),
            "data": (self._address, True),
        }

    @property
    def bytes(self) -> NDArray[np.uint8]:
        """All bytes of the file, uint8[length]."""
        return np.asarray(self)

    def forget(self, stop: int) -> None:
        """Gives the memory of the bytes before `stop` back to the page cache, from which they are read when needed."""
        c_library().madvise(
            self._address, stop // mmap.PAGESIZE * mmap.PAGESIZE, mmap.MADV_DONTNEED
        )

    @property
    def in_place(self) -> bool:
        """Whether the file at the path is the mapped one, not another one that replaced it."""
        return self.status() is not self._opened

    def size(self) -> int:
        """Size of the mapped file now."""
        return self.status().st_size

    def status(self) -> os.stat_result:
        """Status of the mapped file now; as it was, if it was deleted or replaced, after which it can't be truncated.

        Reading past its end would kill the process with SIGBUS.
        """
        try:
            status = os.stat(self._name)  # noqa: PTH116
        except OSError:
            return self._opened
        if os.path.samestat(status, self._opened):
            return status
        return self._opened


def reserve(size: int) -> NDArray[np.uint8]:
    """Reserves addresses for files, large ones from a huge page on; reading where none is mapped kills the process."""
    if size >= HUGE:
        alignment = HUGE
    else:
        alignment = 1
    reserved = mmap.mmap(
        -1, size + alignment, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, _UNREADABLE
    )
    memory = np.frombuffer(reserved, np.uint8)
    return memory[-memory.ctypes.data % alignment :][:size]


@cache
def c_library() -> Any:
    """The C library, for the calls that Python's mmap lacks."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (
        ctypes.c_void_p,
        ctypes.c_size_t,
        *(ctypes.c_int,) * 3,
        ctypes.c_int64,
    )
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return libc
