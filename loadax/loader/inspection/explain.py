"""Computes an `Explanation`, at the cost of a few batches for any size of the dataset."""

import math
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from loadax.core.buffers import align
from loadax.core.spec import flatten_spec
from loadax.dataset import Dataset
from loadax.files.paths import is_remote
from loadax.loader.assembly.host_shard import HostShard
from loadax.loader.inspection.all_hosts import AllHosts
from loadax.loader.inspection.chunk_reads import (
    Opened,
    blocks_read,
    chunk_reads,
    file_counts,
    open_on_hosts,
    spaced,
)
from loadax.loader.inspection.explanation import (
    BatchFigures,
    Explanation,
    LeafPlan,
    Memory,
    Reading,
    Storage,
    spread_of,
)
from loadax.loader.inspection.part_costs import imbalance, part_costs
from loadax.loader.inspection.warnings import find_warnings
from loadax.loader.options import LoaderOptions
from loadax.plan.batches import BatchPlan
from loadax.plan.mix import Mixed
from loadax.plan.steps import Steps
from loadax.protocols import Integers
from loadax.sharding.mesh import axis_sizes
from loadax.sources.base import walk

if TYPE_CHECKING:
    from loadax.pictures.panels import Panels

_SHARED = 1 << 20  # rows of a long epoch whose shares are counted


