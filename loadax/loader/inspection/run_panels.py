"""Panels of a run: who holds what, mixtures over its steps, padding by bucket, balance, chunks by host."""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np

from loadax.core.formatting import count_text, size_text
from loadax.dataset import Dataset
from loadax.loader.inspection.all_hosts import AllHosts
from loadax.loader.inspection.chunk_reads import (
    chunk_reads,
    sampled_hosts,
    spaced,
)
from loadax.loader.inspection.explanation import Reading
from loadax.loader.inspection.part_costs import imbalance, part_costs
from loadax.pictures.order_panels import (
    MOST_BINS,
    drawn,
    mixture_of,
    packed_panels,
    rows_by_dataset,
    shares_panel,
)
from loadax.pictures.panels import Bars, Holders, Panel, Panels
from loadax.plan.mix import ENDLESS, Mixed
from loadax.plan.steps import Steps
from loadax.protocols import Integers
from loadax.sharding.holdings import LeafHoldings

_MOST_LINES = 16  # of parts of the batch
_MOST_COLUMNS = 8
_MOST_BARS = 32  # hosts or parts of a step
_MOST_ROWS = 1 << 13  # of a bin whose datasets are counted row by row
_MOST_POSITIONS = 1 << 20  # of a mixture by tokens
_ENDLESS_STEPS = 64  # of an endless mixture without a schedule


def run_panels(
    dataset: Dataset,
    plan: Steps,
    hosts: AllHosts,
    at: int,
    steps: Sequence[int],
    reading: Reading,
) -> Panels:
    """Panels of a run.

    Args:
        dataset: Dataset of the loader.
        plan: Plan of the run.
        hosts: Hosts of the run.
        at: Step that is explained.
        steps: Steps to sample for figures that depend on their rows.
        reading: Figures of the run.
    """
    return {
        "mesh": [_mesh(hosts, reading)],
        "mixture": [*_mixture(plan)],
        "packing": [*packed_panels(dataset.reader.source)],
        "buckets": [*_buckets(plan)],
        "balance": [*_balance(plan, hosts, at, steps)],
        "chunks": [*_chunks(dataset, plan, hosts, steps, reading)],
    }


def _mesh(hosts: AllHosts, reading: Reading) -> Panel:
    """Parts of the leaf that is cut into most of them, and the hosts (of one host: the devices) that hold each."""
    number = int(np.argmax([math.prod(leaf.cuts) for leaf in hosts.leaves]))
    held = hosts.leaves[number]
    names = hosts.processes
    kind = "host"
    note = _reads(reading, len(names))
    if len(names) == 1:
        held = hosts.held_by_devices(number)
        names = np.arange(held.hosts)
        kind = "device"
        note = f"{count_text(held.hosts, 'device')} of one host"
    lines = spaced(range(held.cuts[0]), _MOST_LINES)
    columns = spaced(range(held.columns), _MOST_COLUMNS)
    x, columns_text = _columns(held, columns)
    if len(lines) * len(columns) < held.cuts[0] * held.columns:
        parts = held.cuts[0] * held.columns
        x += f"; {len(lines) * len(columns):,} of {count_text(parts, 'part')} are shown"
    path = hosts.one.batch.leaves[number].path or "a batch"
    if {leaf.cuts[:1] for leaf in hosts.leaves} == {(held.columns * held.cuts[0],)}:
        path = "a batch"
    spec = ", ".join(map(repr, hosts.one.specs[number]))
    shards = np.add.outer(np.multiply(lines, held.columns), columns)
    return Holders(
        title=f"Who holds {path}, by P({spec})",
        note=note,
        x=x,
        kind=kind,
        rows=[_interval(line, held.extents[0]) for line in lines],
        columns=columns_text,
        holders=[
            [tuple(names[held.host[held.shard == shard]].tolist()) for shard in line]
            for line in shards
        ],
    )


