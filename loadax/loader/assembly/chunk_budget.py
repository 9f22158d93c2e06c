"""Chunks that a block shuffle keeps open on this process, and the memory they need, computed before the run.

A source that decodes rows in chunks is read row by row at the price of a chunk for every row, unless the chunks that a
window of the shuffle is made of are kept until it is over. How many those are follows from the order and from this
process's share of a batch.
"""

import logging
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar, final

import numpy as np

from loadax.core.formatting import size_text
from loadax.core.spec import flatten_spec, normalise_spec
from loadax.errors import ArgumentError
from loadax.loader.assembly.host_shard import HostShard
from loadax.plan.batches import BatchPlan
from loadax.plan.lanes import by_lane
from loadax.protocols import Blocks, Columns, Integers, Order
from loadax.reader import Reader
from loadax.sources.base import BaseSource
from loadax.sources.checks import chunk_starts
from loadax.sources.wrappers.chunk_cache import ChunkCache, area, hull, largest_chunk
from loadax.sources.wrappers.concat import ConcatenatedSource
from loadax.sources.wrappers.packed import PackedSource
from loadax.sources.wrappers.zip import ZippedSource

_SAMPLE = 64  # blocks that are looked at to see which chunks a block lies in
_MOST_STEPS = 256  # that are looked at to see which lanes this process meets
# times the chunks that are open: while one window ends, the next begins. Memory that is not used costs nothing
_SPARE = 2

_log = logging.getLogger("loadax")


@final
@dataclass(frozen=True)
class OpenChunks:
    """How many chunks one block shuffle has open here.

    Args:
        order: The block shuffle.
        blocks: Its blocks.
        chunk_rows: Rows of the largest chunk.
        chunks: Chunks open at once in this process.
        amplification: Rows decoded for every row used here: chunks that two blocks share, and lanes that two processes
            share.
        chunk_bytes: Bytes of memory of one chunk.
        lanes: Lanes that this process reads.
        touched: Chunks that one block lies in, at most.
        source: Source of the rows that are shuffled.
    """

    order: Order
    blocks: Blocks
    chunk_rows: int
    chunks: int
    amplification: float
    chunk_bytes: int
    lanes: int
    touched: int
    source: BaseSource

    @property
    def bytes(self) -> int:
        """Of memory for all that is open."""
        return self.chunks * self.chunk_bytes

    def __str__(self) -> str:
        blocks = self.blocks
        return (
            f"block shuffle: {blocks.lanes} lanes x {blocks.window} blocks of {blocks.rows} rows, "
            f"chunks of {self.chunk_rows}; this process has {self.chunks} chunks open, {size_text(self.bytes)}, "
            f"and decodes {self.amplification:.2f} rows for each one used (a full shuffle: up to {self.chunk_rows})"
        )

    def fitting(self, most: int) -> str:
        """Arguments of `shuffle` with which no more than `most` bytes are open, as text; empty when there are none."""
        blocks = most // (self.chunk_bytes * self.touched)
        if blocks >= self.lanes:
            return f"window={blocks // self.lanes}"
        # With so few lanes this process may meet all of them.
        return f"window=1 and lanes={blocks}" if blocks else ""


