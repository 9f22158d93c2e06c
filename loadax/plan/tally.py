"""Tally: rows, tokens, epochs and distinct rows that are read of each source, by arithmetic where there is any.

The rows of an order that has each row once an epoch are counted without looking at them. Rows are looked at where
sources are shuffled together, where tokens depend on the row, and where an order may repeat rows: of an epoch, either
the positions that are read or the others, whichever are fewer.

Distinct rows of several epochs are all rows but those that no epoch reads. These are looked for among the rows that the
fullest epoch leaves out: mostly the few that its last, partial batch drops.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias, final

import numpy as np

from loadax.core.intervals import merge
from loadax.plan.reads import Branch, Reads, branches, is_steady, joined
from loadax.protocols import Integers, Order

_AT_ONCE = 1 << 18  # visits that are looked at together
_FEW = 8  # intervals that are tried one by one

# Tokens of a source's rows: of each alike, by row, or None if rows have none.
Tokens: TypeAlias = int | Callable[[Integers], Integers] | None


class Counted(NamedTuple):
    """A source whose rows are counted apart.

    Args:
        first_row: Row of the whole source that is its row 0.
        tokens: Tokens of its rows.
    """

    first_row: int
    tokens: Tokens = None


@final
@dataclass
class Tally:
    """What is read of one source.

    Args:
        rows: Number of rows, each as often as it is read.
        tokens: Their tokens; 0 if rows have none.
        distinct: Number of different rows.
        spans: Epochs of the source in which rows are read, as `(first, stop)`.
    """

    rows: int = 0
    tokens: int = 0
    distinct: int = 0
    spans: list[tuple[int, int]] = field(default_factory=list)

    @property
    def epochs(self) -> int:
        """Number of epochs of the source in which rows are read; rows in quarantine count."""
        return sum(stop - start for start, stop in merge(self.spans))


def tally(
    order: Order,
    num_rows: int,
    reads: list[Reads],
    sources: Sequence[Counted],
    gone: Integers,
) -> list[Tally]:
    """Counts what is read of each source.

    Args:
        order: Order of all rows.
        num_rows: Number of rows of all sources.
        reads: Positions of the order that are read, as of `reads_of`.
        sources: The sources, ascending from row 0.
        gone: Rows that are never read, sorted int64[n].
    """
    tallies = [Tally() for _ in sources]
    starts = [source.first_row for source in sources]
    for branch in branches(order, num_rows, reads, starts):
        _Counting(branch, sources, starts, gone).add_to(tallies)
    for one, source in zip(tallies, sources, strict=True):
        if isinstance(source.tokens, int):
            one.tokens = one.rows * source.tokens
    return tallies


@final
class _Counting:
    """Counts the rows of one branch. Sums are int64[2, sources]: rows, and tokens that depend on the row."""

    def __init__(
        self,
        branch: Branch,
        sources: Sequence[Counted],
        starts: Sequence[int],
        gone: Integers,
    ):
        self._branch = branch
        self._order = branch.order
        self._first_row = branch.first_row
        self._starts = starts
        last = branch.first_row + max(branch.num_rows, 1) - 1
        self._low = bisect_right(starts, branch.first_row) - 1
        self._sources = sources[self._low : bisect_right(starts, last)]
        self._own_starts = np.array([one.first_row for one in self._sources])
        self._is_looked_at = len(self._sources) > 1 or any(
            callable(source.tokens) for source in self._sources
        )
        low, high = np.searchsorted(gone, [branch.first_row, last + 1])
        self._gone = gone[low:high] - branch.first_row

    def add_to(self, tallies: list[Tally]) -> None:
        """Adds what is counted."""
        own = tallies[self._low : self._low + len(self._sources)]
        if is_steady(self._order):
            sums, distinct = self._steady(own)
        else:
            sums, distinct = self._loose(own)
        rows, tokens = sums.tolist()
        for index, one in enumerate(own):
            one.rows += rows[index]
            one.tokens += tokens[index]
            one.distinct += int(distinct[index])

    # An order that has each of its rows once an epoch, the same ones in every epoch.

    def _steady(self, tallies: list[Tally]) -> tuple[Integers, Integers]:
        total = self._none()
        latest = total
        for read in self._branch.reads:
            for epoch, count in self._alike(read):
                latest = self._in_epoch(epoch, read)
                total = total + count * latest
                for one, rows in zip(tallies, latest[0].tolist(), strict=True):
                    if rows:
                        one.spans.append((epoch, epoch + count))
        reads = self._branch.reads
        if len(reads) == 1 and reads[0].num_epochs == 1:
            distinct = latest[0]
        else:
            distinct = self._distinct()
        if len(self._gone):
            quarantined, met = self._quarantined()
            total = total - quarantined
            distinct = distinct - met
        return total, distinct

    def _alike(self, read: Reads) -> Iterator[tuple[int, int]]:
        """Epochs that read the same numbers of rows, as `(first, count)`."""
        is_whole = read.positions == self._order.size
        if is_whole or not self._is_looked_at or not self._order.varies:
            yield read.first, read.num_epochs
            return
        for epoch in range(read.first, read.first + read.num_epochs):
            yield epoch, 1

    def _in_epoch(self, epoch: int, read: Reads) -> Integers:
        """Sums of an epoch."""
        if not self._is_looked_at:
            return np.array([[read.positions], [0]])
        if read.positions == self._order.size:
            return self._whole
        others = complement(read.intervals, self._order.size)
        if others is not None and sum(map(len, others)) < read.positions:
            return self._whole - self._looked_at(epoch, others)
        return self._looked_at(epoch, read.intervals)

    @property
    def _whole(self) -> Integers:
        """Sums of an epoch that reads all positions."""
        if "_known" not in vars(self):
            self._known = self._sum_of(self._branch)
        return self._known

    def _sum_of(self, branch: Branch) -> Integers:
        """Sums of an epoch of a part of this branch."""
        order = branch.order
        whole = (range(order.size),)
        reads = [Reads(0, 1, whole)] if order.size else []
        total = self._none()
        for part in branches(
            order, branch.num_rows, reads, self._starts, branch.first_row
        ):
            last = part.first_row + max(part.num_rows, 1) - 1
            index = bisect_right(self._starts, last) - 1
            source = self._sources[index - self._low]
            is_single = self._starts[index] <= part.first_row
            if is_single and not callable(source.tokens):
                total[0, index - self._low] += part.reads[0].positions
            else:
                total += self._looked_at(0, part.reads[0].intervals, part)
        return total

    def _looked_at(
        self,
        epoch: int,
        intervals: Iterable[range],
        branch: Branch | None = None,
    ) -> Integers:
        """Sums of positions of an epoch. `branch`: a part of this one; None: all of it."""
        part = branch or self._branch
        total = self._none()
        for positions in chunks(intervals):
            epochs = np.full_like(positions, epoch)
            rows = part.order.visits(epochs, positions).rows
            total += self._sums(rows + part.first_row)
        return total

    def _sums(self, rows: Integers) -> Integers:
        """Sums of rows of the whole source."""
        total = self._none()
        owner = self._owners(rows)
        total[0] = np.bincount(owner, minlength=len(self._sources))
        for index, source in enumerate(self._sources):
            if callable(source.tokens) and total[0, index]:
                own = rows[owner == index] - source.first_row
                total[1, index] = source.tokens(own).sum()
        return total

    def _owners(self, rows: Integers) -> Integers:
        return np.searchsorted(self._own_starts, rows, side="right") - 1

    def _none(self) -> Integers:
        return np.zeros((2, len(self._sources)), np.int64)

    def _rows_by_source(self, rows: Integers) -> Integers:
        owners = self._owners(rows + self._first_row)
        return np.bincount(owners, minlength=len(self._sources))

    def _distinct(self) -> Integers:
        """Number of different rows of each source, over all epochs."""
        order = self._order
        reads = self._branch.reads
        fullest = max(reads, key=lambda read: read.positions)
        if fullest.positions == order.size:
            return self._in_epoch(fullest.first, fullest)[0]
        if not order.varies:
            ever = united(read.intervals for read in reads)
            return self._in_epoch(0, Reads(0, 1, ever))[0]
        everywhere = Reads(0, 1, (range(order.size),))
        found = self._in_epoch(0, everywhere)[0].copy()
        others = complement(fullest.intervals, order.size)
        if others is None:
            is_read = np.zeros(order.size, bool)
            for each in fullest.intervals:
                is_read[each.start : each.stop : each.step] = True
            others = tuple(
                range(position, position + 1)
                for position in np.flatnonzero(~is_read).tolist()
            )
        for positions in chunks(others):
            epochs = np.full_like(positions, fullest.first)
            rows = order.visits(epochs, positions).rows
            for read in reads:
                rows = self._never_in(rows, read)
            found -= self._rows_by_source(rows)
        return found

    def _never_in(self, rows: Integers, read: Reads) -> Integers:
        """Those of the rows that no epoch of some reads."""
        epoch = read.first
        stop = read.first + read.num_epochs
        while epoch < stop and len(rows):
            count = min(stop - epoch, max(1, _AT_ONCE // len(rows)))
            met = self._meetings(rows, read, epoch, count)
            rows = rows[met == 0]
            epoch += count
        return rows

    def _meetings(
        self,
        rows: Integers,
        read: Reads,
        epoch: int,
        count: int,
    ) -> Integers:
        """Number of some epochs that read each row, int64[n]."""
        asked = np.tile(rows, count)
        epochs = np.repeat(np.arange(epoch, epoch + count), len(rows))
        hits = self._order.inverse(asked, epochs, (0, self._order.size))
        inside = within(hits.positions, read.intervals)
        which = hits.asked[inside] % len(rows)
        return np.bincount(which, minlength=len(rows))

    def _quarantined(self) -> tuple[Integers, Integers]:
        """Sums of the reads of rows in quarantine, and the numbers of those rows that would be read."""
        times = np.zeros(len(self._gone), np.int64)
        for read in self._branch.reads:
            epoch = read.first
            stop = read.first + read.num_epochs
            if not self._order.varies:
                once = self._meetings(self._gone, read, epoch, 1)
                times += once * read.num_epochs
                continue
            while epoch < stop:
                count = min(stop - epoch, max(1, _AT_ONCE // len(times)))
                times += self._meetings(self._gone, read, epoch, count)
                epoch += count
        met = self._gone[times > 0]
        repeated = np.repeat(self._gone, times)
        return self._sums(repeated + self._first_row), self._rows_by_source(met)

    # Any other order.

    def _loose(self, tallies: list[Tally]) -> tuple[Integers, Integers]:
        total = self._none()
        is_read = np.zeros(self._branch.num_rows, bool)
        epochs_read: list[list[Integers]] = [[] for _ in self._sources]
        for read in self._branch.reads:
            for epoch in range(read.first, read.first + read.num_epochs):
                for positions in chunks(read.intervals):
                    epochs = np.full_like(positions, epoch)
                    visits = self._order.visits(epochs, positions)
                    owner = self._owners(visits.rows + self._first_row)
                    for index, several in enumerate(epochs_read):
                        several.append(np.unique(visits.epochs[owner == index]))
                    rows = visits.rows
                    if len(self._gone):
                        rows = rows[~np.isin(rows, self._gone)]
                    is_read[rows] = True
                    total += self._sums(rows + self._first_row)
        for one, several in zip(tallies, epochs_read, strict=True):
            one.spans += spans_of(np.unique(np.concatenate(several)))
        return total, self._rows_by_source(np.flatnonzero(is_read))


def chunks(intervals: Iterable[range]) -> Iterator[Integers]:
    """The positions of ranges in arrays of limited length."""
    waiting: list[Integers] = []
    size = 0
    for each in intervals:
        for low in range(0, len(each), _AT_ONCE):
            part = each[low : low + _AT_ONCE]
            waiting.append(np.arange(part.start, part.stop, part.step))
            size += len(part)
            if size >= _AT_ONCE:
                yield np.concatenate(waiting)
                waiting = []
                size = 0
    if waiting:
        yield np.concatenate(waiting)


def complement(intervals: Sequence[range], size: int) -> tuple[range, ...] | None:
    """The other positions of an epoch; None if a range has steps."""
    others = []
    begin = 0
    for each in intervals:
        if each.step != 1:
            return None
        others.append(range(begin, each.start))
        begin = each.stop
    return joined([*others, range(begin, size)])


def united(several: Iterable[Sequence[range]]) -> tuple[range, ...]:
    """The positions that are in any of several lists of ranges, which may overlap."""
    every = [each for intervals in several for each in intervals]
    if all(each.step == 1 for each in every):
        ends = merge((each.start, each.stop) for each in every)
        return tuple(range(start, stop) for start, stop in ends)
    positions = np.unique(np.concatenate(list(chunks(every))))
    return tuple(range(start, stop) for start, stop in spans_of(positions))


def within(positions: Integers, intervals: Sequence[range]) -> Integers:
    """Indices of the positions that are in one of some disjoint, ascending ranges."""
    if len(intervals) > _FEW and all(each.step == 1 for each in intervals):
        starts = np.array([each.start for each in intervals])
        stops = np.array([each.stop for each in intervals])
        which = np.searchsorted(starts, positions, side="right") - 1
        return np.flatnonzero((which >= 0) & (positions < stops[which]))
    inside = np.zeros(len(positions), bool)
    for each in intervals:
        is_between = (positions >= each.start) & (positions < each.stop)
        inside |= is_between & ((positions - each.start) % each.step == 0)
    return np.flatnonzero(inside)


def spans_of(ascending: Integers) -> list[tuple[int, int]]:
    """Runs of consecutive numbers, as `(first, stop)`."""
    if not len(ascending):
        return []
    breaks = np.flatnonzero(np.diff(ascending) != 1) + 1
    firsts = ascending[np.append(0, breaks)]
    lasts = ascending[np.append(breaks, len(ascending)) - 1]
    stops = lasts + 1
    return list(zip(firsts.tolist(), stops.tolist(), strict=True))
