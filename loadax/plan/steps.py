"""`Steps`: which positions of the data are in step t. The slot that `BatchPlan` fills by default."""

from collections.abc import Sequence
from typing import Protocol, Self

from loadax.plan.batches import BatchPlan, BatchSizeSegment, Costs, Remainder
from loadax.plan.skips import Skips
from loadax.protocols import Integers, Order, Visits


class Steps(Protocol):
    """Cuts the epochs of an order into steps: numbers only, the same on every host.

    A `step` counts the remaining steps, from 0; a `whole_step` counts skipped ones too, as do those of segments.
    """

    @property
    def order(self) -> Order:
        """Order of all positions that the steps have."""

    @property
    def num_epochs(self) -> int | None:
        """Number of epochs. None: endless."""

    @property
    def remainder(self) -> Remainder:
        """Handling of an epoch's last, partial batch."""

    @property
    def skips(self) -> Skips:
        """Skipped steps."""

    @property
    def costs(self) -> Costs | None:
        """Costs of rows by which steps are balanced. None: they are not."""

    @property
    def batch_size(self) -> int | tuple[tuple[int, int], ...]:
        """Rows of every step, or `schedule` if there are several sizes."""

    @property
    def schedule(self) -> tuple[tuple[int, int], ...]:
        """`(first step, batch size)` of each segment."""

    @property
    def segments(self) -> tuple[BatchSizeSegment, ...]:
        """Steps of one shape each."""

    @property
    def steps_per_epoch(self) -> int:
        """Steps of the first epoch, skipped ones included."""

    @property
    def num_steps(self) -> int | None:
        """Remaining steps of all epochs. None: endless."""

    @property
    def end(self) -> int:
        """Step after the last one that can be counted."""

    @property
    def first_steps(self) -> list[int]:
        """First remaining step of each shape, ascending."""

    @property
    def alternating(self) -> bool:
        """Whether neighbouring steps have different shapes, so that all of these are read at the same time."""

    @property
    def buckets(self) -> tuple[tuple[int, int, int, float], ...]:
        """Length, batch size, steps of an epoch, and share of padding of each bucket; empty without buckets."""

    def shape_of(self, step: int) -> int:
        """Number of the shape of a step."""

    def skipping(self, skips: Skips) -> Self:
        """The same steps, of which these are skipped."""

    def alike(self, step: int) -> Sequence[int]:
        """Remaining steps of the shape of a step: of its epoch, or of all epochs that have an end."""

    def changes(self, steps: range) -> list[int]:
        """Those of `steps` at which the shapes of batches may change, the first one among them."""

    def epoch_steps(self, epoch: int) -> range:
        """Remaining steps of an epoch."""

    def left_over(self, epoch: int) -> int:
        """Number of rows that are left after the whole steps of an epoch; below 0: rows of padding in them."""

    def segment_of(self, step: int) -> tuple[BatchSizeSegment, int | None]:
        """The segment of a step, and the step after the last one that may have it. None: there is none."""

    def of(self, step: int) -> BatchPlan:
        """The plan that a step is laid out by."""

    def local(self, step: int) -> int:
        """Number of a step in that plan."""

    def position_of_step(self, step: int) -> tuple[int, int]:
        """Epoch of a step, and the position in that epoch at which the step begins."""

    def position_of_whole_step(self, whole_step: int) -> tuple[int, int]:
        """Same as `position_of_step`, for a whole step."""

    def batch_size_of(self, whole_step: int) -> int:
        """Number of positions of a whole step."""

    def step_at(self, epoch: int, position: int) -> tuple[int, int]:
        """Whole step that holds a position of an epoch, and the position's index in it before sorting by lane."""

    def valid(self, step: int) -> int:
        """Number of the step's positions that hold a row; the others are padding."""

    def visits(self, step: int, positions: Integers | None = None) -> Visits:
        """Visits at `positions` of the batch (None: all), in that order; padding has row -1."""

    def visits_of(self, steps: range, positions: Integers) -> Visits:
        """Visits at the same `positions` of several steps of one shape, concatenated."""


def skipped_ranges(plan: Steps, whole_step: int) -> list[list[int]]:
    """Skipped ranges before a step, as (epoch, position, epoch, position), which don't depend on the batch size."""
    ranges = []
    for start, stop in plan.skips.before(whole_step).ranges:
        epoch, position = plan.position_of_whole_step(stop - 1)
        ranges.append(
            [
                *plan.position_of_whole_step(start),
                epoch,
                min(position + plan.batch_size_of(stop - 1), plan.order.size),
            ]
        )
    return ranges
