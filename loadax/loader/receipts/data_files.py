"""Files of a dataset, and what tells that one has changed: size, time of change or ETag, or a digest of its bytes."""

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple, final

import numpy as np

from loadax.errors import ArgumentError, SourceError
from loadax.files.byte_ranges import ByteRange, FileInfo, KnownFiles
from loadax.files.files import Files
from loadax.files.paths import local_path
from loadax.kept.index_folder import FILES, Entry, IndexFolder
from loadax.kept.kept_pass import PassOptions, kept_pass
from loadax.kept.parts import Arrays
from loadax.protocols import Array
from loadax.sources.base import BaseSource, walk
from loadax.sources.expand import file_name
from loadax.writing.data_fingerprint import digest_of, spread
from loadax.writing.keys import keys_below, own_keys

_VERSION = 1  # of the digests of bytes
_MOST_FILES = 1 << 14  # whose sizes and times are compared
_MOST_MEMORY = 64 << 20  # bytes of arrays in memory that are compared
_BLOCK = 16 << 20  # bytes that are digested together
_EVERY = 1 << 62
_THREADS = 8


class DataFile(NamedTuple):
    """A file, or an array in memory.

    Args:
        location: Path or URL; a description of an array.
        size: Bytes; -1: unknown.
        generation: Time of change or ETag, as text; "" if unknown.
        digest: Digest of the bytes, as 32 hexadecimal digits; "": not made.
    """

    location: str
    size: int
    generation: str
    digest: str = ""


def locations_of(source: BaseSource, every: bool) -> list[str]:
    """Paths and URLs of the files of a source, each once.

    Args:
        source: The source.
        every: Whether to list all files. Else at most 16,384, and of a folder the files that are directly in it, where
            stores have their metadata.
    """
    found: dict[str, None] = {}
    for part in walk(source):
        listed = part.some_files(_EVERY if every else _MOST_FILES)
        if listed is not None:
            found.update(dict.fromkeys(listed))
            continue
        for address in part.addresses:
            path = local_path(address.partition("|")[0])
            if path is None:
                found[address] = None
            elif path.is_dir():
                found.update(dict.fromkeys(_in_folder(path, every)))
            else:
                found[str(path)] = None
    locations = [*found]
    if every:
        return locations
    return [locations[index] for index in spread(len(locations), _MOST_FILES)]


def _in_folder(folder: Path, every: bool) -> list[str]:
    if every:
        keys = sorted(keys_below(folder))
        # else no zarr store
        keys = own_keys(keys) or [key for key in keys if not key.startswith(".")]
    else:
        with os.scandir(folder) as entries:
            keys = sorted(entry.name for entry in entries if entry.is_file())
    return [f"{folder}/{key}" for key in keys]


def identified(source: BaseSource) -> list[DataFile]:
    """Sizes, and times or ETags, of at most 16,384 files, as far as they are known without a request."""
    known: dict[str, FileInfo] = {}
    for part in walk(source):
        known.update(part.known_files)
    return [
        DataFile(location, *_info(location, known))
        for location in locations_of(source, every=False)
    ]


def _info(location: str, known: KnownFiles) -> tuple[int, str]:
    """Size and time of change, or ETag; -1 and "" if unknown."""
    path = local_path(location)
    if path is not None:
        return _local_info(path)
    if location not in known:
        return -1, ""
    size, tag = known[location]
    return size, tag.decode(errors="replace")


def _local_info(path: Path) -> tuple[int, str]:
    try:
        status = path.stat()
    except OSError:
        return -1, "missing"
    return status.st_size, str(status.st_mtime_ns)


class _Block(NamedTuple):
    """Consecutive bytes of a file, by its index."""

    file: int
    start: int
    stop: int


@final
class DigestWork:
    """Digests of the bytes of files, a block each part; see `loadax.kept.pass_work.Work`.

    Args:
        locations: Paths and URLs.
        sizes: Sizes of the files in bytes.
    """

    label = "digesting files"
    unit = "B"

    def __init__(self, locations: Sequence[str], sizes: Sequence[int]):
        self._locations = locations
        self.blocks = [
            _Block(index, start, min(start + _BLOCK, size))
            for index, size in enumerate(sizes)
            for start in range(0, max(size, 1), _BLOCK)
        ]
        self.parts: list[list[_Block]] = [[]]
        room = _BLOCK
        for block in self.blocks:
            room -= block.stop - block.start
            if room < 0 and self.parts[-1]:
                self.parts.append([])
                room = _BLOCK - (block.stop - block.start)
            self.parts[-1].append(block)

    @property
    def sizes(self) -> list[int]:
        """Bytes of each part."""
        return [
            sum(block.stop - block.start for block in part) for part in self.parts
        ]

    def compute(self, part: int, over: Event) -> Arrays:
        """Digests of the blocks of a part."""
        files = Files()
        digests = []
        for file, start, stop in self.parts[part]:
            if over.is_set():
                break
            content = [b""]
            if stop > start:
                content = files.read([ByteRange(self._locations[file], start, stop)])
            digests.append(hashlib.sha256(content[0]).digest())
        array = np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 32)
        return {"digests": array}


