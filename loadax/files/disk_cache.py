"""On-disk cache of remote blocks: limited in size, checksummed, shared by processes, persistent.

    folder/loadax-blocks/usage        total size in bytes, as text; adding and evicting blocks holds a lock on this file
    folder/loadax-blocks/3f/3f9a…     a block: CRC32 of the content (4 bytes), then the content

Reads take no lock: blocks are written under a temporary name and renamed, and a block that is evicted in between is
fetched again.

A full cache keeps what it has. Training reads all of its data in every epoch, so a block that was just used is needed
again later than any other one, and of data that is larger than the cache, least-recently-used blocks are always gone
when their turn comes. Here they are found: a share of limit / size in every epoch.
"""

import errno
import fcntl
import hashlib
import os
import re
import stat
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import sleep, time_ns
from typing import Any, final

from loadax.core.log import log
from loadax.files.byte_ranges import ByteRange
from loadax.files.files import BLOCK, Files
from loadax.files.identity import FileIdentity
from loadax.files.kept_files import (
    check_folder,
    make_private_folder,
    not_writable,
    open_kept,
    private_folder,
    sweep,
    temporary_file,
)
from loadax.files.remote_ranges import Wanted

_FOLDER = "loadax-blocks"
_CHECKSUM = 4
# fraction of the limit that an eviction frees, so that scans of all blocks are rare
_FREED = 1 / 16
# Fraction of the limit for the blocks that were used last, whose other rows may be read next. Of the default limit this
# is twice what a block shuffle opens by default.
_OPEN = 1 / 8
# to lock, and the seconds between; a block that can't be stored is fetched again
_TRIES = 100
_PAUSE = 0.01
_NAME = re.compile("[0-9a-f]{40}")  # of blocks


