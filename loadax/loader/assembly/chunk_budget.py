"""Computes, before the run, the chunks that a block shuffle keeps open in this process and the memory they need.

A source that stores rows in chunks decodes a whole chunk for every random row, unless the chunks of the shuffle's
current window are cached. Their number follows from the order and from this process's shard of a batch.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from loadax.core.distinct import distinct
from loadax.core.formatting import count_text, size_text
from loadax.core.log import log
from loadax.core.memory import machine_memory
from loadax.core.spec import all_columns, flatten_spec
from loadax.errors import ArgumentError
from loadax.loader.assembly.block_shuffles import BlockShuffle
from loadax.loader.assembly.host_shard import HostShard
from loadax.plan.batches import BatchPlan
from loadax.plan.lanes import by_lane
from loadax.protocols import Blocks, Boxes, Columns, Integers, Order
from loadax.reader import Reader
from loadax.sources.base import BaseSource
from loadax.sources.checks import chunk_starts
from loadax.sources.wrappers.chunk_cache import (
    area,
    chunk_of,
    chunk_sizes,
    hull,
    largest_chunk,
    with_chunks,
)

_SAMPLE = 64  # blocks to sample for the chunks that a block spans
_MOST_STEPS = 256  # steps to sample for the lanes that this process reads
# Cache capacity as a multiple of the open chunks: one window ends while the next begins. Unused capacity is free.
_SPARE = 2


class OpenChunks(NamedTuple):
    """Open chunks of one block shuffle in this process.

    Args:
        order: Block shuffle.
        blocks: Blocks of the shuffle.
        chunk_rows: Rows of the largest chunk.
        chunks: Number of chunks open at once.
        amplification: Rows decoded per row used. Above 1 if blocks share chunks or processes share lanes.
        chunk_bytes: Memory of one chunk, in bytes.
        lanes: Number of lanes that this process reads.
        touched: Largest number of chunks that one block spans.
        source: Source of the shuffled rows.
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
        """Memory of all open chunks, in bytes."""
        return self.chunks * self.chunk_bytes

    def __str__(self) -> str:
        blocks = self.blocks
        return (
            f"block shuffle: {count_text(blocks.lanes, 'lane')} x "
            f"{count_text(blocks.window, 'block')} of "
            f"{count_text(blocks.rows, 'row')}, chunks of {self.chunk_rows}; this "
            f"process has {count_text(self.chunks, 'chunk')} open, "
            f"{size_text(self.bytes)}, and decodes {self.amplification:.2f} rows "
            f"for each one used (a full shuffle: up to {self.chunk_rows})"
        )

    def fitting(self, most: int) -> str:
        """Arguments of `shuffle`, as text, that need at most `most` bytes; empty if there are none."""
        blocks = most // (self.chunk_bytes * self.touched)
        if blocks >= self.lanes:
            return f"window={blocks // self.lanes}"
        # With so few lanes, this process may read all of them.
        if blocks:
            return f"window=1 and lanes={blocks}"
        return ""


