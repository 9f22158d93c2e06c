"""`Bucketed`: rows of several buckets in steps of one bucket each, and `BucketPlan`, its cut into these steps.

The steps of a bucket are spread evenly over each epoch: the j-th of n steps (from 0) is at (2 j + 1) / (2 n) of it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from operator import mul
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from loadax.core.arguments import MOST_POSITIONS
from loadax.core.formatting import count_text
from loadax.errors import ArgumentError
from loadax.plan.batches import BatchPlan, BatchSizeSegment, Remainder
from loadax.plan.even import MOST_SLOTS
from loadax.plan.mix import EVEN, Mixed, Segment, whole_weights
from loadax.plan.order import VerbOrder, join_hits
from loadax.plan.skips import Skips
from loadax.plan.subset import Rule, only_rows
from loadax.protocols import Hits, Integers, Order, Visits

BUCKETS_VERSION = 1
_MOST_UNITS = 1 << 20  # positions of a block of a mixture before version 3


def interleaved(steps: Sequence[int]) -> NDArray[np.uint8]:
    """Bucket of each step of an epoch that has `steps[i]` steps of bucket i, uint8[sum(steps)]."""
    bucket = np.repeat(np.arange(len(steps), dtype=np.uint8), steps)
    # Division rounds alike on every machine, so that equal quotients stay equal; ties are by bucket.
    times = [(2 * np.arange(count) + 1) / count for count in steps if count]
    return bucket[np.argsort(np.concatenate([np.empty(0), *times]), kind="stable")]


def datasets_of(
    order: Order, rows: int, first_row: int = 0
) -> Iterator[tuple[Order, range]]:
    """The orders of the datasets of a mixture, each with its rows; of any other order, itself with its `rows` rows."""
    if isinstance(order, Mixed):
        for part, count in zip(order.parts, order.rows, strict=True):
            yield from datasets_of(part, count, first_row)
            first_row += count
    else:
        yield order, range(first_row, first_row + rows)


def split(
    order: Order,
    chosen: Sequence[Integers],
    rules: Sequence[Rule],
    first_row: int = 0,
) -> list[Order | None]:
    """Orders of the ascending lists `chosen` of rows, in the same order; None: it visits none of them.

    Of a mixture, each is a mixture too, whose weights are in proportion to the rows that its parts have there: in an
    epoch, all together draw from every part what the mixture does.

    Args:
        order: Order of all rows.
        chosen: Lists of rows.
        rules: What made each list, for `describe`.
        first_row: Number of the order's first row in the lists.

    Raises:
        ArgumentError: When rows can't be chosen from it.
    """
    if isinstance(order, Mixed):
        firsts = first_row + np.cumsum([0, *order.rows[:-1]])
        parts = [
            split(part, chosen, rules, int(first))
            for part, first in zip(order.parts, firsts, strict=True)
        ]
        return [_share_of(order, share) for share in zip(*parts, strict=True)]
    kept = (
        only_rows(order, rows, rule, first_row=first_row)
        for rows, rule in zip(chosen, rules, strict=True)
    )
    return [each if each.size else None for each in kept]


def _share_of(mixed: Mixed, parts: Sequence[Order | None]) -> Order | None:
    """The mixture of some rows of each part. An epoch is one block, but of many positions in versions 1 and 2."""
    shares = [
        Fraction(0 if own is None else own.size, part.size)
        for own, part in zip(parts, mixed.parts, strict=True)
    ]

    def drawn(position: int) -> Integers:
        """Draws of such rows of each part before a position of the mixture."""
        return np.array(
            [
                int(share * count)
                for share, count in zip(
                    shares, mixed.counts(position).tolist(), strict=True
                )
            ]
        )

    begins = [segment.start for segment in mixed.segments]
    segments = list[Segment]()
    for begin, end in pairwise([*begins, begins[-1] + mixed.size]):
        before = drawn(begin)
        after = drawn(end)
        if (after > before).any():
            if mixed.version == EVEN:
                most = MOST_SLOTS
            else:
                most = _MOST_UNITS
            weights = whole_weights((after - before).tolist(), most)
            segments.append(Segment(int(before.sum()) if segments else 0, weights))
    size = int(drawn(mixed.size).sum())
    if not segments or not size:
        return None
    # A part without such rows is never drawn.
    below = tuple(
        part if own is None else own
        for own, part in zip(parts, mixed.parts, strict=True)
    )
    return replace(mixed, parts=below, segments=tuple(segments), stop=size)


@final
@dataclass(frozen=True, eq=False)
class Bucketed(VerbOrder):
    """Positions step by step, each step with rows of one bucket.

    Args:
        parent: Order of all rows.
        buckets: Order of the rows of each bucket; None: it has none.
        lengths: Length of each bucket.
        sizes: Rows of a step of each bucket.
        remainder: What becomes of the last, partial step of each bucket.
        padding: Share of padding in the rows of each bucket, to be told.
    """

    buckets: tuple[Order | None, ...]
    lengths: tuple[int, ...]
    sizes: tuple[int, ...]
    remainder: Remainder
    padding: tuple[float, ...] = ()

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Rows of each bucket in an epoch."""
        return tuple(0 if rows is None else rows.size for rows in self.buckets)

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """Steps of each bucket in an epoch."""
        each = zip(self.counts, self.sizes, strict=True)
        return tuple(
            (rows + size - 1 if self.remainder == "pad" else rows) // size
            for rows, size in each
        )

    @cached_property
    def bucket_of(self) -> NDArray[np.uint8]:
        """Bucket of each step of an epoch."""
        return interleaved(self.steps)

    @cached_property
    def steps_of(self) -> list[Integers]:
        """Steps of each bucket."""
        return [
            np.flatnonzero(self.bucket_of == bucket)
            for bucket in range(len(self.buckets))
        ]

    @cached_property
    def turn_of(self) -> Integers:
        """Number of steps of the same bucket before each step."""
        turns = np.empty(len(self.bucket_of), np.int64)
        for steps in self.steps_of:
            turns[steps] = np.arange(len(steps))
        return turns

    @cached_property
    def starts(self) -> Integers:
        """First position of each step, and the end."""
        rows = np.array(self.sizes, np.int64)[self.bucket_of]
        for steps, count, size in zip(
            self.steps_of, self.counts, self.sizes, strict=True
        ):
            if len(steps):
                rows[steps[-1]] = min(size, count - (len(steps) - 1) * size)
        return np.cumsum([0, *rows])

    @property
    def size(self) -> int:
        return int(self.starts[-1])

    def visits(self, epochs: Integers, positions: Integers) -> Visits:
        step = np.searchsorted(self.starts, positions, side="right") - 1
        bucket = self.bucket_of[step]
        index = positions - self.starts[step]
        rows = np.empty_like(positions)
        inner = np.empty_like(positions)
        for number, order in enumerate(self.buckets):
            here = np.flatnonzero(bucket == number)
            if len(here):
                assert order is not None
                within = self.turn_of[step[here]] * self.sizes[number] + index[here]
                rows[here], inner[here] = order.visits(epochs[here], within)
        return Visits(rows, inner)

    def inverse(
        self,
        rows: Integers,
        epochs: Integers,
        window: tuple[int, int],  # noqa: ARG002
    ) -> Hits:
        hits = []
        for order, size, steps in zip(
            self.buckets, self.sizes, self.steps_of, strict=True
        ):
            if order is None:
                continue
            below = order.inverse(rows, epochs, (0, order.size))
            turn, index = np.divmod(below.positions, size)
            kept = turn < len(steps)
            hits.append(
                Hits(below.asked[kept], self.starts[steps[turn[kept]]] + index[kept])
            )
        return join_hits(hits)

    def _described(self) -> tuple[list[Any], str]:
        each = zip(self.lengths, self.sizes, self.buckets, strict=True)
        buckets = [
            [length, size, order and order.describe()] for length, size, order in each
        ]
        sizes = ", ".join(
            f"{length}: {size}"
            for length, size in zip(self.lengths, self.sizes, strict=True)
        )
        return [
            "buckets",
            buckets,
            self.remainder,
            BUCKETS_VERSION,
        ], f"buckets {{{sizes}}}"


