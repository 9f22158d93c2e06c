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

_FAILED = ctypes.c_void_p(-1).value


@final
class FileMap:
    """A file's bytes in memory, read only: `FileMap(path).bytes`.

    Python's `mmap` keeps a descriptor for each map, so that a process with the usual limit of 1,024 maps few files.
    This one has none. Arrays that view it keep it alive. Pickles as the path.

    Raises:
        OSError: When the file can't be opened or mapped, is empty, or is not a regular file.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self._address = 0
        self._libc = _libc()  # at the interpreter's exit, the globals of a module may be gone before the maps
        self.path = Path(path).absolute()
        self._name = str(self.path)  # a Path takes longer on every read
        descriptor = open_regular(self.path)
        try:
            status = os.fstat(descriptor)
            self._identity = status.st_dev, status.st_ino
            self._modified = status.st_mtime_ns
            self.length = status.st_size
            address = self._libc.mmap(None, self.length, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
            if address in (None, _FAILED):
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code))
            self._address = int(address)
        finally:
            os.close(descriptor)

    def __reduce__(self) -> Any:
        return FileMap, (self.path,)

    def __del__(self) -> None:
        if self._address:
            self._libc.munmap(self._address, self.length)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {"version": 3, "typestr": "|u1", "shape": (self.length,), "data": (self._address, True)}

    @property
    def bytes(self) -> NDArray[np.uint8]:
        """All bytes of the file, uint8[length]."""
        return np.asarray(self)

    def forget(self, stop: int) -> None:
        """Gives the memory of the bytes before `stop` back to the page cache, from which they are read when needed."""
        self._libc.madvise(self._address, stop // mmap.PAGESIZE * mmap.PAGESIZE, mmap.MADV_DONTNEED)

    @property
    def in_place(self) -> bool:
        """Whether the file at the path is the mapped one, not another one that replaced it."""
        return self._status() is not None

    def modified(self) -> int:
        """Time of the last change of the mapped file in ns; as it was, if the file was deleted or replaced."""
        status = self._status()
        return self._modified if status is None else status.st_mtime_ns

    def size(self) -> int:
        """Size of the file now: reading past its end would kill the process with SIGBUS."""
        status = self._status()
        return self.length if status is None else status.st_size

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