def find_open_chunks(
    reader: Reader,
    plan: BatchPlan,
    shard: HostShard,
    shuffles: Sequence[BlockShuffle],
) -> list[OpenChunks]:
    """Computes the open chunks of every block shuffle of chunked data.

    Args:
        reader: Reader of the dataset.
        plan: Plan with one batch size.
        shard: The part of each batch that the process reads.
        shuffles: Block shuffles of the plan's order.
    """
    positions = shard.positions
    specs = flatten_spec(reader.specs[0])[0]
    columns = shard_columns(reader, shard)
    # bytes of a row
    kept = sum(
        area([box]) * spec.dtype.itemsize
        for box, spec in zip(columns, specs, strict=True)
    )
    open_chunks = []
    for order, blocks, source in shuffles:
        starts = chunk_starts(source)
        if starts is None or not order.size:
            continue
        lanes = lanes_met(plan, blocks.lanes, positions)
        touched, decoded = _chunks_of_blocks(order, blocks, starts, len(source))
        share = (
            lanes * plan.batch_size_of(0) / (blocks.lanes * max(1, len(positions)))
        )
        chunks = min(
            lanes
            * min(blocks.window, -(-blocks.num_blocks // blocks.lanes))
            * touched,
            len(starts),
        )
        rows = largest_chunk(starts, len(source))
        open_chunks.append(
            OpenChunks(
                order,
                blocks,
                rows,
                chunks,
                decoded * share,
                rows * kept,
                lanes,
                touched,
                source,
            )
        )
    return open_chunks


def check_memory(
    open_chunks: list[OpenChunks], limit: int | None, readers: int = 1
) -> None:
    """Logs the open chunks, and checks that they fit into memory.

    Args:
        open_chunks: Open chunks of every block shuffle.
        limit: Limit in bytes. None: half of this machine's memory.
        readers: Number of copies of the reader, each with its own chunks.

    Raises:
        ArgumentError: If they need more than the limit; shows the numbers and what would fit.
    """
    most = _limit(limit, readers)
    for shuffle in open_chunks:
        log.info(
            "%s%s",
            shuffle,
            f", in each of {readers} worker processes" if readers > 1 else "",
        )
    # The parts of a mixture have their chunks open at the same time.
    needed = sum(shuffle.bytes for shuffle in open_chunks)
    if needed > most:
        shuffle = max(open_chunks, key=lambda shuffle: shuffle.bytes)
        its_share = most - needed + shuffle.bytes
        fitting = shuffle.fitting(max(0, its_share))
        if len(open_chunks) > 1:
            others = f"; with the other shuffles {size_text(needed)}"
        else:
            others = ""
        others += f", in each of {readers} worker processes" if readers > 1 else ""
        raise ArgumentError(
            f"shuffle(block={shuffle.blocks.rows}, window={shuffle.blocks.window}, "
            f"lanes={shuffle.blocks.lanes}) has "
            f"{count_text(shuffle.chunks, 'chunk')} open in this process, "
            f"{size_text(shuffle.bytes)}{others}, but cache_bytes allows "
            f"{size_text(most)}: every chunk would be decoded many times; pass "
            + (f"{fitting} to shuffle, or " if fitting else "")
            + f"cache_bytes={needed * readers} to the Dataloader",
            argument="cache_bytes",
        )


def cache_open_chunks(
    reader: Reader,
    open_chunks: list[OpenChunks],
    limit: int | None,
    boxes: Boxes | None,
    ahead: int,
    readers: int,
) -> Reader:
    """Adds chunk caches to the sources of the reader; returns the reader itself if there is no chunk to cache.

    Args:
        reader: Reader of the dataset.
        open_chunks: Open chunks of every block shuffle.
        limit: Limit in bytes, as for `check_memory`.
        boxes: Columns of every leaf of the source that this process holds; None: not known.
        ahead: Bytes of rows read ahead. If rows are small, these span many windows, whose chunks are open as well.
        readers: Number of copies of the reader, each with its own chunks.
    """
    if not open_chunks:
        return reader
    most = _limit(limit, readers)
    needed = sum(shuffle.bytes for shuffle in open_chunks)
    slots: dict[int, int] = {}  # by id of the source
    for shuffle in open_chunks:
        spare = (
            max(0, most - needed)
            * shuffle.bytes
            // max(1, needed)
            // max(1, shuffle.chunk_bytes)
        )
        wanted = shuffle.chunks + min(
            spare,
            (_SPARE - 1) * shuffle.chunks - (-ahead // max(1, shuffle.chunk_bytes)),
        )
        for leaf, share in _leaves(shuffle.source):
            slots[id(leaf)] = slots.get(id(leaf), 0) + math.ceil(wanted * share)

    def wrap(source: BaseSource, times: float) -> BaseSource:
        if id(source) not in slots:
            return source
        # The columns read from a nested source are known only when it is read.
        return with_chunks(
            source,
            slots[id(source)],
            times,
            boxes if source is reader.source else None,
        )

    return reader.over(wrap)


def _limit(limit: int | None, readers: int) -> int:
    """Bytes of open chunks that each reader may have; by default, half of this machine's memory for all."""
    return (machine_memory() // 2 if limit is None else limit) // readers


def _leaves(source: BaseSource) -> list[tuple[BaseSource, float]]:
    """The leaf sources of a source, each with its number of open chunks per open chunk of the source.

    A chunk of windows counts each row as often as it occurs. Concatenated children share the open chunks in proportion
    to their rows; zipped children need all of them each.
    """
    if not source.children:
        return [(source, 1.0)]
    leaves = []
    for child in source.children:
        if child.first_row is None:
            share = 1.0
        else:
            share = _leaf_rows(child.source) / _leaf_rows(source)
        leaves += [
            (leaf, share * below * child.reads_per_row)
            for leaf, below in _leaves(child.source)
        ]
    return leaves


def _leaf_rows(source: BaseSource) -> int:
    """Rows of the leaf sources; of zipped children, the rows of the longest."""
    follow = sum(
        _leaf_rows(child.source)
        for child in source.children
        if child.first_row is not None
    )
    beside = (
        _leaf_rows(child.source)
        for child in source.children
        if child.first_row is None
    )
    if source.children:
        return follow + max(beside, default=0)
    return len(source)


def shard_columns(reader: Reader, shard: HostShard) -> list[Columns | None]:
    """The columns of every leaf of the source that this process reads: those of its devices if possible, else all."""
    specs = flatten_spec(reader.specs[0])[0]
    if not reader.maps_columns:
        return [all_columns(spec.shape) for spec in specs]
    columns: list[Columns | None] = [None] * len(specs)
    origins = reader.origins
    for leaf, layout in zip(shard.batch.leaves, shard.layouts, strict=True):
        if leaf.source is not None:
            for group in layout.groups:
                columns[origins[leaf.source]] = hull(
                    columns[origins[leaf.source]], group.columns
                )
    for leaf in shard.host.leaves:
        if leaf.source is not None:
            columns[origins[leaf.source]] = all_columns(leaf.spec.shape)
    return columns


def lanes_met(plan: BatchPlan, lanes: int, positions: Integers) -> int:
    """Number of lanes that this process's positions read, from a sample of the first steps."""
    if not len(positions):
        return 0
    if not plan.order.lane_assignments(0, 0, 1):
        # a later verb that reorders positions, or `concat`, spreads them over all hosts
        return lanes
    steps = min(
        plan.steps_per_epoch, _MOST_STEPS, max(8, 4 * lanes // plan.batch_size_of(0))
    )
    met: set[int] = set()
    for step in range(steps):
        start = step * plan.batch_size_of(0)
        count = plan.valid(step)
        spans = plan.order.lane_assignments(0, start, start + count)
        offsets = start + by_lane(start, count, spans, positions[positions < count])
        for span, end in zip(
            spans,
            [*(following.start for following in spans[1:]), start + count],
            strict=True,
        ):
            read = offsets[(offsets >= span.start) & (offsets < end)]
            present = np.zeros(len(span.lanes), bool)
            present[(read - span.start) % len(span.lanes)] = True
            met.update(span.lanes[present].tolist())
        if len(met) >= lanes:
            return lanes
    return len(met)


def _chunks_of_blocks(
    order: Order, blocks: Blocks, starts: Integers | range, length: int
) -> tuple[int, float]:
    """Largest number of chunks that a block spans, and their rows per row of the block, from a sample of blocks."""
    assert order.parent is not None
    sample = np.unique(
        np.linspace(0, blocks.num_blocks - 1, min(_SAMPLE, blocks.num_blocks)).astype(
            np.int64
        )
    )
    most = 1
    decoded = 0
    used = 0
    for block in sample.tolist():
        positions = np.arange(
            block * blocks.rows,
            min((block + 1) * blocks.rows, order.size),
            dtype=np.int64,
        )
        rows = order.parent.visits(np.zeros_like(positions), positions).rows
        # mostly; then the ends tell
        consecutive = bool((rows[1:] - rows[:-1] == 1).all())
        chunks = chunk_of(starts, rows[[0, -1]] if consecutive else rows)
        if consecutive:
            chunks = np.arange(chunks[0], chunks[1] + 1)
        else:
            chunks = distinct(chunks)[0]
        sizes = chunk_sizes(starts, chunks, length)
        most = max(most, len(chunks))
        decoded = decoded + int(sizes.sum())
        used = used + len(rows)
    return most, decoded / max(1, used)
