"""RangeFile: a file object over byte ranges of a remote file that were read before."""

import io
from collections.abc import Callable, Mapping
from typing import Any, final


@final
class RangeFile(io.RawIOBase):
    """A file whose bytes are in memory in parts; other parts are fetched when they are read.

    Args:
        size: Size of the file in bytes.
        parts: Bytes by their offset in the file.
        fetch: Function that reads the bytes `[start, stop)` of the file.
    """

    def __init__(
        self,
        size: int,
        parts: Mapping[int, bytes],
        fetch: Callable[[int, int], bytes],
    ):
        self._size = size
        self._parts = parts
        self._fetch = fetch
        self._offset = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def size(self) -> int:
        """Size of the file in bytes."""
        return self._size

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._offset = (
            offset
            + {io.SEEK_SET: 0, io.SEEK_CUR: self._offset, io.SEEK_END: self._size}[
                whence
            ]
        )
        return self._offset

    def read(self, size: int = -1) -> bytes:
        start = self._offset
        if size < 0:
            stop = self._size
        else:
            stop = min(self._size, start + size)
        self._offset = max(start, stop)
        if stop <= start:
            return b""
        for begin, part in self._parts.items():
            if begin <= start and stop <= begin + len(part):
                return part[start - begin : stop - begin]
        return self._fetch(start, stop)

    def readinto(self, buffer: Any) -> int:
        content = self.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)
