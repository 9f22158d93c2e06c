"""Source order: reads a shuffled dataset in one pass over its source, to write it with each chunk decoded once.

In shuffled order, a read touches about as many chunks as it has rows, so each chunk is decoded about once per row.
Instead the source is read in runs of whole chunks, maps are applied, and rows go to the bucket of their position: a
range of positions that fits into memory, from which they are written. Values are the same, because a map depends on the
row and its epoch, not on what is read before.

Rows that fit into memory stay there, in one bucket. Otherwise buckets are areas of a temporary file, with their rows in
the order of arrival. It begins with the number of source rows that it covers, which is written once they are on disk,
so that a resumed write continues from there. Processes that write the same file write the same bytes.
"""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO, final

import numpy as np

from loadax.core.context import Caller
from loadax.core.formatting import size_text
from loadax.core.log import log
from loadax.core.progress import progress_bar
from loadax.core.spec import check_batch, flatten_spec
from loadax.core.threads import thread_pool
from loadax.core.tree import flatten
from loadax.errors import SourceError
from loadax.plan.order import depth_first
from loadax.plan.sample import Sampled
from loadax.protocols import Array, Integers, Tree, Visits
from loadax.sources.checks import chunk_starts
from loadax.sources.io.kept_files import open_kept
from loadax.sources.wrappers.chunk_cache import largest_chunk
from loadax.writing.destination import Share
from loadax.writing.layout import Layout
from loadax.writing.parts import Parts, ahead, rows_per_read
from loadax.writing.rows import Written

_MEMORY_BYTES = 128 << 20  # all rows, if there is no file; rows that wait to be appended; a bucket, at least a part
_RUN_BYTES = 8 << 20  # one read of the source, at least a chunk
_FEWER_CHUNKS = 3  # times fewer decoded chunks, which pay for writing rows to a file and reading them back
_COUNTED = 1 << 20  # positions in one step, when rows in the file are counted
_HEADER_BYTES = 16  # int64[2]: rows of a bucket, rows of the source that the file covers


@contextmanager
def in_source_order(
    parts: Parts, wanted: Sequence[int], share: Share, path: Path | None, *, resume: bool, progress: bool | None
) -> Iterator[Parts]:
    """A block that writes parts; yields them, after one pass over their source if that decodes far fewer chunks.

    Args:
        parts: Writer of the parts.
        wanted: Parts that will be written.
        share: `(i, n)`: this process writes every n-th part from i on.
        path: Path of the temporary file, which is deleted after the block unless it fails; None: no file can be used.
        resume: Whether to continue with the file of an interrupted write.
        progress: Whether to show a progress bar of the pass; None: if stderr is a terminal.

    Raises:
        SourceError: When the file can't be written or read.
    """
    rows, layout = parts.rows, parts.layout
    if not isinstance(rows, Written) or not _pays(rows, layout, wanted, parts.workers):
        yield parts
        return
    row = np.dtype([("", np.int64), *(("", each.spec.dtype, each.spec.shape) for each in layout.arrays)], align=True)
    size = row.itemsize * sum(stop - start for start, stop in map(layout.part, range(share[0], layout.parts, share[1])))
    in_memory = size <= _MEMORY_BYTES
    if not in_memory and (reason := _lacks_space(path, size)):
        log.warning("chunks of the source are decoded once for each row: %s", reason)
        yield parts
        return
    with nullcontext() if in_memory or path is None else _open(path, resume) as file:
        ordered = SourceOrder(rows, layout, share, row, file)
        ordered.read_source(parts.workers, progress)
        yield replace(parts, rows=replace(rows, stored=ordered.read))
    if file is not None and path is not None:
        path.unlink(missing_ok=True)


