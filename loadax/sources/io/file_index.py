"""Indexes files whose format has no index of its own: finds the records of every file once, and keeps the result."""

from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from loadax.core.distributed import this_process
from loadax.core.memory import return_freed_memory
from loadax.core.progress import progress_bar
from loadax.errors import ArgumentError
from loadax.protocols import Integers
from loadax.sources.io.byte_ranges import ByteRange
from loadax.sources.io.expand import file_name
from loadax.sources.io.file_map import FileMap
from loadax.sources.io.files import Files
from loadax.sources.io.identity import digest_of
from loadax.sources.io.index_folder import FILES, Entry, IndexFolder, cached, check_array
from loadax.sources.io.paths import local_path

_WINDOW = 8 << 20  # bytes of a file that are read, or mapped, at once
_AT_ONCE = 16  # remote files that are read at once
ENTRY = "records"
"""Name of the entry in the index folder."""

Found = TypeVar("Found")
Scan = Generator[tuple[int, int], memoryview, Found]
"""Finds the records of one file: yields byte ranges, receives their bytes (fewer at the end of the file) and those
at hand after them, returns what it found. The ranges must ascend.
"""


def index_files(
    kind: str,
    files: Files,
    locations: Sequence[str],
    scan: Callable[[str, int], Scan[Found]],
    merge: Callable[[list[Found]], Entry],
    check: Callable[[Entry, Integers], object],
    index: Any,
    progress: bool | None,
) -> Entry:
    """Finds the records of files, or loads them from an index on disk.

    Args:
        kind: Format of the files and version of their scan, such as "tar 1".
        files: Reader of the files.
        locations: Paths and URLs of the files.
        scan: Scan of one file, from its path or URL and its size.
        merge: Merges the results of all files, in order; may empty their list.
        check: Checks an entry that was loaded from disk, with the sizes of the files; raises `ValueError`.
        index: Path of the index folder; None: no index.
        progress: Whether to show a progress bar; None: if stderr is a terminal.

    Raises:
        ArgumentError: When `index` is not a folder, or there is none for remote files in a run of several processes.
        SourceError: When a file can't be read or is damaged, or the index can't be read or written.
    """
    sizes = files.sizes(locations)
    folder = None if index is None else IndexFolder(index)

    def make() -> Entry:
        processes = this_process().count
        if processes > 1 and files.far(locations):
            missing = "without index=" if folder is None else f"without its index at {folder.path(ENTRY)}"
            raise ArgumentError(
                f"remote files {missing}, in a run of {processes} processes: each would read all {len(locations)} "
                "files; build the index before the run by opening the dataset once in one process, and pass index=PATH"
            )
        scans = [_Scan(location, size, scan) for location, size in zip(locations, sizes, strict=True)]
        with progress_bar("index", sum(sizes), "B", progress) as done:
            _run_local([one for one in scans if one.path], done)
            _run_remote([one for one in scans if not one.path], files, done)
        found = [one.found for one in scans]
        scans.clear()  # `merge` frees parts as it joins them
        return merge(found)

    known = partial(_identity, kind, files, locations)
    return cached(folder, ENTRY, known, lambda entry: check(entry, np.array(sizes, np.int64)), make)


class FileRecords(NamedTuple):
    """First byte and size of each record of a file, int64[n] both."""

    begins: Integers
    sizes: Integers


def merge_records(found: list[FileRecords], counts: str) -> Entry:
    """Merges the records of all files; `counts`: name of the array of their number in each. Empties the list."""
    begins, sizes = (list(column) for column in zip(*found, strict=True))
    numbers = np.array([len(part) for part in begins])
    found.clear()
    return Entry({"begins": merged(begins), "sizes": merged(sizes), counts: numbers}, {})


def merged(parts: list[NDArray[Any]]) -> NDArray[Any]:
    """Concatenates arrays, at least one; empties the list, to free them."""
    whole = np.concatenate(parts)
    parts.clear()
    return_freed_memory()
    return whole


def check_records(entry: Entry, sizes: Integers, counts: str, after: int = 0) -> None:
    """Checks that records loaded from an index are in their files.

    Args:
        entry: Arrays `begins` and `sizes` of the records, and their number in each file.
        sizes: Sizes of the files, int64[files].
        counts: Name of the array of those numbers.
        after: Bytes of each record behind its end.

    Raises:
        ValueError: If they are not.
    """
    numbers = check_array(entry, counts, np.int64, len(sizes), 0, int(sizes.sum()))
    records = sum(numbers.tolist())
    begins = check_array(entry, "begins", np.int64, records, 0)
    lengths = check_array(entry, "sizes", np.int64, records, 0, int(sizes.max(initial=0)))
    if (begins > np.repeat(sizes - after, numbers) - lengths).any():
        raise ValueError("a record ends after its file")


@final
class _Scan:
    """The scan of one file."""

    def __init__(self, location: str, size: int, scan: Callable[[str, int], Scan[Any]]):
        self.location, self.size = location, size
        self.path = local_path(location)
        self.found: Any = None
        self._steps = scan(location, size)
        self.wanted: tuple[int, int] | None = None
        self._send(None)

    def window(self) -> ByteRange:
        """The bytes of the file to read next."""
        assert self.wanted is not None
        start, stop = self.wanted
        return ByteRange(self.location, start, max(start, min(max(stop, start + _WINDOW), self.size)))

    def advance(self, window: ByteRange, content: bytes | memoryview) -> int:
        """Scans as far as the window goes; returns the number of bytes that this advanced."""
        view, begin = memoryview(content), window.start
        while self.wanted is not None and self.wanted[0] >= begin:
            start, stop = self.wanted
            if min(stop, self.size) > window.stop or start > window.stop:
                return start - begin
            self._send(view[start - begin :])
        return self.size - begin

    def _send(self, content: memoryview | None) -> None:
        try:
            self.wanted = next(self._steps) if content is None else self._steps.send(content)
        except StopIteration as stopped:
            self.wanted, self.found = None, stopped.value


def _run_local(scans: Sequence[_Scan], done: Callable[[int], object]) -> None:
    """Scans local files, one after the other; what is scanned does not stay in the memory of the process."""
    for one in scans:
        file = FileMap(one.path) if one.path and one.size else None
        while one.wanted is not None:
            window = one.window()
            done(one.advance(window, file.bytes[window.start : window.stop].data if file else memoryview(b"")))
            if file:
                file.forget(window.stop)


def _run_remote(scans: Sequence[_Scan], files: Files, done: Callable[[int], object]) -> None:
    """Scans remote files, a window of each of several at a time."""
    waiting = [one for one in scans if one.wanted is not None]
    while waiting:
        running = waiting[:_AT_ONCE]
        windows = [one.window() for one in running]
        for one, window, content in zip(running, windows, files.read(windows), strict=True):
            done(one.advance(window, content))
        waiting = [one for one in waiting if one.wanted is not None]


def _identity(kind: str, files: Files, locations: Sequence[str]) -> dict[str, str | None]:
    """Digests of the identities of files, of what local copies of them share, and of the places and times of those."""
    known = files.identities(locations)
    local = [local_path(location) is not None for location in locations]
    # Each process may have its own copies of local files.
    shared = [
        (file_name(one.location), one.size, one.sample) if near else one for near, one in zip(local, known, strict=True)
    ]
    copies = [(one.location, one.generation) for near, one in zip(local, known, strict=True) if near]
    return {
        "format": kind,
        "contents": digest_of(shared),
        FILES: None if this_process().count > 1 else digest_of(copies),
    }
