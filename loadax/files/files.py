"""Files: reads sizes and byte ranges of many files at once, local and remote."""

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, final
from urllib.parse import unquote, urlsplit

from loadax.core.arguments import integer
from loadax.core.formatting import count_text, size_text
from loadax.core.log import log
from loadax.errors import SourceError
from loadax.files.byte_ranges import (
    ByteRange,
    FileInfo,
    changed,
    no_such_file,
    too_short,
)
from loadax.files.identity import FileIdentity, digest_parts, resolved, sample_of
from loadax.files.paths import BUCKETS, is_remote, local_folder, local_path
from loadax.files.remote_ranges import RemoteRanges, Wanted
from loadax.redaction import redact

if TYPE_CHECKING:
    from loadax.files.disk_cache import DiskCache
    from loadax.files.metadata import Metadata
    from loadax.files.remote import RemoteFiles

# Bytes of a block of the cache: small, so that a row of a few KiB costs little more than its own round trip; not
# smaller, so that the cache has few files.
BLOCK = 128 << 10

_DIGESTED = 16 << 20  # bytes of a remote file without a generation that are compared
_PART = 1 << 20

# bytes of a remote file that is read whole where opening needs its start, and of all such files
_SMALL = 64 << 10
_SMALL_ALL = 64 << 20

_KINDS = {
    stat.S_IFDIR: "folder",
    stat.S_IFIFO: "pipe (FIFO)",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
    stat.S_IFSOCK: "socket",
}