def digested(
    locations: Sequence[str],
    index: Any,
    executor: Any,
    progress: bool | None,
) -> list[DataFile]:
    """Digests of the bytes of files, from an index folder where it has them.

    Raises:
        SourceError: If a file can't be read; names it.
        ArgumentError: If the index is not the path of a folder, or there is an executor without one.
    """
    infos = Files().infos(locations)
    sizes = [info.size for info in infos]
    work = DigestWork(locations, sizes)
    if not locations:
        return []
    # a time of status can't be set: it tells of bytes that were changed under an old time of change
    times = [
        _time_of_status(location) or info.generation.decode(errors="replace")
        for location, info in zip(locations, infos, strict=True)
    ]
    names = [
        [file_name(one), size] for one, size in zip(locations, sizes, strict=True)
    ]
    known = {
        "version": _VERSION,
        "sizes": _hash_of(names),
        FILES: _hash_of([*zip(locations, times, strict=True)]),
    }
    entry = kept_pass(
        None if index is None else IndexFolder(index),
        "contents",
        lambda: known,
        partial(_check, count=len(work.blocks)),
        lambda: work,
        _merged,
        PassOptions(min(_THREADS, os.cpu_count() or 1), executor, progress),
    )
    blocks: list[list[bytes]] = [[] for _ in locations]
    for block, digest in zip(work.blocks, entry.arrays["digests"], strict=True):
        blocks[block.file].append(digest.tobytes())
    return [
        DataFile(location, info.size, info.generation.decode(errors="replace"), each)
        for location, info, each in zip(
            locations, infos, map(_joined, blocks), strict=True
        )
    ]


def _joined(digests: list[bytes]) -> str:
    """Digest of a file from those of its blocks: of a file of one block, the first digits of its SHA-256."""
    if len(digests) == 1:
        return digests[0].hex()[:32]
    return hashlib.sha256(b"".join(digests)).hexdigest()[:32]


def _merged(parts: Iterator[Arrays]) -> Entry:
    found = [part["digests"] for part in parts]
    return Entry({"digests": np.concatenate(found)}, {})


def _check(entry: Entry, count: int) -> None:
    digests = entry.arrays["digests"]
    if digests.shape != (count, 32) or digests.dtype != np.uint8:
        raise ValueError(f"digests have the shape {digests.shape}")


def _time_of_status(location: str) -> str | None:
    path = local_path(location)
    if path is None:
        return None
    try:
        status = path.stat()
    except OSError as error:
        raise SourceError(f"{location}: it can't be read: {error}") from error
    return f"{status.st_mtime_ns} {status.st_ctime_ns}"


def in_memory(source: BaseSource) -> list[DataFile]:
    """Digests of the arrays that a source and those below hold in memory."""
    found = []
    for part in walk(source):
        arrays: Iterator[Array] = iter(part.held(_MOST_MEMORY))
        for number, array in enumerate(arrays):
            name = f"array {number} of {part!r}"
            found.append(DataFile(name, int(array.nbytes), "", digest_of([array])))
    return found


def check_digestible(source: BaseSource) -> None:
    """Checks that all data of a source is in files or in memory.

    Raises:
        ArgumentError: If a source below has neither.
    """
    for part in walk(source):
        has_files = bool(part.addresses) or part.some_files(1) is not None
        if part.children or has_files or any(True for _ in part.held(1)):
            continue
        raise ArgumentError(
            f"contents='digest': the rows of {part!r} are neither in files nor in "
            "memory, so their bytes can't be compared; leave contents= out"
        )


def _hash_of(value: Any) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:32]


def combined(files: Sequence[DataFile], field: str) -> str:
    """One digest of several files, as 16 hexadecimal digits. `field`: "generation" or "digest"."""
    facts: list[Mapping[str, Any]] = [file._asdict() for file in files]
    return _hash_of([[fact["size"], fact[field]] for fact in facts])[:16]
