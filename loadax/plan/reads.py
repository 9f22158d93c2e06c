"""Reads: the positions that steps of a run have, as intervals of epochs, and what verbs make of such intervals.

An interval is pushed down through the verbs of an order as far as arithmetic goes: through concatenations, mixtures,
repeats, slices and buckets. What it arrives at is an order whose rows can be counted (see `loadax.plan.tally`).
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from loadax.plan.block_shuffle import BlockShuffled
from loadax.plan.buckets import Bucketed
from loadax.plan.concat import Concatenated
from loadax.plan.fixed_part import FirstEpoch, Reordered
from loadax.plan.flat_map import FlatMapped
from loadax.plan.groups.chosen import ChosenGroups
from loadax.plan.groups.shuffled import GroupsShuffled
from loadax.plan.mix import ENDLESS, Mixed
from loadax.plan.order import orders_below
from loadax.plan.repeat import Repeated
from loadax.plan.select import Selected
from loadax.plan.sequential import Sequential
from loadax.plan.shuffle import Shuffled
from loadax.plan.slice import Sliced
from loadax.plan.steps import Steps
from loadax.plan.subset import Excluding, Subset
from loadax.plan.zip import Zipped
from loadax.protocols import Integers, Order

# Verbs that have every row of the parent once an epoch, and leave epochs as they are.
_PERMUTING = (Shuffled, BlockShuffled, GroupsShuffled, Reordered)
# Verbs that choose positions of the parent.
_CHOOSING = (Sliced, Subset, Excluding, Selected, ChosenGroups)
# Orders whose rows are the same in every epoch if those of the orders below are.
_STEADY = (Sequential, Zipped, Concatenated, FlatMapped, *_PERMUTING)


class Reads(NamedTuple):
    """Positions that are read in each of some consecutive epochs.

    Args:
        first: First epoch.
        num_epochs: Number of epochs.
        intervals: The positions, in disjoint ranges.
    """

    first: int
    num_epochs: int
    intervals: tuple[range, ...]

    @property
    def positions(self) -> int:
        """Number of positions in each epoch."""
        return sum(map(len, self.intervals))


class Branch(NamedTuple):
    """Part of an order whose rows are counted by themselves.

    Args:
        order: The part.
        first_row: Row of the whole source that is the part's row 0.
        num_rows: Number of rows of the part's source.
        reads: Positions of the part that are read, ascending by epoch, each epoch once.
    """

    order: Order
    first_row: int
    num_rows: int
    reads: list[Reads]


def reads_of(plan: Steps, step: int) -> list[Reads]:
    """Positions of the order of a plan that the steps before a step have."""
    whole = 0
    if step:
        whole = plan.skips.whole_step(step - 1) + 1
    found: list[Reads] = []
    begin = 0
    for start, stop in (*plan.skips.before(whole).ranges, (whole, whole)):
        if begin < start:
            found += _between(plan, begin, start)
        begin = stop
    return merged(found)


def _between(
    plan: Steps,
    begin: int,
    end: int,
) -> Iterator[Reads]:
    """Positions of consecutive whole steps."""
    first, start = plan.position_of_whole_step(begin)
    last, position = plan.position_of_whole_step(end - 1)
    stop = min(position + plan.batch_size_of(end - 1), plan.order.size)
    if first == last:
        yield Reads(first, 1, (range(start, stop),))
        return
    yield Reads(first, 1, (range(start, _end_of(plan, first)),))
    # Epochs end alike, but for those in which a batch size begins.
    bounds = {first + 1, last}
    for segment in plan.segments:
        bounds.update((segment.epoch, segment.epoch + 1))
    middle = sorted(bound for bound in bounds if first < bound <= last)
    for epoch, following in pairwise(middle):
        positions = range(_end_of(plan, epoch))
        yield Reads(epoch, following - epoch, (positions,))
    yield Reads(last, 1, (range(stop),))


def _end_of(plan: Steps, epoch: int) -> int:
    """Position after the last step of an epoch."""
    if plan.buckets:
        return plan.order.size
    return plan.order.size - max(0, plan.left_over(epoch))


def merged(reads: Iterable[Reads]) -> list[Reads]:
    """Disjoint reads with each epoch once, ascending."""
    given = [read for read in reads if read.num_epochs and read.positions]
    waiting = sorted(given, key=lambda read: read.first, reverse=True)
    found: list[Reads] = []
    active: list[Reads] = []
    epoch = 0
    while waiting or active:
        if not active:
            epoch = waiting[-1].first
        while waiting and waiting[-1].first == epoch:
            active.append(waiting.pop())
        bounds = [read.first + read.num_epochs for read in active]
        if waiting:
            bounds.append(waiting[-1].first)
        following = min(bounds)
        intervals = joined(each for read in active for each in read.intervals)
        found.append(Reads(epoch, following - epoch, intervals))
        active = [read for read in active if read.first + read.num_epochs > following]
        epoch = following
    return found


def joined(intervals: Iterable[range]) -> tuple[range, ...]:
    """Disjoint ascending ranges, by their first positions; those that adjoin are one."""
    found: list[range] = []
    for each in sorted(filter(len, intervals), key=lambda one: one[0]):
        adjoins = bool(found) and found[-1].stop == each.start
        if adjoins and found[-1].step == each.step == 1:
            found[-1] = range(found[-1].start, each.stop)
        else:
            found.append(each)
    return tuple(found)


def is_steady(order: Order) -> bool:
    """Whether an epoch of an order has each of its rows once, the same ones in every epoch, as of that epoch."""
    return not order.repeats and _keeps_rows(order)


def _keeps_rows(order: Order) -> bool:
    if isinstance(order, FirstEpoch | Zipped):
        return True
    if isinstance(order, _CHOOSING):
        if order.parent.varies:
            return False
    elif not isinstance(order, _STEADY):
        return False
    return all(map(_keeps_rows, orders_below(order)))


def branches(
    order: Order,
    num_rows: int,
    reads: list[Reads],
    starts: Sequence[int],
    first_row: int = 0,
) -> Iterator[Branch]:
    """Parts of an order, with the positions of each that are read.

    Args:
        order: The order.
        num_rows: Number of rows of its source.
        reads: Positions of it, as of `merged`.
        starts: First rows of the sources to count apart, ascending from 0.
        first_row: Row of the whole source that is row 0.
    """
    if not reads:
        return
    last = first_row + max(num_rows, 1) - 1
    is_single = bisect_right(starts, first_row) == bisect_right(starts, last)
    here = Branch(order, first_row, num_rows, reads)
    if is_single and is_steady(order):
        yield here
        return
    below: list[tuple[Order, int, int, list[Reads]]] | None = None
    match order:
        case Sliced():
            inner = [_sliced(order, read) for read in reads]
            below = [(order.parent, first_row, num_rows, inner)]
        case Repeated():
            if all(map(_is_plain, reads)):
                inner = [each for read in reads for each in _repeated(order, read)]
                below = [(order.parent, first_row, num_rows, inner)]
        case Concatenated():
            if all(map(_is_plain, reads)):
                below = _concatenated(order, reads, first_row)
        case Mixed():
            if all(map(_is_plain, reads)):
                below = _mixed(order, reads, first_row)
        case Bucketed():
            if all(map(_is_plain, reads)):
                below = _bucketed(order, reads, first_row, num_rows)
        case Shuffled() | BlockShuffled() | GroupsShuffled() | Reordered():
            if all(read.positions == order.size for read in reads):
                below = [(order.parent, first_row, num_rows, reads)]
    if below is None:
        yield here
        return
    for part, first, rows, inner in below:
        yield from branches(part, rows, merged(inner), starts, first)


def _is_plain(read: Reads) -> bool:
    return all(each.step == 1 for each in read.intervals)


def _sliced(order: Sliced, read: Reads) -> Reads:
    moved = []
    for each in read.intervals:
        start = order.start + each.start * order.step
        step = each.step * order.step
        chosen = range(start, start + len(each) * step, step)
        if step < 0:
            chosen = chosen[::-1]
        moved.append(chosen)
    return read._replace(intervals=tuple(moved))


def _repeated(order: Repeated, read: Reads) -> Iterator[Reads]:
    times = order.times
    if read.positions == order.size:
        whole = (range(order.parent.size),)
        yield Reads(read.first * times, read.num_epochs * times, whole)
        return
    for epoch in range(read.first, read.first + read.num_epochs):
        for each in read.intervals:
            first = epoch * times * order.parent.size
            yield from _turns(order.parent.size, first, each)


def _turns(
    size: int,
    first: int,
    positions: range,
) -> Iterator[Reads]:
    """Reads of an order of which consecutive positions, counted over all epochs from `first` on, are read."""
    low, start = divmod(first + positions.start, size)
    high, stop = divmod(first + positions.stop, size)
    if low == high:
        yield Reads(low, 1, (range(start, stop),))
        return
    yield Reads(low, 1, (range(start, size),))
    yield Reads(low + 1, high - low - 1, (range(size),))
    yield Reads(high, 1, (range(stop),))


def _concatenated(
    order: Concatenated,
    reads: list[Reads],
    first_row: int,
) -> list[tuple[Order, int, int, list[Reads]]]:
    below = []
    begin = 0
    for part, rows in zip(order.parts, order.rows, strict=True):
        end = begin + part.size
        inner = []
        for read in reads:
            cut = tuple(
                range(max(each.start, begin) - begin, min(each.stop, end) - begin)
                for each in read.intervals
                if each.start < end and each.stop > begin
            )
            inner.append(read._replace(intervals=cut))
        below.append((part, first_row, rows, inner))
        begin = end
        first_row += rows
    return below


def _mixed(
    order: Mixed,
    reads: list[Reads],
    first_row: int,
) -> list[tuple[Order, int, int, list[Reads]]]:
    drawn: list[tuple[Integers, Integers]] = [
        (order.counts(each.start), order.counts(each.stop))
        for read in reads
        for each in _stretches(order, read)
    ]
    below: list[tuple[Order, int, int, list[Reads]]] = []
    for index, (part, rows) in enumerate(zip(order.parts, order.rows, strict=True)):
        inner: list[Reads] = []
        for before, after in drawn:
            draws = range(int(before[index]), int(after[index]))
            if draws:
                inner += _turns(part.size, 0, draws)
        below.append((part, first_row, rows, inner))
        first_row += rows
    return below


def _stretches(order: Mixed, read: Reads) -> Iterator[range]:
    """Positions of a mixture, counted over all epochs."""
    begin = int(order.begin(read.first))
    if read.positions == order.size < ENDLESS:
        yield range(begin, begin + read.num_epochs * order.size)
        return
    for epoch in range(read.first, read.first + read.num_epochs):
        begin = int(order.begin(epoch))
        for each in read.intervals:
            yield range(begin + each.start, begin + each.stop)


def _bucketed(
    order: Bucketed,
    reads: list[Reads],
    first_row: int,
    num_rows: int,
) -> list[tuple[Order, int, int, list[Reads]]]:
    below = []
    for bucket, part in enumerate(order.buckets):
        if part is None:
            continue
        inner = []
        for read in reads:
            cut = (
                range(
                    _rows_before(order, bucket, each.start),
                    _rows_before(order, bucket, each.stop),
                )
                for each in read.intervals
            )
            inner.append(read._replace(intervals=tuple(filter(len, cut))))
        below.append((part, first_row, num_rows, inner))
    return below


def _rows_before(
    order: Bucketed,
    bucket: int,
    position: int,
) -> int:
    """Number of rows of a bucket before a position of an epoch."""
    steps = len(order.bucket_of)
    step = int(np.searchsorted(order.starts, position, side="right")) - 1
    step = min(step, steps)
    turns = int(np.searchsorted(order.steps_of[bucket], step))
    rows = min(turns * order.sizes[bucket], order.counts[bucket])
    if step < steps and order.bucket_of[step] == bucket:
        rows += position - int(order.starts[step])
    return rows
