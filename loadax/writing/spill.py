"""Spill: rows that arrive in one order and are read back in another, bucket by bucket, through a temporary file.

Rows that fit into the buffer stay in memory. Otherwise the file has a header, int64[2] (rows of a bucket, and how much
of the input is in the file), and then the buckets, each of a fixed size, with their rows in the order of arrival. The
header is written once the rows are on disk, so a resumed write continues from there.
"""

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, final

import numpy as np
from numpy.typing import NDArray

from loadax.core.formatting import size_text
from loadax.errors import SourceError
from loadax.protocols import ArraySpec, Integers
from loadax.sources.io.kept_files import open_kept

BUFFER_BYTES = 128 << 20  # rows in memory, before they are appended to the file
HEADER_BYTES = 16

_PLACE = "place"


def row_dtype(specs: Sequence[ArraySpec]) -> np.dtype[Any]:
    """Structured dtype of a row: its place, and its leaves, named by their number."""
    leaves = [(str(number), spec.dtype, spec.shape) for number, spec in enumerate(specs)]
    return np.dtype([(_PLACE, np.int64), *leaves], align=True)


@final
class Spill:
    """Rows at the places 0 to `size - 1`; each arrives once.

    Args:
        dtype: Dtype of a row, from `row_dtype`.
        size: Number of rows.
        bucket_rows: Rows of a bucket; `size` if there is no file.
        file: The temporary file; None: all rows stay in memory.
    """

    def __init__(self, dtype: np.dtype[Any], size: int, bucket_rows: int, file: BinaryIO | None):
        self._dtype, self._size, self.bucket_rows, self._file = dtype, size, bucket_rows, file
        rows = size if file is None else max(1, min(size, BUFFER_BYTES // dtype.itemsize))
        self._buffer = np.empty(rows, dtype)  # the kernel allocates its pages on first use
        self._buffered = 0
        self._stored = np.zeros(-(-size // bucket_rows), np.int64)  # rows of each bucket in the file

    @property
    def input_stored(self) -> int:
        """How much of the input is in the file, from an interrupted write."""
        header = b"" if self._file is None else os.pread(self._file.fileno(), HEADER_BYTES, 0)
        bucket_rows, end = np.frombuffer(header, np.int64) if len(header) == HEADER_BYTES else (0, 0)
        return int(end) if bucket_rows == self.bucket_rows else 0

    def count_stored(self, places: Integers) -> None:
        """Counts rows, int64[n], that an interrupted write has stored in the file."""
        self._stored += np.bincount(places // self.bucket_rows, minlength=len(self._stored))

    def add(self, places: Integers, leaves: Sequence[NDArray[Any]], begin: int) -> None:
        """Adds the rows at `places`, int64[n], given their leaves; the input before `begin` was added before."""
        for low in range(0, len(places), len(self._buffer)):
            rows = slice(low, low + len(self._buffer))
            if self._buffered + len(places[rows]) > len(self._buffer):
                self.flush(begin)
            added = self._buffer[self._buffered :][: len(places[rows])]
            added[_PLACE] = places[rows]
            for number, leaf in enumerate(leaves):
                added[str(number)] = leaf[rows]
            self._buffered += len(added)

    def flush(self, end: int) -> None:
        """Appends the rows in memory to the buckets of the file, which then has all input before `end`."""
        if self._file is None:
            return
        buckets = self._buffer[_PLACE][: self._buffered] // self.bucket_rows
        by_bucket = np.argsort(buckets, kind="stable")
        counts = np.bincount(buckets, minlength=len(self._stored))
        with _named_errors(self._file.name):
            for bucket, rows in enumerate(np.split(by_bucket, np.cumsum(counts)[:-1])):
                if len(rows):
                    self._file.seek(self._offset(bucket) + int(self._stored[bucket]) * self._dtype.itemsize)
                    self._file.write(self._buffer[rows].view(np.uint8).data)
            self._file.flush()
            os.fsync(self._file.fileno())
            os.pwrite(self._file.fileno(), np.array([self.bucket_rows, end], np.int64).tobytes(), 0)
        self._stored += counts
        self._buffered = 0

    def bucket(self, number: int) -> tuple[NDArray[Any], Integers]:
        """Reads the rows of a bucket, and for each place in it the index of its row, int64[n].

        Raises:
            SourceError: When rows are missing, or the file can't be read.
        """
        first = number * self.bucket_rows
        size = min(self.bucket_rows, self._size - first)
        rows = self._buffer[: self._buffered]
        if self._file is not None:
            with _named_errors(self._file.name):
                self._file.seek(self._offset(number))
                rows = np.frombuffer(self._file.read(size * self._dtype.itemsize), self._dtype)
        index = np.full(size, -1)
        index[np.clip(rows[_PLACE] - first, 0, size - 1)] = np.arange(len(rows))
        if (index < 0).any():
            where = "memory" if self._file is None else self._file.name
            raise SourceError(f"{where}: {(index < 0).sum()} of {size} rows are missing; delete it, and resume")
        return rows, index

    def _offset(self, bucket: int) -> int:
        return HEADER_BYTES + bucket * self.bucket_rows * self._dtype.itemsize


@contextmanager
def spill_file(path: Path, size: int, *, resume: bool) -> Iterator[BinaryIO | str]:
    """A block that uses a temporary file, which is deleted at its end unless an exception is raised.

    Args:
        path: Path of the file. It exists if an interrupted write left it, or another process is writing the same.
        size: Disk space to reserve, in bytes.
        resume: Whether to keep the contents of an existing file.

    Yields:
        The file; or, as text, why it can't be used.

    Raises:
        SourceError: When it can't be opened.
    """
    with ExitStack() as stack:
        with _named_errors(path):
            file = stack.enter_context(open(path, "r+b", opener=_open))
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield f"another process uses {path}"
            return
        except OSError:  # not every file system has locks
            pass
        if not resume:
            file.truncate(0)
        try:
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            path.unlink(missing_ok=True)
            yield f"{path} needs {size_text(size)} of disk space: {error.strerror}"
            return
        yield file
    path.unlink(missing_ok=True)


def _open(path: str, flags: int) -> int:
    return open_kept(Path(path), flags | os.O_CREAT)


@contextmanager
def _named_errors(path: str | Path) -> Iterator[None]:
    """Names the temporary file in errors."""
    try:
        yield
    except OSError as error:
        raise SourceError(f"{path}: the temporary file failed: {error}; free disk space, and resume") from error
