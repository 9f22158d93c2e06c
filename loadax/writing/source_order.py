"""Source order: writes a shuffled dataset from one pass over its source, so that each chunk is decoded once.

In shuffled order every read touches as many chunks as it has rows, and each chunk is decoded about once per row. So the
source is read in runs of whole chunks, its maps are applied, and the rows go through a `Spill` to the positions that
they have in the store. Values are the same: maps depend on the row and its epoch, not on the order of reads.
"""

import logging
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO, final

import numpy as np

from loadax.core.context import Caller
from loadax.core.progress import progress_bar
from loadax.core.spec import check_batch, flatten_spec
from loadax.core.threads import thread_pool
from loadax.core.tree import flatten
from loadax.plan.order import depth_first
from loadax.plan.sample import Sampled
from loadax.protocols import Integers, Tree, Visits
from loadax.sources.checks import chunk_starts
from loadax.writing.destination import Share
from loadax.writing.identity import spread
from loadax.writing.layout import Layout
from loadax.writing.parts import ahead, rows_per_read
from loadax.writing.rows import Rows, Written
from loadax.writing.spill import BUFFER_BYTES, HEADER_BYTES, Spill, row_dtype, spill_file

_MEMORY_BYTES = 256 << 20  # rows that are reordered in memory, without a file
_RUN_BYTES = 16 << 20  # one read of the source, at least a chunk
_FEWER = 4  # times fewer decoded chunks that pay for writing the rows to a file and reading them back
_SAMPLE = 4  # reads that estimate the number of decoded chunks
_COUNTED = 1 << 20  # places per step, when the rows in a file are counted

_log = logging.getLogger("loadax")


