"""Warnings about avoidable costs of a plan, each with advice."""

import math
from collections.abc import Iterator
from itertools import combinations

import numpy as np

from loadax.composition.shared_rows import first_epoch
from loadax.core.formatting import count_text, name_of, size_text
from loadax.dataset import Dataset
from loadax.loader.inspection.all_hosts import AllHosts
from loadax.loader.inspection.chunk_reads import Opened
from loadax.loader.inspection.explanation import BatchFigures, Memory, Reading
from loadax.plan.block_shuffle import batch_variance
from loadax.plan.order import depth_first
from loadax.sources.origins import first_shared_of

_MANY_DECODED = 4  # rows decoded per row used
_MUCH_DROPPED = 0.1  # share of an epoch
_MUCH_VARIANCE = 4.0  # variance of a batch's contents, where that of random rows is 1
# that are searched for rows that parts share
_MOST_PARTS = 8
_MOST_POSITIONS = 1 << 18
_SHARED = 1.5  # number of hosts that decode a chunk


def find_warnings(
    dataset: Dataset,
    hosts: AllHosts,
    batches: BatchFigures,
    reading: Reading,
    memory: Memory,
    opened: list[Opened],
) -> Iterator[str]:
    """Yields warnings, the most important first."""
    yield from _whole_rows(dataset, hosts, reading)
    yield from _chunks(dataset, reading)
    yield from _lanes(dataset, hosts, opened)
    yield from _mixing(dataset, hosts)
    yield from _hosts(hosts, reading)
    yield from _parts(dataset)
    if memory.step.most > memory.reading_ahead / 2:
        yield (
            f"a step takes {size_text(memory.step.most)} on a host, but reading "
            f"ahead is limited to {size_text(memory.reading_ahead)}: no two steps "
            "are read at a time; pass a larger prefetch_bytes to the Dataloader"
        )
    if batches.dropped > _MUCH_DROPPED * batches.rows_per_epoch:
        yield (
            f"an epoch of {count_text(batches.rows_per_epoch, 'row')} drops "
            f"{batches.dropped:,} of them, which don't fill a batch; pass "
            "remainder='pad' or a smaller batch_size"
        )


def _parts(dataset: Dataset) -> Iterator[str]:
    """Tells which parts of `concat` or `mix` share rows."""
    if not dataset.source.traits.shared_by.startswith(("concat", "mix")):
        return
    orders = dataset.order.parts
    children = dataset.source.children
    for one, other in combinations(range(min(len(orders), _MOST_PARTS)), 2):
        pair = [(children[part], orders[part]) for part in (one, other)]
        if any(child.first_row is None for child, _ in pair):
            continue
        shared = first_shared_of(
            [
                (child.source, first_epoch(order, _MOST_POSITIONS))
                for child, order in pair
            ]
        )
        if shared is not None:
            yield (
                f"{children[one].name} and {children[other].name} share rows, such "
                f"as row {shared.row} of {shared.source!r}: none of the two can be "
                "held out from the other; loadax.testing.disjoint tells all"
            )
            return


def _whole_rows(dataset: Dataset, hosts: AllHosts, reading: Reading) -> Iterator[str]:
    """Warns if hosts read columns that none of their devices holds."""
    reader = dataset.reader
    if reader.maps_columns:
        return
    rows = hosts.rows.counts
    wanted = np.zeros(len(rows))
    read = np.zeros(len(rows))
    for leaf, holdings in zip(hosts.one.batch.leaves, hosts.leaves, strict=True):
        if leaf.source is not None:
            wanted += (
                holdings.counts * math.prod(holdings.extents) * leaf.dtype.itemsize
            )
            read += rows * math.prod(holdings.shape[1:]) * leaf.dtype.itemsize
    if wanted.sum() >= read.sum():
        return
    why = f"{reader.source.type_name} has no read_into, which would read columns"
    if reader.source.traits.reads_columns:
        which = next(
            name_of(row_map.function)
            for row_map in reader.maps
            if not row_map.elementwise
        )
        why = (
            f"the map {which} may need all columns of a row; if it is elementwise, "
            "use map_batch(…, elementwise=True), else consider moving it to the "
            "jitted step"
        )
    yield (
        f"hosts read {size_text(reading.nbytes.median)} of whole rows a step, "
        f"though their devices hold {wanted.sum() / read.sum():.0%} of that: {why}"
    )