def explain(
    dataset: Dataset,
    plan: Steps,
    shard: HostShard,
    at: int,
    options: LoaderOptions,
    steps: int,
) -> Explanation:
    """Explains a run.

    Args:
        dataset: Dataset of the loader.
        plan: Plan of the run.
        shard: One process's shard of the batch of step `at`.
        at: Step to explain.
        options: Options of the loader.
        steps: Number of steps to sample for figures that depend on their rows.
    """
    batches = _batches(plan, at)
    hosts = AllHosts(shard, batches.batch_size)
    opened = open_on_hosts(dataset.reader, plan, hosts)
    sampled = spaced(plan.alike(at), steps)
    reading = _reading(dataset, plan, hosts, opened, sampled)
    memory = _memory(options, hosts, opened)

    def panels() -> "Panels":
        from loadax.loader.inspection.run_panels import run_panels

        return run_panels(dataset, plan, hosts, at, sampled, reading)

    micro = shard.microbatches
    rows = (
        (micro, batches.batch_size // micro) if micro > 1 else (batches.batch_size,)
    )
    plans = tuple(
        LeafPlan(
            leaf.path,
            str(leaf.dtype),
            (*rows, *leaf.spec.shape),
            f"P({', '.join(map(repr, spec))})",
        )
        for leaf, spec in shard.leaf_specs
    )
    return Explanation(
        data=repr(dataset.source),
        order=(*plan.order.text(), *(transform.text() for transform in dataset.maps)),
        batches=batches,
        mesh=axis_sizes(shard.mesh),
        hosts=len(hosts.processes),
        devices=hosts.grid.owners.size,
        leaves=plans,
        host_leaves=tuple(
            f"{leaf.path} {leaf.dtype}{list(leaf.spec.shape) or ''}"
            for leaf in shard.host.leaves
        ),
        reading=reading,
        storage=_storage(dataset, plan, hosts, at, options, bool(opened)),
        balance=None if plan.costs is None else _balance(plan.of(at), shard, sampled),
        buckets=plan.buckets,
        shares=_shares(plan, at),
        memory=memory,
        warnings=tuple(
            find_warnings(dataset, hosts, batches, reading, memory, opened)
        ),
        panels=panels,
    )


def _batches(plan: Steps, at: int) -> BatchFigures:
    segment, end = plan.segment_of(at)
    epoch = plan.position_of_step(at)[0]
    left = plan.left_over(epoch)
    return BatchFigures(
        batch_size=segment.batch_size,
        first=plan.skips.left(segment.first),
        last=None if end is None else end - 1,
        steps=plan.num_steps,
        steps_per_epoch=len(plan.epoch_steps(epoch)),
        num_epochs=plan.num_epochs,
        rows_per_epoch=plan.order.size,
        dropped=left if plan.remainder == "drop" else 0,
        padded=-left if plan.remainder == "pad" else 0,
    )


def _reading(
    dataset: Dataset,
    plan: Steps,
    hosts: AllHosts,
    opened: list[Opened],
    steps: Sequence[int],
) -> Reading:
    source = dataset.reader.source
    host_rows = hosts.rows
    read, whole = _bytes_read(dataset, hosts)
    reads = chunk_reads(plan, steps, host_rows, source)
    if reads is None:
        chunks, decoded = (None, None)
    else:
        chunks, decoded = map(spread_of, reads)
    if opened:
        means = []
        for host in opened:
            sizes = [shuffle.order.size for shuffle in host.shuffles]
            means.append(
                np.average(
                    [shuffle.amplification for shuffle in host.shuffles],
                    weights=sizes,
                )
            )
        decoded = spread_of(means)
    files = file_counts(plan, steps[0], host_rows, source)
    return Reading(
        rows=spread_of(host_rows.counts),
        nbytes=spread_of(read),
        times=float(read.sum() / whole) if whole else 0.0,
        copies=spread_of(host_rows.copies),
        chunks=chunks,
        files=None if files is None else spread_of(files),
        decoded=decoded,
        blocks=blocks_read(dataset.reader, plan, hosts),
        kept_open=bool(opened),
        steps=len(steps),
        hosts=0 if reads is None else len(reads[0]),
    )


def _storage(
    dataset: Dataset,
    plan: Steps,
    hosts: AllHosts,
    at: int,
    options: LoaderOptions,
    chunks_stay: bool,
) -> Storage | None:
    addresses = chain.from_iterable(
        source.addresses for source in walk(dataset.reader.source)
    )
    if not any(map(is_remote, addresses)):
        return None
    # Imported here, since it imports what sends requests.
    from loadax.loader.inspection.storage import storage_of

    return storage_of(dataset.reader, plan, hosts, at, options, chunks_stay)


def _balance(
    plan: BatchPlan, shard: HostShard, steps: Sequence[int]
) -> tuple[int, float, float]:
    """Number of parts that the mesh cuts the rows into, and the largest over the mean cost of one: before, and now."""
    before, now = part_costs(plan, shard, steps)
    return before.shape[1], imbalance(before), imbalance(now)


def _shares(plan: Steps, at: int) -> tuple[tuple[str, float, float], ...]:
    """Name of each dataset of a mixture by tokens, and its shares of the rows and tokens of an epoch."""
    order = plan.order
    if not isinstance(order, Mixed) or order.tokens is None:
        return ()
    low = int(order.begin(plan.position_of_step(at)[0]))
    ends = [order.counts(end) for end in (low, low + min(order.size, _SHARED))]
    tokens = [
        [
            part.before(int(count))
            for part, count in zip(order.tokens, counts, strict=True)
        ]
        for counts in ends
    ]
    shares = []
    for before, after in (ends, tokens):
        drawn = np.subtract(after, before)
        shares.append((drawn / max(1, drawn.sum())).tolist())
    return tuple(zip(order.names, *shares, strict=True))


def _bytes_read(dataset: Dataset, hosts: AllHosts) -> tuple[Integers, int]:
    """int64[hosts]: bytes that each host reads per step; and bytes of the whole batch."""
    specs = flatten_spec(dataset.reader.specs[0])[0]
    whole_row = sum(spec.nbytes for spec in specs)
    whole = whole_row * hosts.batch_size
    if not dataset.reader.maps_columns:
        return hosts.rows.counts * whole_row, whole
    read = np.zeros(len(hosts.processes), np.int64)
    origins = dataset.reader.origins
    for leaf, holdings in zip(hosts.one.batch.leaves, hosts.leaves, strict=True):
        if leaf.source is not None:
            read += (
                holdings.counts
                * math.prod(holdings.extents)
                * specs[origins[leaf.source]].dtype.itemsize
            )
    for leaf in hosts.one.host.leaves:
        read += hosts.rows.counts * leaf.spec.nbytes
    return read, whole


def _memory(options: LoaderOptions, hosts: AllHosts, opened: list[Opened]) -> Memory:
    batch = hosts.one.batch
    step = np.zeros(len(hosts.processes), np.int64)
    placed = 0
    for leaf, holdings in zip(batch.leaves, hosts.leaves, strict=True):
        shard = math.prod(holdings.extents) * leaf.dtype.itemsize
        step += holdings.counts * align(shard)
        placed += shard
    for leaf in hosts.one.host.leaves:
        step += [align(int(count) * leaf.spec.nbytes) for count in hosts.rows.counts]
    kept = [
        sum(shuffle.chunks * shuffle.chunk_bytes for shuffle in host.shuffles)
        for host in opened
    ]
    return Memory(
        step=spread_of(step),
        reading_ahead=max(options.prefetch_bytes, int(step.max())),
        open_chunks=spread_of(kept) if opened else None,
        batch=placed,
        placed=max(1, options.prefetch) + 1,
    )