def _reads(reading: Reading, hosts: int) -> str:
    """How much hosts read, as text."""
    rows, nbytes = (reading.rows, reading.nbytes)
    which = f"each of {count_text(hosts, 'host')} reads"
    if rows.least < rows.most or nbytes.least < nbytes.most:
        which = f"of {count_text(hosts, 'host')}, one reads up to"
    copies = ""
    if reading.copies.most > 1:
        copies = f"; {count_text(int(reading.copies.most), 'host')} read each row"
    text = f"{count_text(int(rows.most), 'row')}, {size_text(nbytes.most)} a step"
    return f"{which} {text}{copies}"


def _columns(held: LeafHoldings, columns: Sequence[int]) -> tuple[str, list[str]]:
    """Label of the parts of a line, and the columns of some of them."""
    dims = [dim for dim, cut in enumerate(held.cuts) if dim and cut > 1]
    if not dims:
        return "all columns", [""]
    if len(dims) > 1:
        return f"parts of dims {', '.join(map(str, dims))}", [*map(str, columns)]
    extent = held.extents[dims[0]]
    names = [_interval(column, extent) for column in columns]
    return f"columns (dim {dims[0]})", names


def _interval(number: int, extent: int) -> str:
    first = number * extent
    if extent == 1:
        return f"{first:,}"
    return f"{first:,} to {first + extent - 1:,}"


def _mixture(plan: Steps) -> Iterator[Panel]:
    mixed = mixture_of(plan.order)
    if mixed is None:
        return
    total = _steps_shown(plan, mixed)
    edges = np.unique(np.linspace(0, total, min(total, MOST_BINS) + 1).astype(int))
    count: Callable[[Steps, Mixed, range], tuple[Integers, int]]
    if plan.order is mixed:
        count = _drawn_in
    else:
        count = _rows_in
    counts = []
    covered = 0
    for first, stop in pairwise(edges.tolist()):
        found, steps = count(plan, mixed, _whole_steps(plan, first, stop))
        counts.append(found)
        covered += steps
    epochs = None
    if plan.order is mixed and plan.num_steps == total:
        end = _positions(plan, mixed, range(total - 1, total))[1]
        sizes = np.array([part.size for part in mixed.parts])
        epochs = mixed.counts(end) / sizes
    bins = count_text(len(counts), "bin")
    if plan.num_steps == total:
        which = f"all {count_text(total, 'step')}"
    else:
        which = f"the first {count_text(total, 'step')}"
    if covered < total:
        which = f"{covered:,} of {which}"
    yield shares_panel(
        mixed, edges.tolist(), counts, epochs, "step", f"{which}, in {bins}"
    )


def _steps_shown(plan: Steps, mixed: Mixed) -> int:
    """Steps over which a mixture is shown: all, if there is an end, and else those that its schedule needs, twice."""
    endless = plan.order.size >= ENDLESS
    if mixed.tokens is not None:
        # Tokens are summed for each epoch of a dataset as a whole.
        last = min(plan.order.size, _MOST_POSITIONS) - 1
        return max(1, plan.skips.left(plan.step_at(0, last)[0]))
    if plan.num_steps is not None and not endless:
        return plan.num_steps
    last = mixed.segments[-1].start
    shown = _ENDLESS_STEPS
    if last:
        whole_step = plan.step_at(*divmod(last, plan.order.size))[0]
        shown = 2 * plan.skips.left(whole_step)
    if not endless:
        shown = max(shown, len(plan.epoch_steps(0)))
    return min(shown, plan.end)


def _whole_steps(plan: Steps, first: int, stop: int) -> range:
    """The first of some steps that follow one another in one epoch, without skipped ones between them."""
    epoch = plan.position_of_step(first)[0]
    stop = min(stop, plan.epoch_steps(epoch).stop)
    ends = plan.skips.whole_steps(np.array([first, stop - 1]))
    if ends[1] - ends[0] != stop - 1 - first:
        stop = first + 1
    return range(first, stop)


