"""On-disk cache of remote blocks: limited in size, checksummed, shared by processes, persistent.

    folder/loadax-blocks/usage        total size in bytes, as text; adding and evicting blocks holds a lock on this file
    folder/loadax-blocks/3f/3f9a…     a block: CRC32 of the content (4 bytes), then the content

Reads take no lock: blocks are written under a temporary name and renamed, and a block that is evicted in between is
fetched again.
"""

import fcntl
import hashlib
import logging
import os
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import time
from typing import Any, NamedTuple, final

from loadax.core.arguments import integer
from loadax.errors import ArgumentError
from loadax.sources.io.byte_ranges import ByteRange
from loadax.sources.io.paths import local_folder

BLOCK = 128 << 10
"""Bytes of a block: small, so that a row of a few KiB costs little more than its own round trip; not smaller, so that
the cache has few files.
"""

_CHECKSUM = 4
_LEFT = 0.9  # fraction of the limit that an eviction leaves, so that scans of all blocks are rare
_ABANDONED = 3600.0  # seconds after which the writer of a temporary file is presumed dead
_TEMPORARY = "writing-"

_log = logging.getLogger("loadax")


class _Block(NamedTuple):
    used: float
    path: Path
    size: int


@final
class DiskCache:
    """A folder of blocks, evicted in least-recently-used order.

    Args:
        folder: Path of the folder, created if missing.
        limit: Maximum total size of the blocks, in bytes. Processes that share the folder must pass the same limit.

    Raises:
        ArgumentError: When the folder can't be written.
    """

    def __init__(self, folder: str | os.PathLike[str], limit: int):
        self._folder = Path(folder).absolute() / "loadax-blocks"
        self._limit = limit
        self._warned = False
        try:
            self._folder.mkdir(0o700, parents=True, exist_ok=True)  # blocks are data, which others may not read
            with self._locked():
                pass
        except OSError as error:
            raise ArgumentError(
                f"cache={os.fspath(folder)!r} can't be written: {error}; pass a folder of your own"
            ) from error

    def __reduce__(self) -> Any:
        return DiskCache, (self._folder.parent, self._limit)

    @staticmethod
    def name(location: str, size: int, generation: bytes, block: int) -> str:
        """Returns the cache key of a block of a file with this size and generation."""
        identity = repr((location, size, generation, BLOCK, block)).encode()
        return hashlib.blake2b(identity, digest_size=20).hexdigest()

    def get(self, name: str, byte_range: ByteRange) -> bytes | None:
        """Returns the content of a block; None if it is missing or damaged.

        Args:
            name: Name of the block.
            byte_range: Bytes that it holds.
        """
        path = self._path(name)
        try:
            stored = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn(f"{path}: {error}")
            return None
        content = stored[_CHECKSUM:]
        if len(content) != byte_range.stop - byte_range.start or stored[:_CHECKSUM] != _checksum(content):
            _log.warning("%s: this cached block is damaged; fetching %s again", path, byte_range)
            path.unlink(missing_ok=True)
            return None
        with suppress(FileNotFoundError):
            os.utime(path)
        return content

    def put(self, name: str, content: bytes) -> None:
        """Stores a block, evicting the least recently used blocks if there is no room."""
        path = self._path(name)
        size = len(content) + _CHECKSUM
        if size > self._limit:
            return
        try:
            path.parent.mkdir(exist_ok=True)
            handle, temporary = tempfile.mkstemp(prefix=_TEMPORARY, dir=path.parent)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(_checksum(content) + content)
                self._admit(Path(temporary), path, size)
            finally:
                Path(temporary).unlink(missing_ok=True)
        except OSError as error:
            # A full disk must not stop training: blocks that can't be stored are fetched again.
            self._warn(f"{path}: {error}")

    def _admit(self, temporary: Path, path: Path, size: int) -> None:
        with self._locked() as usage:
            total = _read_usage(usage)
            if path.exists():
                return
            if total is None or total + size > self._limit:
                total = self._evict(size)
            # Before the rename: a process that dies in between leaves a total that is too large, which the next
            # eviction corrects.
            _write_usage(usage, total + size)
            temporary.rename(path)

    def _evict(self, size: int) -> int:
        """Makes room for `size` more bytes and returns the remaining total."""
        blocks = sorted(self._blocks())
        total = sum(block.size for block in blocks)
        if total + size <= self._limit:
            return total
        for block in blocks:
            if total + size <= self._limit * _LEFT:
                break
            block.path.unlink(missing_ok=True)
            total -= block.size
        return total

    def _blocks(self) -> Iterator[_Block]:
        for folder in self._folder.iterdir():
            for path in folder.iterdir() if folder.is_dir() else ():
                with suppress(
                    FileNotFoundError
                ):  # another process deleted a damaged block, or renamed a temporary file
                    status = path.stat()
                    if not path.name.startswith(_TEMPORARY):
                        yield _Block(status.st_mtime, path, status.st_size)
                    elif time() - status.st_mtime > _ABANDONED:
                        path.unlink()

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Opens and locks the usage file, for one process and thread at a time."""
        usage = os.open(self._folder / "usage", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(usage, fcntl.LOCK_EX)
            yield usage
        finally:
            os.close(usage)

    def _path(self, name: str) -> Path:
        return self._folder / name[:2] / name

    def _warn(self, problem: str) -> None:
        if not self._warned:
            self._warned = True
            _log.warning("the cache can't store or read a block; such blocks are fetched again: %s", problem)


def open_cache(folder: Any, limit: Any) -> DiskCache | None:
    """Opens the cache in a folder; None: no cache.

    Raises:
        ArgumentError: When the limit is too small, or the folder can't be written.
    """
    limit = integer("cache_bytes", limit, BLOCK, remedy=f"an int of {BLOCK} or more, the size of one block")
    if folder is None:
        return None
    return DiskCache(local_folder("cache", folder), limit)


def _checksum(content: bytes) -> bytes:
    return zlib.crc32(content).to_bytes(_CHECKSUM, "little")


def _read_usage(usage: int) -> int | None:
    text = os.pread(usage, 32, 0)
    return int(text) if text.isdigit() else None


def _write_usage(usage: int, total: int) -> None:
    os.pwrite(usage, b"%020d" % total, 0)