def find_open_chunks(reader: Reader, plan: BatchPlan, positions: Integers, each_row: int) -> list[OpenChunks]:
    """What every block shuffle of chunked data has open on a process that reads these positions of each batch.

    Args:
        reader: of the dataset.
        plan: of the run, with one batch size.
        positions: of the batch.
        each_row: bytes of a row that this process keeps.
    """
    found = []
    for order, blocks, source in _block_shuffles(plan.order, reader.source):
        starts = chunk_starts(source)
        if starts is None or not order.size:
            continue
        lanes = _lanes_met(plan, blocks.lanes, positions)
        touched, decoded = _chunks_of_blocks(order, blocks, starts, len(source))
        share = lanes * plan.batch_size_of(0) / (blocks.lanes * max(1, len(positions)))
        chunks = min(lanes * min(blocks.window, -(-blocks.num_blocks // blocks.lanes)) * touched, len(starts))
        rows = largest_chunk(starts, len(source))
        found.append(OpenChunks(order, blocks, rows, chunks, decoded * share, rows * each_row, lanes, touched, source))
    return found


def check_memory(found: list[OpenChunks], limit: int | None, readers: int = 1) -> None:
    """Says what is open, and refuses a window that does not fit.

    Args:
        found: what is open.
        limit: bytes.
        readers: Number of copies of the reader, each with chunks of its own.

    Raises:
        ArgumentError: when more is open than `limit` bytes (None: half of this machine's memory); shows the numbers and
            what would fit.
    """
    most = (limit if limit is not None else _machine_memory() // 2) // readers
    for each in found:
        _log.info("%s%s", each, f", in each of {readers} worker processes" if readers > 1 else "")
    # Those of the parts of a mixture are open together.
    needed = sum(each.bytes for each in found)
    if needed > most:
        each = max(found, key=lambda one: one.bytes)
        its_share = most - needed + each.bytes
        fitting = each.fitting(max(0, its_share))
        others = f"; with the other shuffles {size_text(needed)}" if len(found) > 1 else ""
        others += f", in each of {readers} worker processes" if readers > 1 else ""
        raise ArgumentError(
            f"shuffle(block={each.blocks.rows}, window={each.blocks.window}, lanes={each.blocks.lanes}) "
            f"has {each.chunks} chunks open on this process, {size_text(each.bytes)}{others}, "
            f"and cache_bytes allows {size_text(most)}: every chunk would be decoded again and again; pass "
            + (f"{fitting} to shuffle, or " if fitting else "")
            + f"cache_bytes={needed * readers} to the Dataloader",
            argument="cache_bytes",
        )


def keep_open_chunks(
    reader: Reader,
    found: list[OpenChunks],
    limit: int | None,
    boxes: Sequence[Columns | None] | None,
    ahead: int = 0,
    readers: int = 1,
) -> Reader:
    """The reader, with the chunks of its sources kept as long as they are open; itself when there is none to keep.

    Args:
        reader: of the dataset.
        found: what is open.
        limit: bytes, as for `check_memory`.
        boxes: the columns of every leaf of the source that this process holds; None: not known.
        ahead: bytes of rows that are read ahead: where rows are small those may be many windows, and their chunks are
            open as well.
        readers: Number of copies of the reader, each with chunks of its own.
    """
    if not found:
        return reader
    most = (limit if limit is not None else _machine_memory() // 2) // readers
    needed = sum(each.bytes for each in found)
    slots: dict[int, int] = {}  # of every source, by its identity
    for each in found:
        spare = max(0, most - needed) * each.bytes // max(1, needed) // max(1, each.chunk_bytes)
        wanted = each.chunks + min(spare, (_SPARE - 1) * each.chunks - (-ahead // max(1, each.chunk_bytes)))
        for leaf, share in _leaves(each.source):
            slots[id(leaf)] = slots.get(id(leaf), 0) + math.ceil(wanted * share)

    def wrap(source: BaseSource, times: float) -> BaseSource:
        if source.spec is None or id(source) not in slots or chunk_starts(source) is None:
            return source
        # What a source below another one is asked for shows when it is asked.
        known = boxes if source is reader.source else None
        return ChunkCache(source, normalise_spec(source.spec, "spec"), slots[id(source)], times, known)

    return reader.over(wrap)


def _leaves(source: BaseSource) -> list[tuple[BaseSource, float]]:
    """The sources at the bottom of one, and how many of their chunks are open for each open chunk of it.

    A chunk of windows holds each row several times, and was counted so. Children whose rows follow each other share the
    open chunks in proportion to their rows; children that are read side by side need all of them each.
    """
    if not source.children:
        return [(source, 1.0)]
    found = []
    for child in source.children:
        share = 1.0 if child.first_row is None else _leaf_rows(child.source) / _leaf_rows(source)
        found += [(leaf, share * below * child.reads_per_row) for leaf, below in _leaves(child.source)]
    return found


def _leaf_rows(source: BaseSource) -> int:
    """Rows at the bottom of a source; of children that are read side by side those of the longest."""
    follow = sum(_leaf_rows(child.source) for child in source.children if child.first_row is not None)
    beside = (_leaf_rows(child.source) for child in source.children if child.first_row is None)
    return follow + max(beside, default=0) if source.children else len(source)


def held_columns(reader: Reader, share: HostShard) -> list[Columns | None]:
    """Of every leaf of the source, the columns that this process reads: those of its devices where it can, else all."""
    specs = flatten_spec(reader.specs[0])[0]
    if not reader.source.reads_columns or not reader.elementwise:
        return [tuple((0, extent) for extent in each.shape) for each in specs]
    held: list[Columns | None] = [None] * len(specs)
    for leaf, layout in zip(share.batch.leaves, share.layouts, strict=True):
        if leaf.source is not None:
            for group in layout.groups:
                held[leaf.source] = hull(held[leaf.source], group.columns)
    return held


def row_bytes(reader: Reader, boxes: Sequence[Columns | None]) -> int:
    """Bytes of these columns of one row of the source."""
    specs = flatten_spec(reader.specs[0])[0]
    return sum(area([box]) * each.dtype.itemsize for box, each in zip(boxes, specs, strict=True))


def _block_shuffles(
    order: Order, source: BaseSource, shuffled: bool = False
) -> Iterator[tuple[Order, Blocks, BaseSource]]:
    """Every block shuffle, its blocks, and the source of the rows it shuffles; `shuffled`: behind another shuffle."""
    if order.shuffle is not None and order.shuffle.blocks is not None:
        yield order, order.shuffle.blocks, source
    shuffled = shuffled or order.shuffle is not None
    joined = _same_rows(source, ConcatenatedSource) or _same_rows(source, ZippedSource)
    packed = _same_rows(source, PackedSource)
    if order.parts and joined is not None:
        for part, child in zip(order.parts, joined.children, strict=True):
            yield from _block_shuffles(part, child.source, shuffled)
    elif order.parent is not None:
        yield from _block_shuffles(order.parent, source, shuffled)
    elif packed is not None and packed.in_order and not shuffled:
        yield from _block_shuffles(packed.order, packed.children[0].source)


_Kind = TypeVar("_Kind", bound=BaseSource)


def _same_rows(source: BaseSource, kind: type[_Kind]) -> _Kind | None:
    """The source of a kind whose rows these are, also below what wraps it; None when there is none."""
    while not isinstance(source, kind) and len(source.children) == 1 and source.children[0].first_row == 0:
        source = source.children[0].source
    return source if isinstance(source, kind) else None


def _lanes_met(plan: BatchPlan, lanes: int, positions: Integers) -> int:
    """How many of so many lanes this process's positions meet, by looking at the first steps."""
    if not len(positions):
        return 0
    if not plan.order.lane_assignments(0, 0, 1):
        return lanes  # what reorders the lanes, or `concat`, spreads them over everybody
    steps = min(plan.steps_per_epoch, _MOST_STEPS, max(8, 4 * lanes // plan.batch_size_of(0)))
    met: set[int] = set()
    for step in range(steps):
        start = step * plan.batch_size_of(0)
        count = plan.valid(step)
        runs = plan.order.lane_assignments(0, start, start + count)
        offsets = start + by_lane(start, count, runs, positions[positions < count])
        for run, end in zip(runs, [*(following.start for following in runs[1:]), start + count], strict=True):
            read = offsets[(offsets >= run.start) & (offsets < end)]
            met.update(run.lanes[(read - run.start) % len(run.lanes)].tolist())
    return min(len(met), lanes)


def _chunks_of_blocks(order: Order, blocks: Blocks, starts: Integers | range, length: int) -> tuple[int, float]:
    """How many chunks a block lies in, at most, and how many rows these have for each of its own.

    Both of a sample of blocks.
    """
    assert order.parent is not None
    sample = np.unique(np.linspace(0, blocks.num_blocks - 1, min(_SAMPLE, blocks.num_blocks)).astype(np.int64))
    bounds = np.asarray(starts, np.int64) if not isinstance(starts, range) else None
    most, decoded, used = 1, 0, 0
    for block in sample.tolist():
        positions = np.arange(block * blocks.rows, min((block + 1) * blocks.rows, order.size), dtype=np.int64)
        rows = order.parent.visits(np.zeros_like(positions), positions).rows
        if bounds is None:
            step = starts.step if isinstance(starts, range) else 1
            chunks = np.unique(rows // step)
            sizes = np.minimum(length - chunks * step, step)
        else:
            chunks = np.unique(np.searchsorted(bounds, rows, side="right") - 1)
            sizes = np.diff(bounds, append=length)[chunks]
        most, decoded, used = max(most, len(chunks)), decoded + int(sizes.sum()), used + len(rows)
    return most, decoded / max(1, used)


def _machine_memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