@final
class DiskCache:
    """A folder of blocks. When it is full, blocks that were used last are evicted first, except an eighth of the limit.

    Blocks that nobody has used since the cache was opened go before all others: they may be of another dataset.

    Args:
        folder: Path of the folder, created if missing.
        limit: Maximum total size of the blocks, in bytes. Processes that share the folder must pass the same limit.
        opened: Nanoseconds since 1970, when the run opened the cache. None: now.

    Raises:
        ArgumentError: When the folder belongs to another user, or others can write to it.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        limit: int,
        opened: int | None = None,
    ):
        self._opened = time_ns() if opened is None else opened
        self._parent = Path(folder).absolute()
        self._folder = private_folder(self._parent, _FOLDER)
        self._limit = limit
        self._warned = False

    def __reduce__(self) -> Any:
        return DiskCache, (self._parent, self._limit, self._opened)

    def create(self) -> None:
        """Creates the folder; blocks are data, which others may not read.

        Raises:
            ArgumentError: When it can't be created.
        """
        try:
            make_private_folder(self._parent, _FOLDER)
            os.close(self._open_usage())
        except OSError as error:
            if error.errno != errno.EROFS or not self._folder.is_dir():
                raise not_writable(self._parent, error) from error
            self._warn(str(error))
        sweep(self._folder)

    @staticmethod
    def name(identity: FileIdentity, byte_range: ByteRange) -> str:
        """Returns the cache key of a block of a file."""
        key = repr((identity, byte_range.start, byte_range.stop))
        return hashlib.blake2b(key.encode(), digest_size=20).hexdigest()

    def get(self, name: str, byte_range: ByteRange) -> bytes | None:
        """Returns the content of a block; None if it is missing or damaged.

        Args:
            name: Name of the block.
            byte_range: Bytes that it holds.
        """
        path = self._path(name)
        try:
            check_folder(path.parent)
            content = _read(path, _CHECKSUM + byte_range.stop - byte_range.start)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn(f"{path}: {error}")
            return None
        if content is None:
            log.warning(
                "%s: this cached block is damaged; fetching %s again",
                path,
                byte_range,
            )
            with suppress(OSError):
                path.unlink()
            return None
        with suppress(OSError):
            _mark_used(path)
        return content

    def has(self, name: str) -> bool:
        """Whether there is a block."""
        return self._path(name).exists()

    def put(self, name: str, content: bytes) -> None:
        """Stores a block, evicting others if there is no room."""
        path = self._path(name)
        size = len(content) + _CHECKSUM
        if size > self._limit:
            return
        try:
            if not self._folder.exists():
                make_private_folder(self._parent, _FOLDER)
            path.parent.mkdir(0o700, exist_ok=True)
            check_folder(path.parent)
            with temporary_file(self._folder, 0o600) as (file, temporary):
                file.write(_checksum(content) + content)
                file.flush()
                _mark_used(temporary)
                self._admit(temporary, path, size)
        except OSError as error:
            # A full disk must not stop training: blocks that can't be stored are fetched again.
            self._warn(f"{path}: {error}")

    def _admit(self, temporary: Path, path: Path, size: int) -> None:
        with self._locked() as usage:
            text = os.pread(usage, 32, 0)
            if text.isdigit():
                total = int(text)
            else:
                total = None
            if path.exists():
                return
            if total is None or total + size > self._limit:
                total = self._evict(size)
            # Before the rename: a process that dies in between leaves a total that is too large, which the next
            # eviction corrects.
            os.pwrite(usage, b"%020d" % (total + size), 0)
            temporary.rename(path)

    def _evict(self, size: int) -> int:
        """Makes room for `size` more bytes and returns the remaining total."""
        blocks = sorted(self._blocks(), reverse=True)
        total = sum(stored for _, _, stored in blocks)
        if total + size <= self._limit:
            return total
        for path, stored in self._victims(blocks):
            if total + size <= self._limit * (1 - _FREED):
                break
            path.unlink(missing_ok=True)
            total -= stored
        return total

    def _victims(
        self, blocks: list[tuple[int, Path, int]]
    ) -> Iterator[tuple[Path, int]]:
        """Path and size of each block, in the order of eviction; `blocks` from the one that was used last."""
        unused = []
        used = []
        in_use = []
        recent = 0
        for time_used, path, stored in blocks:
            if time_used < self._opened:
                unused.append((path, stored))
            elif recent < self._limit * _OPEN:
                recent += stored
                in_use.append((path, stored))
            else:
                used.append((path, stored))
        yield from unused
        yield from used
        yield from reversed(in_use)

    def _blocks(self) -> Iterator[tuple[int, Path, int]]:
        """Yields when each block was used, its path and its size."""
        for folder in self._folder.iterdir():
            for path in _entries(folder):
                # another process deleted a damaged block
                with suppress(FileNotFoundError):
                    status = path.lstat()
                    if _NAME.fullmatch(path.name) and stat.S_ISREG(status.st_mode):
                        yield status.st_mtime_ns, path, status.st_size

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Opens and locks the usage file, for one process and thread at a time."""
        usage = self._open_usage()
        try:
            for tries in range(_TRIES):
                try:
                    fcntl.flock(usage, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:  # its holder may be stopped for long
                    if tries == _TRIES - 1:
                        raise
                sleep(_PAUSE)
            yield usage
        finally:
            os.close(usage)

    def _open_usage(self) -> int:
        return open_kept(self._folder / "usage", os.O_RDWR | os.O_CREAT)

    def _path(self, name: str) -> Path:
        return self._folder / name[:2] / name

    def _warn(self, problem: str) -> None:
        if not self._warned:
            self._warned = True
            log.warning(
                "the cache can't store or read a block; such blocks are fetched "
                "again: %s",
                problem,
            )


def _entries(folder: Path) -> list[Path]:
    """What is in a folder; nothing if it is a file, which may be a temporary one that is gone by now."""
    with suppress(FileNotFoundError):
        if stat.S_ISDIR(folder.lstat().st_mode):
            return list(folder.iterdir())
    return []


def _read(path: Path, size: int) -> bytes | None:
    """Content of a block, whose file has `size` bytes; None: it is damaged."""
    with os.fdopen(open_kept(path), "rb") as file:
        stored = file.read(size + 1)
    content = stored[_CHECKSUM:]
    if len(stored) == size and stored[:_CHECKSUM] == _checksum(content):
        return content
    return None


def _mark_used(path: Path) -> None:
    """Notes that a block is used now; to the nanosecond, where the file system's own clock ticks every few ms."""
    now = time_ns()
    os.utime(path, ns=(now, now), follow_symlinks=False)


def _checksum(content: bytes) -> bytes:
    return zlib.crc32(content).to_bytes(_CHECKSUM, "little")


@final
class CachedFiles:
    """Reads byte ranges from the cache; on a miss, fetches whole blocks and stores them.

    The key of a block includes the file's identity, so that a replaced file is fetched again.

    Args:
        files: Reader of the files, with a cache.
        extents: Number of readable bytes of each file, by location.

    Raises:
        ArgumentError: When the cache can't be written.
    """

    def __init__(self, files: Files, extents: Mapping[str, int]):
        assert files.cache is not None
        self._files = files
        self._cache = files.cache
        self._extents = dict(extents)
        self._cache.create()

    def read(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        wanted = sorted(
            {
                (byte_range.location, block)
                for byte_range in ranges
                for block in _blocks(byte_range)
            }
        )
        locations = sorted({location for location, _ in wanted})
        identities = dict(
            zip(locations, self._files.identities(locations), strict=True)
        )
        names = {
            key: self._cache.name(identities[key[0]], self._range(*key))
            for key in wanted
        }
        contents = {
            key: self._cache.get(names[key], self._range(*key)) for key in wanted
        }
        missing = [key for key in wanted if contents[key] is None]
        for key, content in zip(
            missing,
            self._files.read([self._range(*key) for key in missing]),
            strict=True,
        ):
            contents[key] = content
            self._cache.put(names[key], content)
        return [self._cut(byte_range, contents) for byte_range in ranges]

    def wanted(self, ranges: Sequence[ByteRange], once: bool = False) -> Wanted:  # noqa: ARG002
        """Blocks that a read of ranges will request: those that the cache lacks. It has them after the first read."""
        blocks = [
            self._range(location, block)
            for location, block in sorted(
                {
                    (wanted.location, block)
                    for wanted in ranges
                    for block in _blocks(wanted)
                }
            )
        ]
        locations = sorted({wanted.location for wanted in ranges})
        identities = dict(
            zip(locations, self._files.identities(locations), strict=True)
        )
        missing = [
            block
            for block in blocks
            if not self._cache.has(
                self._cache.name(identities[block.location], block)
            )
        ]
        return self._files.wanted(missing, once=True)

    def _cut(
        self, wanted: ByteRange, contents: Mapping[tuple[str, int], bytes | None]
    ) -> bytes:
        blocks = _blocks(wanted)
        joined = b"".join(contents[wanted.location, block] or b"" for block in blocks)
        start = wanted.start - blocks.start * BLOCK
        return joined[start : start + wanted.stop - wanted.start]

    def _range(self, location: str, block: int) -> ByteRange:
        return ByteRange(
            location, block * BLOCK, min((block + 1) * BLOCK, self._extents[location])
        )


def _blocks(wanted: ByteRange) -> range:
    return range(wanted.start // BLOCK, -(-wanted.stop // BLOCK))
