"""Indexes files whose format has no index of its own: finds the records of every file once, and keeps the result."""

import json
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, TypeVar, final

import numpy as np

from loadax.core.distributed import this_process
from loadax.core.formatting import count_text
from loadax.core.log import log
from loadax.core.memory import return_freed_memory
from loadax.errors import SourceError
from loadax.files.byte_ranges import ByteRange
from loadax.files.file_map import FileMap
from loadax.files.files import Files
from loadax.files.identity import digest_of
from loadax.files.paths import local_path
from loadax.kept.index_folder import FILES, Entry, IndexFolder, check_array
from loadax.kept.kept_pass import PassOptions, check_index, kept_pass
from loadax.kept.parts import Arrays
from loadax.protocols import Array, Integers
from loadax.sources.expand import file_name
from loadax.sources.format import RecordOptions

WINDOW = 8 << 20  # bytes of a remote file that are read at once
# bytes of a local file that are in the memory of the process at once
MAPPED = 1 << 20
AT_ONCE = 16  # remote files that are read at once
PARTS = 512  # most parts, each of whole files
FEW_PARTS = 64  # fewer are not worth saving: so many files are a part each
PART = 8 << 20  # bytes of more local files that are worth a part
REASONS = "reasons"  # fact of an entry: what is wrong with each file
_FACTS = "facts"  # of the entry of a part, beside its arrays
# Name of the entry in the index folder.
ENTRY = "records"

Found = TypeVar("Found")
# Finds the records of one file: yields byte ranges, receives their bytes (fewer at the end of the file) and those
# at hand after them, returns what it found. The ranges must ascend.
Scan = Generator[tuple[int, int], memoryview, Found]


class RecordFormat(NamedTuple):
    """A format of files with records. Its functions can be pickled.

    Args:
        opener: Name of the function that opens them, for messages.
        kind: Name of the format and version of its scan, such as "tar 1".
        scan: Scan of one file, from its path or URL and its size; returns the entry of its records.
        merge: Merges the entries of consecutive files, in order.
        check: Checks an entry that was loaded from disk, with the sizes of the files; raises `ValueError`.
    """

    opener: str
    kind: str
    scan: Callable[[str, int], Scan[Entry]]
    merge: Callable[[Iterable[Entry]], Entry]
    check: Callable[[Entry, Integers], object]


def index_files(
    form: RecordFormat, files: Files, locations: Sequence[str], options: RecordOptions
) -> Entry:
    """Finds the records of files in a pass, or loads them from an index on disk.

    Args:
        form: Format of the files.
        files: Reader of the files.
        locations: Paths and URLs of the files.
        options: Where the index is, and how it is made.

    Raises:
        ArgumentError: When the index is not a folder, or is None although an executor is given, or for remote files
            in a run of several processes.
        SourceError: When a file can't be read or is damaged, or the index can't be read or written.
    """
    sizes = files.sizes(locations)
    if options.index is None:
        folder = None
    else:
        folder = IndexFolder(options.index)
    remote = files.far(locations)
    if remote:
        check_index(folder, form.opener, count_text(len(locations), "file"))
    # before the pass, which all processes do together
    files.opened()
    return kept_pass(
        folder,
        ENTRY,
        partial(identity_of, form.kind, files, locations),
        lambda entry: form.check(entry, np.array(sizes, np.int64)),
        lambda: _work(form, files, locations, sizes, remote),
        lambda parts: form.merge(map(_entry_of, parts)),
        # The scan of a local file computes, and holds the GIL.
        PassOptions(AT_ONCE if remote else 1, options.executor, options.progress),
        shared=remote,
    )


def run_scan(
    scan: Scan[Found],
    size: int,
    read: Callable[[int, int], bytes | memoryview],
    window: int | None = None,
) -> Found:
    """Runs the scan of a file of `size` bytes, which are read in windows, from a first byte to before another one."""
    view = memoryview(b"")
    begin = 0
    try:
        start, stop = next(scan)
        while True:
            if max(start, min(stop, size)) > begin + len(view):
                begin = start
                end = max(start, min(max(stop, start + (window or WINDOW)), size))
                view = memoryview(read(begin, end))
            start, stop = scan.send(view[start - begin :])
    except StopIteration as stopped:
        found: Found = stopped.value
        return found


@final
@dataclass(frozen=True)
class _ScanWork:
    """Scan of files; see `loadax.kept.pass_work.Work`.

    Args:
        form: Format of the files.
        files: Reader of the files.
        locations: Paths and URLs of the files.
        file_sizes: Sizes of the files.
        firsts: Number of the first file of each part, and the number of files.
        sizes: Bytes of each part.
    """

    form: RecordFormat
    files: Files
    locations: Sequence[str]
    file_sizes: Sequence[int]
    firsts: list[int]
    sizes: list[int]
    label: str = "index"
    unit: str = "B"

    def compute(self, part: int, over: threading.Event) -> Arrays:
        """Arrays and facts of the entry of the files of a part."""
        numbers = range(*self.firsts[part : part + 2])
        entries = (
            self._scan(self.locations[number], self.file_sizes[number], over)
            for number in numbers
        )
        if len(numbers) == 1:
            entry = next(entries)
        else:
            entry = self.form.merge(entries)
        return {
            **entry.arrays,
            _FACTS: np.frombuffer(json.dumps(entry.facts).encode(), np.uint8),
        }

    def _scan(self, location: str, size: int, over: threading.Event) -> Entry:
        path = local_path(location)
        if path and size:
            file = FileMap(path)
        else:
            file = None

        def read(start: int, stop: int) -> bytes | memoryview:
            if over.is_set():
                raise CancelledError
            if not file:
                return self.files.read([ByteRange(location, start, stop)])[0]
            # what is scanned does not stay in the memory of the process
            file.forget(start)
            return file.bytes[start:stop].data

        return run_scan(
            self.form.scan(location, size), size, read, MAPPED if file else WINDOW
        )