class RangeReader(Protocol):
    """Reads byte ranges of files: `Files`, or `CachedFiles` with a cache in between."""

    def read(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        """Reads the bytes of each range."""

    def wanted(self, ranges: Sequence[ByteRange], once: bool = False) -> Wanted:
        """What a read of ranges of remote files will request. `once`: whether each is read once."""


@final
class Files:
    """Reads files at paths and URLs (`s3://`, `gs://`, `az://`, `http://`, `https://`), also a mixture of these.

    Every method takes many files, so that requests run concurrently. What is once known of a remote file, from a list
    or an earlier answer, is not requested again: remote files must not change while they are read. Thread-safe; pickles
    with what it knows, and another process opens its own connections.

    Args:
        cache: Local cache of blocks of remote files, for `CachedFiles`; None: no cache.
        metadata: What opening asks of remote files, from an earlier time; None: nothing is kept of it.
    """

    def __init__(
        self,
        cache: "DiskCache | None" = None,
        metadata: "Metadata | None" = None,
    ) -> None:
        self.cache = cache
        self._ranges = RemoteRanges()
        self._metadata = metadata
        self._known: dict[str, FileInfo] = {}  # of remote files, by URL
        self._listed: set[str] = set()  # remote folders of which all files are known
        # subfolders of remote folders whose list is known, by the folder, without escapes
        self._subfolders: dict[str, set[str]] = {}
        self._identities: dict[str, FileIdentity] = {}  # of remote files, by URL
        # contents of small remote files, while data is opened, by URL
        self._whole: dict[str, bytes] = {}

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "_metadata": None, "_whole": {}}

    @property
    def _remote(self) -> "RemoteFiles":
        return self._ranges.remote

    @property
    def known(self) -> Mapping[str, FileInfo]:
        """Sizes and generations of remote files, as far as they are known, by URL."""
        return self._known

    def exists(self, locations: Sequence[str]) -> list[bool]:
        """Tests which files exist."""
        infos = self._look_up(
            [location for location in locations if is_remote(location)]
        )
        return [
            infos[location] is not None
            if location in infos
            else _path(location).is_file()
            for location in locations
        ]

    def sizes(self, locations: Sequence[str]) -> list[int]:
        """Returns the sizes of files in bytes.

        Raises:
            SourceError: When a file does not exist; names it.
        """
        return [info.size for info in self.infos(locations)]

    def infos(self, locations: Sequence[str]) -> list[FileInfo]:
        """Returns size and generation of files.

        Raises:
            SourceError: When a file does not exist; names it.
        """
        remote = self._look_up(
            [location for location in locations if is_remote(location)]
        )
        infos = []
        for location in locations:
            if location in remote:
                info = remote[location]
            else:
                info = _look_up(location)
            if info is None:
                raise no_such_file(location)
            infos.append(info)
        return infos

    def identities(self, locations: Sequence[str]) -> list[FileIdentity]:
        """Returns what tells each file from other ones, also from one that replaces it.

        Raises:
            SourceError: When a file does not exist; names it.
        """
        new = [
            each
            for each in locations
            if each not in self._identities and is_remote(each)
        ]
        for location, info in zip(new, self.infos(new), strict=True):
            generation = info.generation or self._digest(location, info.size)
            self._identities[location] = FileIdentity(
                resolved(location), info.size, generation
            )
        return [
            self._identities.get(location) or _identity(location)
            for location in locations
        ]

    def read(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        """Reads the bytes of each range; nearby ranges of a remote file by one request.

        Raises:
            SourceError: When a range exceeds its file, or the file does not exist or has changed; names it.
        """
        remote = {
            location: is_remote(location)
            for location in {wanted.location for wanted in ranges}
        }
        far = [
            wanted
            for wanted in ranges
            if wanted.stop > wanted.start and remote[wanted.location]
        ]
        contents = self._of_whole(far)
        far = [wanted for wanted in far if wanted not in contents]
        if far:
            answers, infos = self._ranges.read(far, self._known)
        else:
            answers, infos = ([], {})
        for location, info in infos.items():
            if self._known.setdefault(location, info) != info:
                raise changed(location)
        contents.update(zip(far, answers, strict=True))
        return [
            contents[wanted]
            if wanted in contents
            else _read(wanted)
            if wanted.stop > wanted.start
            else b""
            for wanted in ranges
        ]

    def wanted(self, ranges: Sequence[ByteRange], once: bool = False) -> Wanted:
        """What a read of ranges of remote files will request. `once`: whether each is read once."""
        return Wanted(self._ranges, ranges, once)

    def read_starts(
        self, locations: Sequence[str], size: int, whole: bool = False
    ) -> list[bytes]:
        """Reads the first `size` bytes of each file, or all of a shorter file; the sizes of the files become known.

        Args:
            locations: Paths and URLs of the files.
            size: Bytes of each.
            whole: Whether to request all of small remote files, and have them at hand until `forget_whole`.

        Raises:
            SourceError: When a file does not exist; names it.
        """
        far = [location for location in locations if is_remote(location)]

        def ask(urls: list[str]) -> list[bytes]:
            sizes = dict.fromkeys(urls, size)
            if whole:
                small = self._small(urls)
                sizes.update(small)
            else:
                small = {}
            ranges = [ByteRange(url, 0, sizes[url]) for url in urls]
            starts, infos = self._remote.read(ranges, short=True)
            self._known.update(infos)
            self.recall("file", [*infos], lambda new: [[*infos[url]] for url in new])
            contents = dict(zip(urls, starts, strict=True))
            self._whole = {url: contents[url] for url in small}
            return [start[:size] for start in starts]

        remote = iter(self.recall(f"first {count_text(size, 'byte')}", far, ask))
        return [
            next(remote) if is_remote(location) else _start(location, size)
            for location in locations
        ]

    def forget_whole(self) -> None:
        """Frees the contents of small files that `read_starts` has at hand."""
        self._whole = {}

    def names(self, folder: str, below: bool = False) -> list[str]:
        """Lists the files in a folder, whose path or URL ends with "/"; sizes of remote files become known.

        Args:
            folder: Path or URL.
            below: Whether to list the files of subfolders too. Else subfolders are listed; their names end with "/".

        Raises:
            SourceError: When the server can't list files (HTTP can't).
        """
        if local_path(folder) is not None:
            with os.scandir(_path(folder)) as entries:
                return [entry.path + "/" * entry.is_dir() for entry in entries]
        infos, folders = self._list(folder, below)
        known = {
            location: info for location, info in infos.items() if info is not None
        }
        self._known.update(known)
        if len(known) == len(infos):
            self._listed.add(folder)
        self._note_subfolders(unquote(folder), infos if below else folders)
        return [*infos, *folders]

    def first_names(self, folders: Sequence[str]) -> list[Sequence[str]]:
        """Lists some names in each folder, whose path or URL ends with "/"; none where it can't be listed."""
        remote = [
            folder
            for folder in folders
            if urlsplit(folder).scheme in BUCKETS
            and not self._is_absent(unquote(folder))
        ]
        listed = dict(
            zip(
                remote,
                self.recall("some names", remote, self._first_names),
                strict=True,
            )
        )
        return [
            listed.get(each, [])
            if is_remote(each)
            else [*chain(*next(os.walk(each), ())[1:])]
            for each in folders
        ]

    def recall(
        self,
        kind: str,
        urls: Sequence[str],
        ask: Callable[[list[str]], Iterable[Any]],
    ) -> list[Any]:
        """Answers to a question about remote files, from the metadata as far as that has them; see `Metadata`."""
        if self._metadata is not None:
            return self._metadata.recall(kind, urls, ask)
        if urls:
            return list(ask(list(urls)))
        return []

    @property
    def remembers(self) -> bool:
        """Whether no question is asked twice while data is opened."""
        return self._metadata is not None and self._metadata.is_open

    def opened(self) -> None:
        """Says that opening has asked all that it needs to know of remote files: what is read from now on is data."""
        if self._metadata is not None:
            self._metadata.complete()

    def far(self, locations: Sequence[str]) -> bool:
        """Whether a file is remote, so that reads wait for a network."""
        return any(map(is_remote, locations))

    def _small(self, urls: Sequence[str]) -> dict[str, int]:
        """Sizes of those files that are known to be small, as long as all of them together are not large."""
        room = _SMALL_ALL
        small = {}
        for url in urls:
            known = self._known.get(url)
            if known is not None and 0 < known.size <= min(_SMALL, room):
                room -= known.size
                small[url] = known.size
        return small

    def _of_whole(self, ranges: Sequence[ByteRange]) -> dict[ByteRange, bytes]:
        """The bytes of ranges of files whose content is at hand."""
        whole = self._whole
        if not whole:
            return {}
        return {
            wanted: whole[wanted.location][wanted.start : wanted.stop]
            for wanted in ranges
            if wanted.location in whole and wanted.stop <= len(whole[wanted.location])
        }

    def _digest(self, location: str, size: int) -> bytes:
        log.warning(
            "%s: the server sends neither ETag nor Last-Modified, so up to %s of the "
            "file are read to tell whether it has changed",
            redact(location),
            size_text(_DIGESTED),
        )
        digest = hashlib.sha256()
        for begin, end in digest_parts(size, _DIGESTED, _PART):
            digest.update(self.read([ByteRange(location, begin, end)])[0])
        return digest.hexdigest().encode()

    def _list(
        self, folder: str, below: bool
    ) -> tuple[Mapping[str, FileInfo | None], Sequence[str]]:
        if self._metadata is None:
            return self._remote.list(folder, below)
        from loadax.files.metadata import (
            LIST,
            LIST_BELOW,
            answered_listing,
            listing_answer,
        )

        (answer,) = self._metadata.recall(
            LIST_BELOW if below else LIST,
            [folder],
            lambda _: [listing_answer(self._remote.list(folder, below))],
        )
        return answered_listing(answer)

    def _note_subfolders(self, folder: str, urls: Iterable[str]) -> None:
        """Notes the folders between a folder, all of whose files or subfolders are given, and these."""
        self._subfolders.setdefault(folder, set())
        for below in map(unquote, urls):
            above = below if below.endswith("/") else parent(below)
            while above != folder and len(above) > len(folder):
                known = self._subfolders.setdefault(parent(above), set())
                if above in known:
                    break
                known.add(above)
                above = parent(above)

    def _is_absent(self, folder: str) -> bool:
        """Whether a folder is none of those that the list of the folder above has."""
        listed = self._subfolders.get(parent(folder))
        return listed is not None and folder not in listed

    def _first_names(self, folders: Sequence[str]) -> list[list[str]]:
        return [list(names) for names in self._remote.first_names(folders)]

    def _ask_infos(self, urls: Sequence[str]) -> list[Any]:
        return [info and [*info] for info in self._remote.look_up(urls)]

    def _look_up(self, locations: Sequence[str]) -> dict[str, FileInfo | None]:
        unknown = [
            location
            for location in dict.fromkeys(locations)
            if location not in self._known
        ]
        new = [
            location
            for location in unknown
            if location.rpartition("/")[0] + "/" not in self._listed
        ]
        found = zip(new, self.recall("file", new, self._ask_infos), strict=True)
        self._known.update(
            (location, FileInfo(*info))
            for location, info in found
            if info is not None
        )
        return {location: self._known.get(location) for location in locations}


def parent(location: str) -> str:
    """Path or URL of the folder that a file or folder is in, with "/" at its end."""
    return f"{location.rstrip('/').rpartition('/')[0]}/"


def files_with_cache(
    folder: Any, limit: Any, metadata: "Metadata | None" = None
) -> Files:
    """Reader of files with a cache of blocks of remote ones in a folder.

    Args:
        folder: Value of the argument `cache`; None: no cache.
        limit: Value of the argument `cache_bytes`.
        metadata: As in `Files`.

    Raises:
        ArgumentError: When the limit is too small, or others can write to the folder.
    """
    limit = integer(
        "cache_bytes",
        limit,
        BLOCK,
        remedy=f"an int of {BLOCK} or more, the size of one block",
    )
    if folder is None:
        return Files(None, metadata)
    from loadax.files.disk_cache import DiskCache

    return Files(DiskCache(local_folder("cache", folder), limit), metadata)


def open_regular(
    path: str | os.PathLike[str], flags: int = os.O_RDONLY, folder: int | None = None
) -> int:
    """Opens a regular file and returns its descriptor; never blocks on a pipe, device or socket.

    Args:
        path: Path of the file.
        flags: Flags of `os.open`.
        folder: Descriptor of the folder that the path begins at; None: the working directory.

    Raises:
        OSError: When the file can't be opened, or is not a regular file.
    """
    descriptor = os.open(
        path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o600, dir_fd=folder
    )
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        kind = _KINDS.get(stat.S_IFMT(mode), "special file")
        raise OSError(
            errno.EINVAL, f"it is a {kind}, not a regular file", os.fspath(path)
        )
    return descriptor


def _path(location: str) -> Path:
    path = local_path(location)
    assert path is not None
    return path


def _look_up(location: str) -> FileInfo:
    with _opened(location) as file:
        return _info(file)


def _info(file: BinaryIO) -> FileInfo:
    return _status_info(os.fstat(file.fileno()))


def _status_info(status: os.stat_result) -> FileInfo:
    return FileInfo(status.st_size, str(status.st_mtime_ns).encode())


def check_unchanged(location: str, info: FileInfo) -> None:
    """Checks that a local file, which another library opens, is as it was.

    Raises:
        SourceError: When it is gone or has changed; names it.
    """
    try:
        status = os.stat(location)  # noqa: PTH116 - a Path takes longer
    except OSError as error:
        raise SourceError(
            f"{location}: it can't be read: {error.strerror}; open the data again"
        ) from error
    if _status_info(status) != info:
        raise changed(location)


def _identity(location: str) -> FileIdentity:
    with _opened(location) as file:
        info = _info(file)
        return FileIdentity(resolved(location), *info, sample_of(file, info.size))


def _start(location: str, size: int) -> bytes:
    with _opened(location) as file:
        return file.read(size)


def _read(byte_range: ByteRange) -> bytes:
    with _opened(byte_range.location) as file:
        file.seek(byte_range.start)
        content = file.read(byte_range.stop - byte_range.start)
    if len(content) < byte_range.stop - byte_range.start:
        raise too_short(byte_range)
    return content


def _opened(location: str) -> BinaryIO:
    try:
        # a Path takes longer
        return os.fdopen(
            open_regular(_path(location) if "://" in location else location), "rb"
        )
    except FileNotFoundError:
        raise no_such_file(location) from None
    except OSError as error:
        raise SourceError(
            f"{location}: the file can't be opened: {error.strerror}"
        ) from error
