"""Counts the chunks and files that each host reads per step, and the chunks that a block shuffle keeps open."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadax.core.array_parts import indices
from loadax.loader.assembly.block_shuffles import block_shuffles
from loadax.loader.assembly.chunk_budget import (
    OpenChunks,
    find_open_chunks,
    lanes_met,
)
from loadax.loader.inspection.all_hosts import AllHosts
from loadax.loader.inspection.explanation import BlocksRead, spread_of
from loadax.plan.batches import BatchPlan
from loadax.plan.steps import Steps
from loadax.protocols import Integers
from loadax.reader import Reader
from loadax.sharding.holdings import HeldRows
from loadax.sources.base import BaseSource
from loadax.sources.checks import chunk_starts
from loadax.sources.wrappers.chunk_cache import chunk_of, chunk_sizes

MOST_ENTRIES = 1 << 20  # rows to sample per step over all hosts
_HOSTS_WITH_CHUNKS = 16  # hosts to sample for the open chunks of a block shuffle
_MOST_CALLS = 1 << 12  # calls of the source's `locate_visit`


class Opened(NamedTuple):
    """Open chunks of block shuffles on one host, and the number of rows that it reads per step."""

    rows: int
    shuffles: list[OpenChunks]


def spaced(steps: Sequence[int], count: int) -> list[int]:
    """Samples at most `count` steps (or other integers) of a range, evenly spaced and away from the ends.

    Examples:
        >>> from loadax.loader.inspection.chunk_reads import spaced
        >>> spaced(range(100), 4), spaced(range(3), 10)
        ([12, 37, 62, 87], [0, 1, 2])
    """
    count = min(count, len(steps))
    return [
        steps[(2 * index + 1) * len(steps) // (2 * count)] for index in range(count)
    ]


def open_on_hosts(reader: Reader, plan: Steps, hosts: AllHosts) -> list[Opened]:
    """Computes the open chunks on a sample of hosts; empty if no block shuffle keeps chunks."""
    groups = hosts.rows.alike
    endless = BatchPlan(plan.order, hosts.batch_size, None, "pad")
    shuffles = list(block_shuffles(plan.order, reader.source))
    opened = []
    for index in spaced(range(len(groups)), _HOSTS_WITH_CHUNKS):
        shard = hosts.shard(int(groups[index][0]))
        chunks = find_open_chunks(reader, endless, shard, shuffles)
        if not chunks:
            return []
        opened.append(Opened(len(shard.positions), chunks))
    return opened


def blocks_read(reader: Reader, plan: Steps, hosts: AllHosts) -> BlocksRead | None:
    """Blocks of all block shuffles that hosts read; None without a block shuffle, or on one host."""
    groups = hosts.rows.alike
    shuffles = list(block_shuffles(plan.order, reader.source))
    if not shuffles or len(groups) == 1:
        return None
    endless = BatchPlan(plan.order, hosts.batch_size, None, "pad")
    sample = spaced(range(len(groups)), _HOSTS_WITH_CHUNKS)
    epoch, run = np.zeros((2, len(sample)))
    for index, group in enumerate(sample):
        positions = hosts.rows.positions(int(groups[group][0]))
        for shuffle in shuffles:
            blocks = shuffle.blocks
            share = lanes_met(endless, blocks.lanes, positions) / blocks.lanes
            left = 1 - share
            if not blocks.pinned:
                left = left ** (plan.num_epochs or np.inf)
            epoch[index] += blocks.num_blocks * share
            run[index] += blocks.num_blocks * (1 - left)
    return BlocksRead(
        sum(shuffle.blocks.num_blocks for shuffle in shuffles),
        spread_of(epoch),
        spread_of(run),
        all(shuffle.blocks.pinned for shuffle in shuffles),
    )


def sampled_hosts(host_rows: HeldRows) -> Integers:
    """Hosts of the figures of `chunk_reads`, int64[hosts], in their order."""
    return np.concatenate(sample_groups(host_rows, MOST_ENTRIES))


def sample_groups(host_rows: HeldRows, most_entries: int) -> list[Integers]:
    """Samples groups of hosts that read the same rows, with about `most_entries` rows together; at least one group."""
    groups = host_rows.alike
    rows = sum(int(host_rows.counts[group[0]]) for group in groups)
    count = max(1, min(len(groups), len(groups) * most_entries // max(1, rows)))
    return [groups[index] for index in spaced(range(len(groups)), count)]


def chunk_reads(
    plan: Steps, steps: Sequence[int], host_rows: HeldRows, source: BaseSource
) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Mean number of chunks per step, and of rows decoded per row used, of sampled hosts.

    Returns:
        Two arrays, float64[hosts]; for packed rows, of the chunks of the documents. None if the source has no chunks.
    """
    levels = list(_levels(source))
    starts = chunk_starts(levels[-1])
    length = len(levels[-1])
    if starts is None:
        return None
    groups = sample_groups(host_rows, MOST_ENTRIES)
    positions = [host_rows.positions(int(group[0])) for group in groups]
    group_of = np.repeat(
        np.arange(len(groups)),
        [len(group_positions) for group_positions in positions],
    )
    all_positions = np.concatenate(positions)
    chunks, decoded, used = np.zeros((3, len(groups)))
    for step in steps:
        rows = plan.visits(step).rows
        owner_of, below = _rows_below(levels[:-1], rows)
        counts = np.bincount(owner_of, minlength=len(rows))
        entries = indices(
            (np.cumsum(counts) - counts)[all_positions], counts[all_positions]
        )
        owners = np.repeat(group_of, counts[all_positions])
        ids = chunk_of(starts, below[entries])
        owner, chunk = np.divmod(np.unique(owners * len(starts) + ids), len(starts))
        chunks += np.bincount(owner, minlength=len(groups)) / len(steps)
        decoded += np.bincount(owner, chunk_sizes(starts, chunk, length), len(groups))
        used += np.bincount(owners, minlength=len(groups))
    hosts = [len(group) for group in groups]
    return np.repeat(chunks, hosts), np.repeat(decoded / np.maximum(used, 1), hosts)


def _levels(source: BaseSource) -> Iterator[BaseSource]:
    """A source and, recursively, the one source that its rows consist of."""
    yield source
    if (
        len(source.children) == 1
        and source.rows_below(np.empty(0, np.int64)) is not None
    ):
        yield from _levels(source.children[0].source)


def _rows_below(
    levels: Sequence[BaseSource], rows: Integers
) -> tuple[Integers, Integers]:
    """The rows of the last source that these rows consist of, without padding, and the index of the row of each."""
    owners = np.flatnonzero(rows >= 0)
    rows = rows[owners]
    for level in levels:
        below = level.rows_below(rows)
        assert below is not None
        owners = owners[below[0]]
        rows = below[1]
    return owners, rows


def file_counts(
    plan: Steps, step: int, host_rows: HeldRows, source: BaseSource
) -> Integers | None:
    """Number of files that a sample of hosts reads in a step; None if there are no files, or too many rows to check."""
    if int(host_rows.counts.max()) > _MOST_CALLS:
        return None
    visits = np.stack(plan.visits(step), axis=1)
    counts = []
    for group in sample_groups(host_rows, _MOST_CALLS):
        read = visits[host_rows.positions(int(group[0]))]
        located = (
            source.locate_visit(row, epoch)
            for row, epoch in read.tolist()
            if row >= 0
        )
        counts += [
            len({location.file for locations in located for location in locations})
        ] * len(group)
    # arrays in memory have no file
    if any(counts):
        return np.array(counts)
    return None