def _work(
    form: RecordFormat,
    files: Files,
    locations: Sequence[str],
    sizes: Sequence[int],
    remote: bool,
) -> _ScanWork:
    """Plans parts of whole consecutive files, from numbers alone."""
    if len(sizes) <= FEW_PARTS:
        firsts = np.arange(len(sizes))
    else:
        ends = np.cumsum(sizes)
        least = -(-int(ends[-1]) // PARTS)
        if not remote:
            least = max(least, min(PART, -(-int(ends[-1]) // FEW_PARTS)))
        firsts = np.flatnonzero(np.diff((ends - sizes) // max(1, least), prepend=-1))
    return _ScanWork(
        form,
        files,
        locations,
        sizes,
        [*firsts.tolist(), len(sizes)],
        np.add.reduceat(sizes, firsts).tolist(),
    )


def _entry_of(part: Arrays) -> Entry:
    arrays = dict(part)
    return Entry(arrays, json.loads(arrays.pop(_FACTS).tobytes()))


def record_entry(counts: str, begins: Any, sizes: Any) -> Entry:
    """Entry of a file: first byte and size of each record, int64[n]; `counts`: name of the array of their number."""
    return Entry(
        {
            "begins": np.asarray(begins),
            "sizes": np.asarray(sizes),
            counts: np.array([len(begins)]),
        },
        {},
    )


def merge_records(entries: Iterable[Entry]) -> Entry:
    """Merges entries of records, whose facts are lists with an item for each file."""
    columns, facts = columns_of(entries)
    lists = {
        name: [*chain.from_iterable(fact[name] for fact in facts)]
        for name in facts[0]
    }
    return Entry({name: merged(parts) for name, parts in columns.items()}, lists)


def columns_of(
    entries: Iterable[Entry],
) -> tuple[dict[str, list[Array]], list[dict[str, Any]]]:
    """The arrays of each name, and the facts, of entries that have arrays of the same names."""
    columns = dict[str, list[Array]]()
    facts = []
    for entry in entries:
        facts.append(entry.facts)
        for name, array in entry.arrays.items():
            columns.setdefault(name, []).append(array)
    return columns, facts


def merged(parts: list[Array]) -> Array:
    """Concatenates arrays, at least one; empties the list, to free them."""
    if len(parts) == 1:
        whole = parts[0]
    else:
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
    lengths = check_array(
        entry, "sizes", np.int64, records, 0, int(sizes.max(initial=0))
    )
    if (begins > np.repeat(sizes - after, numbers) - lengths).any():
        raise ValueError("a record ends after its file")


def check_reasons(entry: Entry, files: int) -> None:
    """Checks what an index says to be wrong with some files; see `refuse_damaged`.

    Raises:
        ValueError: If it can't be of these files.
    """
    reasons = entry.facts[REASONS]
    if [type(reason) for reason in reasons] != [str] * files:
        raise ValueError("the reasons are not one text for each file")


def refuse_damaged(entry: Entry, locations: Sequence[str], damaged: str) -> None:
    """Refuses files in which something is wrong, or with `damaged="accept"` logs what it is.

    Args:
        entry: Fact `REASONS`: what is wrong with each file; "" if nothing is.
        locations: Paths and URLs of the files.
        damaged: "error" or "accept".

    Raises:
        SourceError: When one is damaged; names it.
    """
    found = zip(locations, entry.facts[REASONS], strict=True)
    bad = [(location, reason) for location, reason in found if reason]
    if bad and damaged == "error":
        location, reason = bad[0]
        others = (
            f" ({len(bad)} of {count_text(len(locations), 'file')} are damaged)"
            * (len(bad) > 1)
        )
        raise SourceError(
            f"{location}: {reason}{others}; copy the file again, leave it out, or pass "
            "damaged='accept' to have what is there",
            argument="damaged",
        )
    for location, reason in bad:
        log.warning("%s: %s", location, reason)


def identity_of(
    kind: str, files: Files, locations: Sequence[str]
) -> dict[str, str | None]:
    """Digests of the identities of files, of what local copies of them share, and of the places and times of those."""
    known = files.identities(locations)
    local = [local_path(location) is not None for location in locations]
    # Each process may have its own copies of local files.
    shared = [
        (file_name(one.location), one.size, one.sample) if near else one
        for near, one in zip(local, known, strict=True)
    ]
    copies = [
        (one.location, one.generation)
        for near, one in zip(local, known, strict=True)
        if near
    ]
    return {
        "format": kind,
        "contents": digest_of(shared),
        FILES: None if this_process().count > 1 else digest_of(copies),
    }
