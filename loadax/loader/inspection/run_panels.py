"""Panels of a run: who holds what, mixtures over its steps, padding by bucket, balance, chunks and blocks by host."""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, pairwise

import numpy as np

from loadax.core.formatting import count_text, size_text
from loadax.dataset import Dataset
from loadax.loader.inspection.all_hosts import AllHosts
from loadax.loader.inspection.bytes_read import bytes_read
from loadax.loader.inspection.chunk_reads import (
    block_counts,
    chunk_reads,
    sampled_hosts,
    spaced,
)
from loadax.loader.inspection.explanation import Reading
from loadax.loader.inspection.part_costs import part_costs
from loadax.pictures.order_panels import (
    MOST_BINS,
    drawn,
    mixture_of,
    packed_panels,
    rows_by_dataset,
    shares_panel,
)
from loadax.pictures.panels import Bars, Holders, Panel
from loadax.plan.mix import ENDLESS, Mixed
from loadax.plan.steps import Steps
from loadax.protocols import Integers
from loadax.sharding.holdings import LeafHoldings

_MOST_LINES = 32  # of parts of the batch
_MOST_APART = 8  # lines of which those of the same hosts are drawn apart
_MOST_NAMES = 256  # hosts or parts of a panel
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
) -> list[Panel]:
    """Panels of a run.

    Args:
        dataset: Dataset of the loader.
        plan: Plan of the run.
        hosts: Hosts of the run.
        at: Step that is explained.
        steps: Steps to sample for figures that depend on their rows.
        reading: Figures of the run.
    """
    panels: list[Panel] = [_mesh(hosts, bytes_read(dataset, hosts)[0])]
    panels += _mixture(plan)
    panels += packed_panels(dataset.reader.source)
    panels += _buckets(plan)
    panels += _balance(plan, hosts, at, steps)
    panels += _chunks(dataset, plan, hosts, steps, reading)
    panels += _blocks(dataset, plan, hosts)
    return panels


def _mesh(hosts: AllHosts, nbytes: Integers) -> Panel:
    """Parts of the leaf that is cut into most of them, and the hosts (of one host: the devices) that hold each."""
    number = int(np.argmax([np.prod(leaf.cuts) for leaf in hosts.leaves]))
    if len(hosts.processes) > 1:
        kind = "host"
        held = hosts.leaves[number]
        names = hosts.processes
    else:
        kind = "device"
        held = hosts.held_by_devices(number)
        names = np.arange(held.hosts)
    lines = spaced(range(held.cuts[0]), _MOST_LINES)
    columns = spaced(range(held.columns), _MOST_LINES)
    holders = [
        [_holders(held, line * held.columns + column, names) for column in columns]
        for line in lines
    ]
    path = hosts.one.batch.leaves[number].path or "the batch"
    spec = ", ".join(map(repr, hosts.one.specs[number]))
    if kind == "host":
        note = _reads(hosts, nbytes)
    else:
        note = f"{held.hosts:,} devices of one host"
    x = _column_label(held)
    names_of_lines = [_interval(line, 1, held.extents[0]) for line in lines]
    if len(lines) * len(columns) < held.cuts[0] * held.columns:
        parts = held.cuts[0] * held.columns
        x += f"; {len(lines) * len(columns):,} of {parts:,} parts are shown"
    elif len(lines) > _MOST_APART:
        names_of_lines, holders = _merged(holders, held.extents[0])
    return Holders(
        f"Who holds {path}, by P({spec})",
        note,
        x,
        kind,
        names_of_lines,
        [_columns(held, column) for column in columns],
        holders,
    )


def _merged(
    holders: list[list[tuple[int, ...]]], extent: int
) -> tuple[list[str], list[list[tuple[int, ...]]]]:
    """Neighbouring lines with the same holders as one, and their names."""
    names = []
    lines = []
    first = 0
    for line, group in groupby(holders):
        number = len(list(group))
        names.append(_interval(first, number, extent))
        lines.append(line)
        first += number
    return names, lines


def _holders(held: LeafHoldings, shard: int, names: Integers) -> tuple[int, ...]:
    return tuple(names[held.host[held.shard == shard]].tolist())


def _reads(hosts: AllHosts, nbytes: Integers) -> str:
    """How much hosts read, as text."""
    rows = hosts.rows.counts
    least = int(hosts.rows.copies.min())
    most = int(hosts.rows.copies.max())
    copies = ""
    if most > 1:
        copies = f"; {most:,} hosts read each row"
    if least < most:
        copies = f"; {least:,} to {most:,} hosts read each row"
    if (rows == rows[0]).all() and (nbytes == nbytes[0]).all():
        which = f"each of {len(rows):,} hosts reads {count_text(int(rows[0]), 'row')}"
        return f"{which}, {size_text(int(nbytes[0]))} a step{copies}"
    which = f"hosts read {rows.min():,} to {rows.max():,} rows"
    return f"{which}, up to {size_text(int(nbytes.max()))} a step{copies}"


def _interval(first: int, number: int, extent: int) -> str:
    """Rows (or columns) of some parts of one extent, of which this is the first."""
    if number * extent == 1:
        return f"{first:,}"
    return f"{first * extent:,} to {(first + number) * extent - 1:,}"


def _cut_dims(held: LeafHoldings) -> list[int]:
    return [dim for dim, cut in enumerate(held.cuts) if dim and cut > 1]


def _column_label(held: LeafHoldings) -> str:
    dims = _cut_dims(held)
    if not dims:
        return "all columns"
    if len(dims) == 1:
        return f"columns (dim {dims[0]})"
    return f"parts of dims {', '.join(map(str, dims))}"


def _columns(held: LeafHoldings, column: int) -> str:
    dims = _cut_dims(held)
    if not dims:
        return ""
    if len(dims) == 1:
        return _interval(column, 1, held.extents[dims[0]])
    return str(column)


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
        which = f"all {total:,} steps"
    else:
        which = f"the first {total:,} steps"
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
    ratios = [
        (costs.max(axis=1) / costs.mean(axis=1)).mean() for costs in (before, now)
    ]
    parts = before.shape[1]
    shown = spaced(range(parts), _MOST_NAMES)
    note = (
        f"the most expensive of {parts:,} parts: {ratios[1]:.3f} times the mean, "
        f"{ratios[0]:.3f} without (mean of {count_text(len(steps), 'step')})"
    )
    series = {
        "without balance=": (before[0] / before[0].mean())[shown].tolist(),
        "with balance=": (now[0] / now[0].mean())[shown].tolist(),
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
    shown = order[spaced(range(len(order)), _MOST_NAMES)]
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
        _host_label(len(shown), len(hosts.processes)),
        "chunks",
        [str(hosts.processes[host]) for host in sampled[shown]],
        {"chunks": reads[0][shown].tolist()},
    )


def _blocks(dataset: Dataset, plan: Steps, hosts: AllHosts) -> Iterator[Panel]:
    counts = block_counts(dataset.reader, plan, hosts)
    if counts is None:
        return
    if counts.pinned:
        series = {"in every epoch": counts.epoch.tolist()}
    else:
        series = {
            "over the run, expected": counts.run.tolist(),
            "in an epoch": counts.epoch.tolist(),
        }
    yield Bars(
        "Blocks that each host reads",
        f"of {counts.blocks:,} blocks",
        _host_label(len(counts.hosts), len(hosts.processes)),
        "blocks",
        [str(hosts.processes[host]) for host in counts.hosts],
        series,
    )


def _host_label(shown: int, hosts: int) -> str:
    if shown == hosts:
        return "host"
    return f"host ({shown:,} of {hosts:,})"