def _positions(plan: Steps, mixed: Mixed, steps: range) -> tuple[int, int]:
    """First position of steps of an epoch, and the end, counted over all epochs."""
    epoch, first = plan.position_of_step(steps[0])
    last = plan.position_of_step(steps[-1])[1]
    begin = mixed.begin(epoch)
    return begin + first, begin + last + plan.valid(steps[-1])


def _drawn_in(plan: Steps, mixed: Mixed, steps: range) -> tuple[Integers, int]:
    """Draws of each dataset in steps, by arithmetic, and the number of steps."""
    return drawn(mixed, *_positions(plan, mixed, steps)), len(steps)


def _rows_in(plan: Steps, mixed: Mixed, steps: range) -> tuple[Integers, int]:
    """Rows of each dataset in the first of some steps, one by one, and their number."""
    counts = np.zeros(len(mixed.parts), np.int64)
    for number, step in enumerate(steps, 1):
        counts += rows_by_dataset(mixed, plan.visits(step).rows)
        if counts.sum() >= _MOST_ROWS:
            return counts, number
    return counts, len(steps)


def _buckets(plan: Steps) -> Iterator[Panel]:
    if not plan.buckets:
        return
    names = []
    rows = []
    padding = []
    for length, size, steps, share in plan.buckets:
        names.append(
            f"{length:,}: {share:.1%}\n{count_text(steps, 'step')} of {size:,}"
        )
        entries = length * size * steps
        rows.append(entries * (1 - share))
        padding.append(entries * share)
    note = f"{sum(padding) / max(1, sum(padding) + sum(rows)):.1%} of an epoch is padding"
    series = {"rows": rows, "padding": padding}
    yield Bars(
        "Padding by bucket",
        note,
        "length of the bucket, its padding and steps",
        "entries of an epoch",
        names,
        series,
        stacked=True,
    )


def _balance(
    plan: Steps, hosts: AllHosts, at: int, steps: Sequence[int]
) -> Iterator[Panel]:
    if plan.costs is None:
        return
    before, now = part_costs(plan.of(at), hosts.one, steps)
    parts = before.shape[1]
    shown = spaced(range(parts), _MOST_BARS)
    note = (
        f"the most expensive of {count_text(parts, 'part')}: {imbalance(now):.3f} "
        f"times the mean, {imbalance(before):.3f} without (mean of "
        f"{count_text(len(steps), 'step')})"
    )
    mean = before[0].mean() or 1.0  # of the same rows in both
    series = {
        "without balance=": (before[0] / mean)[shown].tolist(),
        "with balance=": (now[0] / mean)[shown].tolist(),
    }
    names = [f"{part:,}" for part in shown]
    yield Bars(
        f"Cost of the parts of step {steps[0]:,}",
        note,
        "part of the batch",
        "cost / mean",
        names,
        series,
    )


def _chunks(
    dataset: Dataset,
    plan: Steps,
    hosts: AllHosts,
    steps: Sequence[int],
    reading: Reading,
) -> Iterator[Panel]:
    reads = chunk_reads(plan, steps, hosts.rows, dataset.reader.source)
    if reads is None or reading.decoded is None:
        return
    sampled = sampled_hosts(hosts.rows)
    order = np.argsort(sampled)
    shown = order[spaced(range(len(order)), _MOST_BARS)]
    if reading.kept_open:
        kept = "kept open until used up"
    else:
        kept = "each step without caches"
    note = (
        f"mean of {count_text(len(steps), 'step')}; {kept}: "
        f"{reading.decoded.median:,.2f} rows decoded for each used"
    )
    yield Bars(
        "Chunks that each host reads in a step",
        note,
        f"host ({len(shown):,} of {len(hosts.processes):,})",
        "chunks",
        [str(hosts.processes[host]) for host in sampled[shown]],
        {"chunks": reads[0][shown].tolist()},
    )
