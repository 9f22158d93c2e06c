"""Byte ranges and sizes of files, errors about them, and the joining of ranges that are near each other."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from loadax.errors import SourceError, StorageError

# Largest gap in bytes that is read together with the parts of a file on both sides of it: the ends of lines, and the
# headers of members. Reading it takes less time than copying the parts one by one.
NEAR = 4 << 10

# Largest joined range in bytes, so that several requests share the work.
JOINED = 8 << 20


class ByteRange(NamedTuple):
    """Bytes `[start, stop)` of a file."""

    location: str
    start: int
    stop: int

    def __str__(self) -> str:
        return f"{self.location}, bytes {self.start} to {self.stop - 1}"


class FileInfo(NamedTuple):
    """Size of a file in bytes, and its generation: ETag or time of change, empty if the server sends neither."""

    size: int
    generation: bytes


# Sizes and generations of remote files, by URL.
KnownFiles: TypeAlias = Mapping[str, FileInfo]


def joined(
    ranges: Sequence[ByteRange], gap: int
) -> Iterator[tuple[ByteRange, list[int]]]:
    """Joins nearby ranges of a file; yields each joined range and the indices of the ranges in it.

    Args:
        ranges: Ranges of any files.
        gap: Largest gap in bytes between two that are joined.

    Examples:
        >>> from loadax.files.byte_ranges import ByteRange, joined
        >>> for whole, within in joined([ByteRange("a", 90, 95), ByteRange("a", 5, 6), ByteRange("a", 0, 1)], gap=50):
        ...     print(whole, within)
        a, bytes 0 to 5 [2, 1]
        a, bytes 90 to 94 [0]
    """
    within: list[int] = []
    location = ""
    start = 0
    stop = 0
    for index in sorted(range(len(ranges)), key=ranges.__getitem__):
        wanted = ranges[index]
        if (
            within
            and wanted.location == location
            and wanted.start <= stop + gap
            and wanted.stop <= start + JOINED
        ):
            stop = max(stop, wanted.stop)
            within.append(index)
            continue
        if within:
            yield ByteRange(location, start, stop), within
        (location, start, stop), within = wanted, [index]
    if within:
        yield ByteRange(location, start, stop), within


def waves(sizes: Sequence[int], most: int) -> Iterator[slice]:
    """Cuts parts of these sizes into runs of at most `most`, of at least one part each.

    Examples:
        >>> from loadax.files.byte_ranges import waves
        >>> list(waves([3, 4, 9, 1], 8))
        [slice(0, 2, None), slice(2, 3, None), slice(3, 4, None)]
    """
    first = 0
    total = 0
    for position, size in enumerate(sizes):
        total += size
        if total > most and position > first:
            yield slice(first, position)
            first = position
            total = size
    if len(sizes) > first:
        yield slice(first, len(sizes))


# What `changed` says of a file that was truncated
SHORTER = "has become shorter"


def no_such_file(location: str) -> StorageError:
    """Error for a file that does not exist."""
    return StorageError(f"{location}: there is no such file")


def too_short(byte_range: ByteRange) -> SourceError:
    """Error for a range that exceeds its file."""
    return SourceError(
        f"{byte_range.location}: bytes {byte_range.start} to {byte_range.stop - 1} "
        "are missing: the file is cut short, or of another kind; copy it again"
    )


def changed(location: str, how: str = "has changed") -> SourceError:
    """Error for a file that was written again, replaced or truncated since it was opened."""
    return SourceError(
        f"{location}: the file {how} since it was opened; data must not change while "
        "it is read: restore the file, or open the dataset again"
    )
