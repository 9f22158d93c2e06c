"""RemoteRanges: reads byte ranges of remote files, and takes those that a run has requested ahead.

A run knows which ranges its next steps read. It requests them by an `Ahead`, and whoever reads takes the bytes from it:
`RemoteRanges.read` requests only what no `Ahead` has.
"""

import threading
from collections.abc import Container, Sequence
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple, final

from loadax.files.byte_ranges import ByteRange, FileInfo

if TYPE_CHECKING:
    from loadax.files.ahead import Ahead
    from loadax.files.remote import RemoteFiles


class Wanted(NamedTuple):
    """Ranges that a read will request.

    Args:
        reader: Reader that it will request them of.
        ranges: Ranges that are not empty, in any order.
        once: Whether each is read once, since the reader keeps what it makes of the bytes.
        kept: Number of those that it keeps, if `once`, used last; the others are read again when they are needed.
    """

    reader: "RemoteRanges"
    ranges: Sequence[ByteRange]
    once: bool = False
    kept: float = inf


class StoredChunks(NamedTuple):
    """Chunks of a remote array that a library requests by itself, each by one request.

    Args:
        store: Which chunks these are; equal for those of one array.
        chunks: Numbers of the chunks.
        nbytes: Bytes of a chunk as if it were not compressed.
        kept: Number of chunks that the library keeps, used last.
    """

    store: str
    chunks: Sequence[int]
    nbytes: int
    kept: float


@final
class RemoteRanges:
    """Reads ranges of remote files, and takes those that a run has requested ahead. Pickles without these."""

    def __init__(self) -> None:
        self._aheads: tuple[Ahead, ...] = ()
        self._lock = threading.Lock()

    def __reduce__(self) -> Any:
        return RemoteRanges, ()

    @cached_property
    def remote(self) -> "RemoteFiles":
        """The files: sizes, listings and requests."""
        # Imported here: it takes 20 ms, and most data is local.
        from loadax.files.remote import RemoteFiles

        return RemoteFiles()

    def open_ahead(self) -> "Ahead":
        """Opens the requests ahead of a run."""
        from loadax.files.ahead import Ahead

        ahead = Ahead(self.remote)
        with self._lock:
            self._aheads = (*self._aheads, ahead)
        return ahead

    def close_ahead(self, ahead: "Ahead") -> None:
        """Closes the requests ahead of a run."""
        with self._lock:
            self._aheads = tuple(each for each in self._aheads if each is not ahead)
        ahead.close()

    def read(
        self, ranges: Sequence[ByteRange], known: Container[str] = ()
    ) -> tuple[list[bytes], dict[str, FileInfo]]:
        """Reads ranges that are not empty; see `RemoteFiles.read`."""
        if not self._aheads:
            return self.remote.read(ranges, known=known)
        contents: dict[ByteRange, bytes] = {}
        infos: dict[str, FileInfo] = {}
        rest = list(dict.fromkeys(ranges))
        for ahead in self._aheads:
            taken, told = ahead.take(rest)
            contents |= taken
            infos |= told
            rest = [each for each in rest if each not in contents]
        if rest:
            read, told = self.remote.read(rest, known=known)
            contents |= zip(rest, read, strict=True)
            infos |= told
        return [contents[each] for each in ranges], infos