@contextmanager
def in_source_order(
    rows: Rows,
    layout: Layout,
    parts: Sequence[int],
    share: Share,
    path: Path | None,
    *,
    workers: int,
    resume: bool,
    progress: bool | None,
) -> Iterator[Rows]:
    """A block that writes parts; yields the same rows, read from their source in one pass if that decodes much less.

    Args:
        rows: Rows to write.
        layout: Layout of the store.
        parts: Parts that will be written.
        share: `(i, n)`: this process writes every n-th part from i on.
        path: Path of the temporary file; None: the destination is remote.
        workers: Number of threads that read.
        resume: Whether to continue with the file of an interrupted write.
        progress: Whether to show a progress bar of the pass; None: if stderr is a terminal.
    """
    if not isinstance(rows, Written) or not _pays(rows, layout, parts, workers):
        yield rows
        return
    dtype = row_dtype([array.spec for array in layout.arrays])
    size = sum(stop - start for start, stop in map(layout.part, range(share[0], layout.parts, share[1])))
    needed = HEADER_BYTES + size * dtype.itemsize
    bucket_rows = max(1, BUFFER_BYTES // (dtype.itemsize * layout.shard_rows)) * layout.shard_rows
    context: AbstractContextManager[BinaryIO | str | None]
    if needed <= _MEMORY_BYTES:
        context, bucket_rows = nullcontext(), size
    elif path is None:
        context = nullcontext("the destination is remote; write to a local folder, and upload it")
    else:
        context = spill_file(path, needed, resume=resume)
    with context as file:
        if isinstance(file, str):
            _log.warning("chunks of the source are decoded once for every row, without a temporary file: %s", file)
            yield rows
            return
        ordered = SourceOrder(rows, layout, share, Spill(dtype, size, bucket_rows, file))
        ordered.read_source(workers, size, progress)
        yield replace(rows, stored=ordered.read)


@final
class SourceOrder:
    """Rows of one share of the parts, from one pass over their source.

    Rows are numbered by place: from 0, in the order of their positions in these parts.

    Args:
        rows: Rows to write.
        layout: Layout of the store.
        share: `(i, n)`: every n-th part from i on.
        spill: Memory for the rows.
    """

    def __init__(self, rows: Written, layout: Layout, share: Share, spill: Spill):
        self._rows, self._spill = rows, spill
        self._part_rows, self._row_bytes = layout.shard_rows, layout.row_bytes
        self._index, self._count = share
        self._structure = flatten_spec(rows.spec)[1]
        self._lock = Lock()
        self._bucket: tuple[int, Any, Any] = (-1, None, None)

    def read_source(self, workers: int, size: int, progress: bool | None) -> None:
        """Reads the source in its order, from where an interrupted write was, in threads."""
        source, caller = self._rows.reader.source, Caller()
        begin, end = self._spill.input_stored, len(source)
        with (
            progress_bar("reading the source in its order", size, "row", progress) as done,
            thread_pool(workers, "loadax-write") as pool,
        ):
            done(self._count_stored(size, begin) if begin else 0)
            for (low, _), future in ahead(
                _runs(self._rows, self._row_bytes, begin),
                lambda run: pool.submit(caller.run, self._read_run, *run),
                lambda begun: len(begun) > workers,
            ):
                places, leaves = future.result()
                self._spill.add(places, leaves, low)
                done(len(places))
        self._spill.flush(end)

    def read(self, positions: Integers) -> Tree:
        """Reads the rows at `positions`, int64[n], all in the same part."""
        places = self._places(positions)
        number, bucket_rows = int(places[0]) // self._spill.bucket_rows, self._spill.bucket_rows
        with self._lock:
            if self._bucket[0] != number:
                self._bucket = (-1, None, None)  # frees its memory first
                self._bucket = (number, *self._spill.bucket(number))
            _, rows, index = self._bucket
        chosen = rows[index[places - number * bucket_rows]]
        return self._structure.build(chosen[str(leaf)] for leaf in range(len(self._structure.paths)))

    def _read_run(self, low: int, high: int) -> tuple[Integers, list[Any]]:
        """Reads the rows `low` to `high - 1` of the source, as often as they are in these parts, with their places."""
        order, rows = self._rows.order, np.arange(low, high)
        positions = order.inverse(rows, np.zeros_like(rows), (0, order.size)).positions
        positions = positions[positions // self._part_rows % self._count == self._index]
        visits = order.visits(np.zeros_like(positions), positions)
        ascending = np.argsort(visits.rows, kind="stable")
        if not len(ascending):
            return ascending, []
        batch = self._rows.reader.read_visits(Visits(*(each[ascending] for each in visits)))
        checked = check_batch(
            batch, len(ascending), self._rows.spec, f"the dataset's read of rows {low} to {high - 1} of the source"
        )
        return self._places(positions[ascending]), flatten(checked)[0]

    def _count_stored(self, size: int, end: int) -> int:
        """Tells the spill which places have rows below `end`, and returns their number."""
        order, total = self._rows.order, 0
        for low in range(0, size, _COUNTED):
            places = np.arange(low, min(low + _COUNTED, size))
            part, row = np.divmod(places, self._part_rows)
            positions = (part * self._count + self._index) * self._part_rows + row
            stored = places[order.visits(np.zeros_like(positions), positions).rows < end]
            self._spill.count_stored(stored)
            total += len(stored)
        return total

    def _places(self, positions: Integers) -> Integers:
        part, row = np.divmod(positions, self._part_rows)
        return part // self._count * self._part_rows + row


def _pays(rows: Written, layout: Layout, parts: Sequence[int], workers: int) -> bool:
    """Whether reads in the order of positions decode several times as many chunks as there are."""
    source, order = rows.reader.source, rows.order
    starts = chunk_starts(source)
    if starts is None or source.traits.kept_chunks >= len(starts):
        return False
    if any(isinstance(below, Sampled) for below in depth_first(order)):  # finding a row looks at all its positions
        return False
    per_row = []  # chunks that a read decodes, per row
    for part in (parts[index] for index in spread(len(parts), _SAMPLE).tolist()):
        start, stop = layout.part(part)
        positions = np.arange(start, min(start + rows_per_read(layout, stop - start, workers), stop))
        visited = order.visits(np.zeros_like(positions), positions).rows
        chunks = visited // starts.step if isinstance(starts, range) else np.searchsorted(starts, visited, "right")
        per_row.append(len(np.unique(chunks)) / len(positions))
    return bool(per_row) and float(np.mean(per_row)) * len(parts) * layout.shard_rows > _FEWER * len(starts)


def _runs(rows: Written, row_bytes: int, begin: int) -> Iterator[tuple[int, int]]:
    """Cuts the rows of the source from `begin` on into runs of whole chunks, `[low, high)`."""
    source, order = rows.reader.source, rows.order
    starts, length = chunk_starts(source), len(source)
    assert starts is not None
    repeats = max(1, order.size // length)
    wanted = _RUN_BYTES // (max(rows.reader.source_row_bytes, row_bytes, 1) * repeats)
    while begin < length:
        following = bisect_right(starts, begin)  # index of the next chunk
        last = max(following, bisect_right(starts, begin + wanted) - 1)
        end = int(starts[last]) if begin + wanted < length and last < len(starts) else length
        yield begin, end
        begin = end
