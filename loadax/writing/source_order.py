"""Source order: reads a shuffled dataset in one pass over its source, to write it with each chunk decoded once.

In shuffled order, a read touches about as many chunks as it has rows, so each chunk is decoded about once per row.
Instead the source is read in spans of whole chunks, maps are applied, and the rows stay in memory, where they are read
in the order of their positions. Values are the same, because a map depends on the row and its epoch, not on what is
read before.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import final

import numpy as np

from loadax.core.context import Caller
from loadax.core.distributed import this_process
from loadax.core.formatting import size_text
from loadax.core.log import log
from loadax.core.memory import machine_memory
from loadax.core.progress_bar import progress_bar
from loadax.core.spec import check_batch, flatten_spec
from loadax.core.threads import thread_pool
from loadax.core.tree import flatten
from loadax.errors import SourceError
from loadax.plan.order import depth_first
from loadax.plan.sample import Sampled
from loadax.protocols import Integers, Tree, Visits
from loadax.sources.checks import chunk_starts
from loadax.sources.wrappers.chunk_cache import largest_chunk
from loadax.writing.chunk_layout import Layout
from loadax.writing.store_parts import StoreParts, ahead, rows_per_read
from loadax.writing.written_rows import Written

SPAN_BYTES = 8 << 20  # one read of the source, at least a chunk
FEWER_CHUNKS = 3  # times fewer decoded chunks, which pay for keeping rows in memory


@contextmanager
def in_source_order(
    parts: StoreParts, wanted: Sequence[int], progress: bool | None
) -> Iterator[StoreParts]:
    """A block that writes parts; yields them, after one pass over their source if that decodes far fewer chunks.

    Rows that don't fit into memory are read in the order of their positions, with a warning.

    Args:
        parts: Writer of the parts.
        wanted: Parts that will be written.
        progress: Whether to show a progress bar of the pass; None: if stderr is a terminal.

    Raises:
        SourceError: When the inverse of the order does not find all rows of the parts.
    """
    rows = parts.rows
    layout = parts.layout
    if isinstance(rows, Written):
        decodes = _decodes(rows, layout, wanted, parts.workers)
    else:
        decodes = 0.0
    if not isinstance(rows, Written) or decodes <= FEWER_CHUNKS:
        yield parts
        return
    size = layout.row_bytes * sum(map(parts.rows_of, wanted))
    # all processes of a run may be on this machine
    most = machine_memory() // 2 // this_process().count
    if size > most:
        fitting = most // (layout.row_bytes * layout.shard_rows)
        shares = -(-layout.parts // max(1, fitting))
        log.warning(
            "%s: each chunk of the source is decoded about %.0f times, because the "
            "shuffled rows take %s, more than the %s that they may take in memory; "
            "write the rows in their own order, and shuffle them when they are read, "
            "or %s",
            *(parts.label, decodes, size_text(size), size_text(most)),
            f"write {shares} shares one after the other, by write_zarr(..., "
            f"shard=(i, {shares}))"
            if fitting
            else f"pass less than shard_rows={layout.shard_rows}",
        )
        yield parts
        return
    ordered = SourceOrder(rows, layout, wanted)
    ordered.read_source(parts.workers, progress)
    yield replace(parts, rows=replace(rows, stored=ordered.read))


@final
class SourceOrder:
    """Rows of some parts of a store in memory, from one pass over their source.

    Args:
        rows: Rows to write.
        layout: Layout of the store.
        wanted: The parts.
    """

    def __init__(self, rows: Written, layout: Layout, wanted: Sequence[int]):
        self._rows = rows
        self._layout = layout
        sizes = [stop - start for start, stop in map(layout.part, wanted)]
        self._is_read = np.zeros(sum(sizes), np.bool_)
        # Index of the first row of each part; of parts that are not wanted: after the last one.
        self._first = np.full(layout.parts, len(self._is_read))
        self._first[wanted] = np.cumsum([0, *sizes[:-1]])
        self._leaves = [
            np.empty((len(self._is_read), *array.spec.shape), array.spec.dtype)
            for array in layout.arrays
        ]

    def read_source(self, workers: int, progress: bool | None) -> None:
        """Reads the source in its order, in threads."""
        length = len(self._rows.reader.source)
        caller = Caller()
        with (
            progress_bar(
                "reading rows in the order of the source", length, "row", progress
            ) as done,
            thread_pool(workers, "loadax-write") as pool,
        ):
            for (low, high), future in ahead(
                _spans(self._rows, self._layout.row_bytes),
                lambda span: pool.submit(caller.run, self._read_span, *span),
                lambda begun: len(begun) > workers,
            ):
                future.result()
                done(high - low)
        if not self._is_read.all():
            lost = np.count_nonzero(~self._is_read)
            raise SourceError(
                f"{type(self._rows.order).__name__}.inverse() lacks {lost} of the "
                "positions to write; it must give all positions that visits() reads "
                "rows of"
            )

    def read(self, positions: Integers) -> Tree:
        """Reads the rows at `positions`, int64[n]."""
        indices = self._indices(positions)
        return flatten_spec(self._rows.spec)[1].build(
            leaf[indices] for leaf in self._leaves
        )

    def _read_span(self, low: int, high: int) -> None:
        """Reads the rows of these parts that are rows `low` to `high - 1` of the source."""
        order = self._rows.order
        source_rows = np.arange(low, high)
        positions = order.inverse(
            source_rows, np.zeros_like(source_rows), (0, order.size)
        ).positions
        positions = positions[self._indices(positions) < len(self._is_read)]
        visits = order.visits(np.zeros_like(positions), positions)
        ascending = np.argsort(visits.rows, kind="stable")
        if len(positions):
            batch = self._rows.reader.read_visits(
                Visits(visits.rows[ascending], visits.epochs[ascending])
            )
            origin = f"the dataset's read of rows {low} to {high - 1} of its source"
            indices = self._indices(positions[ascending])
            read = flatten(
                check_batch(batch, len(positions), self._rows.spec, origin)
            )[0]
            for leaf, values in zip(self._leaves, read, strict=True):
                leaf[indices] = values
            self._is_read[indices] = True

    def _indices(self, positions: Integers) -> Integers:
        part, row = np.divmod(positions, self._layout.shard_rows)
        return self._first[part] + row


def _decodes(
    rows: Written, layout: Layout, parts: Sequence[int], workers: int
) -> float:
    """How often reads in the order of positions decode each chunk, from a part in the middle; 0: not known."""
    source = rows.reader.source
    order = rows.order
    starts = chunk_starts(source)
    # To find a row in a sample, all its positions are searched.
    drawn = any(isinstance(below, Sampled) for below in depth_first(order))
    if (
        not parts
        or starts is None
        or drawn
        or source.traits.cached_chunks >= len(starts)
    ):
        return 0.0
    start, stop = layout.part(parts[len(parts) // 2])
    positions = np.arange(
        start, min(start + rows_per_read(layout, stop - start, workers), stop)
    )
    visited = order.visits(np.zeros_like(positions), positions).rows
    if isinstance(starts, range):
        chunks = visited // starts.step
    else:
        chunks = np.searchsorted(starts, visited, "right")
    reads = len(parts) * (stop - start) / len(positions)
    return len(np.unique(chunks)) * reads / len(starts)


def _spans(rows: Written, row_bytes: int) -> list[tuple[int, int]]:
    """Cuts the rows of the source into spans of whole chunks, `[low, high)`."""
    source = rows.reader.source
    order = rows.order
    starts = chunk_starts(source)
    length = len(source)
    assert starts is not None
    repeats = max(1, order.size // length)
    wanted = SPAN_BYTES // (max(rows.reader.source_row_bytes, row_bytes, 1) * repeats)
    lows = [
        int(low) for low in starts[:: max(1, wanted // largest_chunk(starts, length))]
    ]
    return list(pairwise([*lows, length]))