@final
class SourceOrder:
    """Rows of some parts of a store, from one pass over their source.

    Args:
        rows: Rows to write.
        layout: Layout of the store.
        share: `(i, n)`: every n-th part from i on.
        row: Structured dtype of a row: its position, and its leaves.
        file: Temporary file; None: all rows stay in memory.
    """

    def __init__(self, rows: Written, layout: Layout, share: Share, row: np.dtype[Any], file: BinaryIO | None):
        self._rows, self._layout, self._share, self._row, self._file = rows, layout, share, row, file
        self._position, *self._leaves = row.names or ()
        parts = max(1, _MEMORY_BYTES // (row.itemsize * layout.shard_rows)) if file is not None else layout.parts
        self._bucket_rows = parts * layout.shard_rows
        self._stored = np.zeros(-(-layout.parts // parts), np.int64)  # rows of each bucket in the file
        self._buffer = np.empty(max(1, _MEMORY_BYTES // row.itemsize), row)  # unused pages take no memory
        self._buffered = 0
        self._bucket: tuple[int, Array] | None = None
        self._lock = Lock()

    def read_source(self, workers: int, progress: bool | None) -> None:
        """Reads the source in its order, in threads, from where an interrupted write stopped."""
        begin, length, caller = self._resume(), len(self._rows.reader.source), Caller()
        with (
            progress_bar("reading rows in the order of the source", length - begin, "row", progress) as done,
            thread_pool(workers, "loadax-write") as pool,
        ):
            for (low, high), future in ahead(
                _runs(self._rows, self._row.itemsize, begin),
                lambda run: pool.submit(caller.run, self._read_run, *run),
                lambda begun: len(begun) > workers,
            ):
                self._add(future.result(), low)
                done(high - low)
        self._store(length)
        if self._file is not None:
            self._buffer = self._buffer[:0].copy()  # frees its memory

    def read(self, positions: Integers) -> Tree:
        """Reads the rows at `positions`, int64[n], all in one part."""
        number = int(positions[0]) // self._bucket_rows
        with self._lock:
            if self._bucket is None or self._bucket[0] != number:
                self._bucket = None  # frees its memory
                self._bucket = number, self._load(number)
            _, rows = self._bucket
        found = np.searchsorted(rows[self._position], positions)
        if not np.array_equal(rows[self._position][found[: found.searchsorted(len(rows))]], positions):
            raise SourceError(f"{'memory' if self._file is None else self._file.name}: rows are missing; delete it")
        chosen = rows[found]
        return flatten_spec(self._rows.spec)[1].build(chosen[leaf] for leaf in self._leaves)

    def _read_run(self, low: int, high: int) -> Array:
        """Reads the rows of these parts that are rows `low` to `high - 1` of the source."""
        order, source_rows = self._rows.order, np.arange(low, high)
        positions = order.inverse(source_rows, np.zeros_like(source_rows), (0, order.size)).positions
        positions = positions[positions // self._layout.shard_rows % self._share[1] == self._share[0]]
        visits = order.visits(np.zeros_like(positions), positions)
        ascending = np.argsort(visits.rows, kind="stable")
        rows = np.empty(len(ascending), self._row)
        if len(rows):
            batch = self._rows.reader.read_visits(Visits(visits.rows[ascending], visits.epochs[ascending]))
            origin = f"the dataset's read of rows {low} to {high - 1} of its source"
            rows[self._position] = positions[ascending]
            for name, leaf in zip(
                self._leaves, flatten(check_batch(batch, len(rows), self._rows.spec, origin))[0], strict=True
            ):
                rows[name] = leaf
        return rows

    def _add(self, rows: Array, begin: int) -> None:
        """Adds rows to the buffer; the source before row `begin` was added already."""
        for first in range(0, len(rows), len(self._buffer)):
            added = rows[first : first + len(self._buffer)]
            if self._buffered + len(added) > len(self._buffer):
                self._store(begin)
            self._buffer[self._buffered : self._buffered + len(added)] = added
            self._buffered += len(added)

    def _store(self, end: int) -> None:
        """Appends the buffer to the buckets of the file, which then covers the source up to row `end`."""
        if self._file is None:
            return
        file, rows = self._file, self._buffer[: self._buffered]
        buckets = rows[self._position] // self._bucket_rows
        by_bucket, counts = np.argsort(buckets, kind="stable"), np.bincount(buckets, minlength=len(self._stored))
        with _named_errors(file):
            for number, own in enumerate(np.split(by_bucket, np.cumsum(counts)[:-1])):
                file.seek(self._offset(number) + int(self._stored[number]) * self._row.itemsize)
                left = rows[own].view(np.uint8).data
                while left:  # a full disk first takes a part of it
                    left = left[file.write(left) :]
            os.fsync(file.fileno())
            os.pwrite(file.fileno(), np.array([self._bucket_rows, end], np.int64).data, 0)
        self._stored += counts
        self._buffered = 0

    def _load(self, number: int) -> Array:
        """Reads a bucket, and sorts it by position."""
        if self._file is None:
            rows = self._buffer[: self._buffered]
        else:
            with _named_errors(self._file):
                self._file.seek(self._offset(number))
                rows = np.fromfile(self._file, self._row, int(self._stored[number]))
        return rows[np.argsort(rows[self._position])]

    def _resume(self) -> int:
        """Returns the number of source rows that the file covers, and counts them."""
        if self._file is None:
            return 0
        header = np.frombuffer(os.pread(self._file.fileno(), _HEADER_BYTES, 0), np.int64)
        if not len(header) or header[0] != self._bucket_rows:
            return 0
        for low in range(0, self._layout.rows, _COUNTED):
            positions = np.arange(low, min(low + _COUNTED, self._layout.rows))
            own = positions // self._layout.shard_rows % self._share[1] == self._share[0]
            covered = self._rows.order.visits(np.zeros_like(positions), positions).rows < header[1]
            self._stored += np.bincount(positions[own & covered] // self._bucket_rows, minlength=len(self._stored))
        return int(header[1])

    def _offset(self, bucket: int) -> int:
        return _HEADER_BYTES + bucket * self._bucket_rows * self._row.itemsize


def _pays(rows: Written, layout: Layout, parts: Sequence[int], workers: int) -> bool:
    """Whether reads in the order of positions decode several times as many chunks as there are."""
    source, order = rows.reader.source, rows.order
    starts = chunk_starts(source)
    # To find a row in a sample, all its positions are searched.
    drawn = any(isinstance(below, Sampled) for below in depth_first(order))
    if not parts or starts is None or drawn or source.traits.kept_chunks >= len(starts):
        return False
    start, stop = layout.part(parts[len(parts) // 2])
    positions = np.arange(start, min(start + rows_per_read(layout, stop - start, workers), stop))
    visited = order.visits(np.zeros_like(positions), positions).rows
    chunks = visited // starts.step if isinstance(starts, range) else np.searchsorted(starts, visited, "right")
    reads = len(parts) * (stop - start) / len(positions)
    return len(np.unique(chunks)) * reads > _FEWER_CHUNKS * len(starts)


def _runs(rows: Written, row_bytes: int, begin: int) -> list[tuple[int, int]]:
    """Cuts the rows of the source from `begin` on into runs of whole chunks, `[low, high)`."""
    source, order = rows.reader.source, rows.order
    starts, length = chunk_starts(source), len(source)
    assert starts is not None
    repeats = max(1, order.size // length)
    wanted = _RUN_BYTES // (max(rows.reader.source_row_bytes, row_bytes) * repeats)
    lows = [int(low) for low in starts[:: max(1, wanted // largest_chunk(starts, length))]]
    return [(max(low, begin), high) for low, high in pairwise([*lows, length]) if high > begin]


def _lacks_space(path: Path | None, size: int) -> str:
    """Reason why there is no space for a temporary file; empty if there is."""
    if path is None:
        return "the destination is remote; write to a local folder, and upload it"
    used = path.stat().st_blocks * 512 if path.exists() else 0
    free = shutil.disk_usage(path.parent).free + used
    return "" if size <= free else f"{path} would take {size_text(size)}, but only {size_text(free)} are free"


def _open(path: Path, resume: bool) -> BinaryIO:
    if not resume:
        path.unlink(missing_ok=True)
    return open(path, "r+b", 0, opener=lambda name, flags: open_kept(Path(name), flags | os.O_CREAT))


@contextmanager
def _named_errors(file: BinaryIO) -> Iterator[None]:
    """Names the temporary file in errors."""
    try:
        yield
    except OSError as error:
        raise SourceError(f"{file.name}: the temporary file failed: {error}; free disk space, and resume") from error
