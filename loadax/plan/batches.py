"""BatchPlan: which visits a step consists of. The one place where positions become batches."""

from dataclasses import dataclass
from typing import Literal, final

import numpy as np

from loadax.errors import ArgumentError, RowIndexError
from loadax.plan.lanes import by_lane
from loadax.protocols import Integers, Order, Visits

Remainder = Literal["drop", "pad", "error"]


@final
@dataclass(frozen=True)
class BatchPlan:
    """Cuts the epochs of an order into steps of `batch_size` positions. Epochs never share a batch.

    Args:
        order: of the dataset.
        batch_size: rows of the global batch.
        num_epochs: None for ever.
        remainder: an epoch's last, partial batch: "drop" it, "pad" it, or "error" when there is one.

    Raises:
        ArgumentError: when a value can't be used, or the rows don't fill a batch; names the argument and the numbers.

    Example:
        >>> from loadax.plan.order import Sequential
        >>> plan = BatchPlan(Sequential(10), batch_size=4, num_epochs=2, remainder="pad")
        >>> plan.steps_per_epoch, plan.num_steps
        (3, 6)
        >>> plan.visits(5).rows
        array([ 8,  9, -1, -1])
    """

    order: Order
    batch_size: int
    num_epochs: int | None = 1
    remainder: Remainder = "drop"

    def __post_init__(self) -> None:
        size, batch_size = self.order.size, self.batch_size
        if batch_size < 1:
            raise ArgumentError(f"batch_size={batch_size}: a batch needs at least one row")
        if self.num_epochs is not None and self.num_epochs < 1:
            raise ArgumentError(f"num_epochs={self.num_epochs}: pass 1 or more, or None to go on for ever")
        if self.remainder not in ("drop", "pad", "error"):
            raise ArgumentError(f"remainder={self.remainder!r}: pass 'drop', 'pad' or 'error'")
        if size == 0:
            raise ArgumentError("the dataset has no rows; look at what it was read from, or at the slice or split that left none")
        if self.remainder == "error" and size % batch_size:
            raise ArgumentError(
                f"remainder='error': {size} rows leave {size % batch_size} over after batches of batch_size={batch_size}; "
                "pass remainder='drop' or 'pad', or a batch_size that divides the rows"
            )
        if self.remainder == "drop" and size < batch_size:
            raise ArgumentError(
                f"batch_size={batch_size} but the dataset has only {size} rows: remainder='drop' would leave no batch at all; "
                "pass a smaller batch_size, or remainder='pad'"
            )

    @property
    def steps_per_epoch(self) -> int:
        size, batch_size = self.order.size, self.batch_size
        return -(-size // batch_size) if self.remainder == "pad" else size // batch_size

    @property
    def num_steps(self) -> int | None:
        """Steps in all epochs together; None when they go on for ever."""
        return None if self.num_epochs is None else self.num_epochs * self.steps_per_epoch

    def check(self, step: int) -> int:
        """`step`, or a RowIndexError when there is none of that number."""
        if step < 0 or (self.num_steps is not None and step >= self.num_steps):
            last = "" if self.num_steps is None else f" and below {self.num_steps}"
            raise RowIndexError(f"step {step} is not there: steps are at least 0{last}")
        return step

    def valid(self, step: int) -> int:
        """How many of the step's positions hold a row; the rest, at its end, are padding."""
        return min(self.batch_size, self.order.size - step % self.steps_per_epoch * self.batch_size)

    def visits(self, step: int, positions: Integers | None = None) -> Visits:
        """The visits at `positions` of the batch (all, when None), in that order; padding has row -1."""
        if positions is None:
            positions = np.arange(self.batch_size, dtype=np.int64)
        return self.visits_of(range(step, step + 1), positions)

    def visits_of(self, steps: range, positions: Integers) -> Visits:
        """The same for several steps in one call: the visits of each step's `positions`, one step after another.

        Costs in proportion to `len(steps) * len(positions)`, whatever the batch and the dataset hold.
        """
        number = np.arange(steps.start, steps.stop, dtype=np.int64)
        epochs, inner = np.divmod(number, self.steps_per_epoch)
        starts = inner * self.batch_size
        valid = np.minimum(self.batch_size, self.order.size - starts)
        offsets = np.empty((len(number), len(positions)), np.int64)
        for place, (epoch, start, count) in enumerate(zip(epochs.tolist(), starts.tolist(), valid.tolist(), strict=True)):
            deals = self.order.deals(epoch, start, start + count)
            offsets[place] = by_lane(start, count, deals, positions) if deals else positions
        where = (starts[:, None] + offsets).ravel()
        epoch_of = np.repeat(epochs, len(positions))
        if (valid == self.batch_size).all():
            return self.order.visits(epoch_of, where)
        there = (offsets < valid[:, None]).ravel()
        rows = np.full(len(where), -1, np.int64)
        inside = np.array(epoch_of)
        rows[there], inside[there] = self.order.visits(epoch_of[there], where[there])
        return Visits(rows, inside)