def _chunks(dataset: Dataset, reading: Reading) -> Iterator[str]:
    if (
        reading.decoded is None
        or reading.kept_open
        or reading.decoded.median < _MANY_DECODED
    ):
        return
    shuffles = (below.shuffle for below in depth_first(dataset.order))
    why = (
        "a host's part of a batch is smaller than the chunks, so several hosts "
        "decode the same ones"
    )
    remedy = ""
    if any(shuffle is not None and shuffle.blocks is None for shuffle in shuffles):
        why = "chunks are large, but rows are shuffled individually"
        remedy = "shuffle(seed, block='chunks') decodes each chunk once an epoch, or "
    yield (
        f"hosts decode {reading.decoded.median:,.0f} rows for each one they use: "
        f"{why}; {remedy}`loadax convert` writes the data in smaller chunks"
    )


def _lanes(dataset: Dataset, hosts: AllHosts, opened: list[Opened]) -> Iterator[str]:
    """Warns if several hosts decode the same chunks, though they read different rows."""
    shares = len(hosts.rows.alike)
    for index, first in enumerate(opened[0].shuffles if opened else ()):
        blocks = first.blocks
        shared = max(
            host.shuffles[index].lanes * hosts.batch_size / (blocks.lanes * host.rows)
            for host in opened
        )
        if shared < _SHARED:
            continue
        if not dataset.order.lane_assignments(0, 0, 1):
            remedy = (
                "shuffle last, since the verbs after the shuffle spread the lanes "
                "over all hosts"
            )
        elif blocks.num_blocks < shares:
            remedy = (
                "`loadax convert` writes the data in smaller chunks, of which it has "
                f"{blocks.num_blocks}"
            )
        else:
            lanes = shares * -(-blocks.lanes // shares)
            remedy = (
                f"pass lanes={lanes} to shuffle, so that each part of the batch has "
                "its own lanes"
            )
        yield (
            f"each of the {count_text(blocks.lanes, 'lane')} of the block shuffle "
            f"is shared by {shared:.1f} hosts that read different rows of it, and "
            f"they all decode its chunks; {remedy}"
        )


def _mixing(dataset: Dataset, hosts: AllHosts) -> Iterator[str]:
    """Warns if a block shuffle draws a batch from so few blocks that batches differ much."""
    # verbs after the shuffle decide which lanes a batch draws from
    if not dataset.order.lane_assignments(0, 0, 1):
        return
    below = (below.shuffle for below in depth_first(dataset.order))
    blocks = next(
        shuffle.blocks
        for shuffle in below
        if shuffle is not None and shuffle.blocks is not None
    )
    variance = batch_variance(blocks, hosts.batch_size)
    if variance < _MUCH_VARIANCE:
        return
    lanes = blocks.lanes * -(-hosts.batch_size // blocks.lanes)
    if lanes <= blocks.num_blocks:
        remedy = (
            f"pass lanes={lanes} to shuffle, which keeps "
            f"{count_text(min(lanes * blocks.window, blocks.num_blocks), 'block')} "
            "open"
        )
    else:
        remedy = (
            "pass a smaller block= to shuffle, write the data in smaller chunks by "
            "`loadax convert`, or shuffle rows individually: shuffle(seed)"
        )
    yield (
        f"batches of {count_text(hosts.batch_size, 'row')} draw on "
        f"{count_text(blocks.lanes * blocks.window, 'block')} at a time: where "
        f"neighbouring rows are alike, their contents vary {variance:.1f} times as "
        "much as those of random rows (as in batches of "
        f"{hosts.batch_size / variance:,.0f}); {remedy}"
    )


def _hosts(hosts: AllHosts, reading: Reading) -> Iterator[str]:
    if reading.rows.least != reading.rows.most:
        yield (
            f"hosts read from {reading.rows.least:,.0f} to {reading.rows.most:,.0f} "
            "rows a step, and all wait for the one with most (a straggler); lay the "
            "mesh out so that all hosts hold equal parts"
        )
    bytes_once = bytes_in_all = 0.0
    copied = []
    for leaf, holdings in zip(hosts.one.batch.leaves, hosts.leaves, strict=True):
        if leaf.source is not None:
            once = math.prod(holdings.shape) * leaf.dtype.itemsize
            copies = len(holdings.host) / (holdings.cuts[0] * holdings.columns)
            bytes_once = bytes_once + once
            bytes_in_all = bytes_in_all + copies * once
            copied += [leaf.path or "the batch"] if copies > 1 else []
    if copied and bytes_in_all >= _SHARED * bytes_once:
        yield (
            f"all hosts together read the batch {reading.times:.1f} times, since "
            f"several hold the same parts of {', '.join(copied)}; partition these "
            "over more axes of the mesh, if the training step allows it"
        )