@final
@dataclass(frozen=True)
class BucketPlan:
    """Cuts the epochs of a bucketed order into its steps, as `Steps` says."""

    order: Bucketed
    num_epochs: int | None = 1
    skips: Skips = field(default=Skips())
    costs = None
    alternating = True

    @property
    def remainder(self) -> Remainder:
        return self.order.remainder

    def __post_init__(self) -> None:
        for length, size, rows in zip(
            self.order.lengths, self.order.sizes, self.order.counts, strict=True
        ):
            if self.remainder == "error" and rows % size:
                raise ArgumentError(
                    f"remainder='error': the bucket of length {length} has "
                    f"{count_text(rows, 'row')}, of which {rows % size} are left over "
                    f"after batches of {size}; pass remainder='drop' or 'pad'"
                )
        if not any(self.order.counts):
            raise ArgumentError(
                "Buckets: the dataset has no rows; check its source or slice"
            )
        if not self.order.size:
            counts = dict(zip(self.order.lengths, self.order.counts, strict=True))
            raise ArgumentError(
                f"no bucket fills a batch: their rows are {counts}; pass a "
                "batch_size of at most as many for one of them, or remainder='pad'"
            )
        _ = self.plans

    @cached_property
    def plans(self) -> list[BatchPlan | None]:
        """Plan of the steps of each bucket by themselves; None: it has none."""
        each = zip(
            self.order.buckets, self.order.sizes, self.order.steps, strict=True
        )
        return [
            BatchPlan(rows, size, self.num_epochs, self.remainder)
            if rows is not None and steps
            else None
            for rows, size, steps in each
        ]

    @cached_property
    def _segments(self) -> dict[int, BatchSizeSegment]:
        """By bucket with steps, one whose `first` is its first step."""
        order = self.order
        each = zip(order.steps_of, order.sizes, strict=True)
        return {
            bucket: BatchSizeSegment(
                int(steps[0]),
                0,
                int(order.starts[steps[0]]),
                size,
                len(steps),
                len(steps),
            )
            for bucket, (steps, size) in enumerate(each)
            if len(steps)
        }

    @property
    def buckets(self) -> tuple[tuple[int, int, int, float], ...]:
        order = self.order
        return tuple(
            zip(order.lengths, order.sizes, order.steps, order.padding, strict=True)
        )

    def shape_of(self, step: int) -> int:
        return self.bucket(self.skips.whole_step(step))

    def skipping(self, skips: Skips) -> "BucketPlan":
        return replace(self, skips=skips)

    @property
    def segments(self) -> tuple[BatchSizeSegment, ...]:
        return tuple(sorted(self._segments.values()))

    @property
    def batch_size(self) -> tuple[tuple[int, int], ...]:
        return self.schedule

    @property
    def schedule(self) -> tuple[tuple[int, int], ...]:
        return tuple((segment.first, segment.batch_size) for segment in self.segments)

    @property
    def steps_per_epoch(self) -> int:
        return len(self.order.bucket_of)

    @property
    def num_steps(self) -> int | None:
        if self.num_epochs is None:
            return None
        return self.num_epochs * self.steps_per_epoch - self.skips.count

    @property
    def end(self) -> int:
        if self.num_steps is None:
            return MOST_POSITIONS // max(self.order.sizes)
        return self.num_steps

    @property
    def first_steps(self) -> list[int]:
        """First remaining step of each bucket that has one."""
        if self.skips.ranges:
            last = self.skips.ranges[-1][1] // self.steps_per_epoch + 2
        else:
            last = 1
        epochs = range(
            last if self.num_epochs is None else min(last, self.num_epochs)
        )
        firsts = []
        for steps in self.order.steps_of:
            whole = (
                epoch * self.steps_per_epoch + step
                for epoch in epochs
                for step in steps.tolist()
            )
            firsts += [
                next(
                    (
                        self.skips.left(step)
                        for step in whole
                        if not self.skips.holds(step)
                    ),
                    None,
                )
            ]
        return sorted(step for step in firsts if step is not None)

    def alike(self, step: int) -> list[int]:
        """Remaining steps of the bucket of a step, in its epoch."""
        epoch = self.position_of_step(step)[0] * self.steps_per_epoch
        whole = epoch + self.order.steps_of[self.bucket(self.skips.whole_step(step))]
        return [
            self.skips.left(each)
            for each in whole.tolist()
            if not self.skips.holds(each)
        ]

    def changes(self, steps: range) -> list[int]:
        return [*steps]

    def epoch_steps(self, epoch: int) -> range:
        low, high = (
            self.skips.left(each * self.steps_per_epoch)
            for each in (epoch, epoch + 1)
        )
        return range(low, high)

    def left_over(self, epoch: int) -> int:  # noqa: ARG002 - the same in every epoch
        return sum(self.order.counts) - sum(
            map(mul, self.order.steps, self.order.sizes)
        )

    def bucket(self, whole_step: int) -> int:
        return int(self.order.bucket_of[whole_step % self.steps_per_epoch])

    def segment_of(self, step: int) -> tuple[BatchSizeSegment, int | None]:
        return self._segments[
            self.bucket(self.skips.whole_step(step))
        ], self.num_steps

    def of(self, step: int) -> BatchPlan:
        """Plan of the steps of the bucket of a step."""
        plan = self.plans[self.bucket(self.skips.whole_step(step))]
        assert plan is not None
        return plan

    def local(self, step: int) -> int:
        """Number of a step in the plan of its bucket."""
        epoch, step = divmod(self.skips.whole_step(step), self.steps_per_epoch)
        return epoch * self.order.steps[self.order.bucket_of[step]] + int(
            self.order.turn_of[step]
        )

    def position_of_step(self, step: int) -> tuple[int, int]:
        return self.position_of_whole_step(self.skips.whole_step(step))

    def position_of_whole_step(self, whole_step: int) -> tuple[int, int]:
        epoch, step = divmod(whole_step, self.steps_per_epoch)
        return epoch, int(self.order.starts[step])

    def batch_size_of(self, whole_step: int) -> int:
        return self.order.sizes[self.bucket(whole_step)]

    def step_at(self, epoch: int, position: int) -> tuple[int, int]:
        step = int(np.searchsorted(self.order.starts, position, side="right")) - 1
        return epoch * self.steps_per_epoch + step, position - int(
            self.order.starts[step]
        )

    def valid(self, step: int) -> int:
        step = self.skips.whole_step(step) % self.steps_per_epoch
        return int(self.order.starts[step + 1] - self.order.starts[step])

    def visits(self, step: int, positions: Integers | None = None) -> Visits:
        return self.of(step).visits(self.local(step), positions)

    def visits_of(self, steps: range, positions: Integers) -> Visits:
        return Visits(
            *map(
                np.concatenate,
                zip(*(self.visits(step, positions) for step in steps), strict=True),
            )
        )
