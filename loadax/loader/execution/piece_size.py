"""PieceSizes: chooses the size of read tasks (pieces), so that each takes a few milliseconds."""

from collections.abc import Callable
from typing import final

from loadax.loader.metrics.stats import Timing

# Seconds. Far above the cost of handing a piece to a thread, but small enough for the CPU caches of a core.
TARGET = 0.002
# times as long, at most, threads read a group of steps: no step of a group would be cut by itself
_TOGETHER = 2
# without workers: the batch before which a group is read waits for all of it
ALONE_TARGET = 0.001
# A piece that takes longer than this multiple of its CPU time waits for a disk or a network, not for a core.
_CONTENTION = 4
# the steps of a group share memory, which is freed with the last of them
_MOST_STEPS = 16
# Pieces of a step that waited, as long as pieces of one size alone were measured: enough to tell latency, which each
# piece pays again, from rows that take time.
_TRIED = 2
_MOST_PLACED_STEPS = 64  # of a group that several workers read together
_PIECES_PER_WORKER = 4
_KEPT = 0.75  # decay of earlier measurements at each new one


@final
class PieceSizes:
    """Chooses the number of steps per group, or the number of pieces per step. Affects speed only.

    The time of a piece is modelled as `delay + rows * seconds_per_row`, by linear regression. Splitting a step helps if
    rows take time. It does harm if the time is latency of a disk or a network, which every piece pays again.

    Args:
        rows_per_step: Rows that this process reads per step.
        workers: Number of threads that read pieces; 0: the consumer's own.
        elsewhere: CPU seconds that a piece should take, if pieces are read outside this process. 0: in it.
        places: Returns the number of workers that pieces are placed on, each with the same rows of all steps; 0: any
            worker reads any piece.
    """

    def __init__(
        self,
        rows_per_step: int,
        workers: int,
        elsewhere: float = 0.0,
        places: Callable[[], int] = int,
    ):
        self._rows = max(1, rows_per_step)
        self._places = places
        self._elsewhere = bool(elsewhere)
        self._target = elsewhere or TARGET
        self._group_target = elsewhere or (
            _TOGETHER * TARGET if workers else ALONE_TARGET
        )
        self._splits = workers > 1
        self._weight = self._mean_rows = self._mean_seconds = self._spread = (
            self._together
        ) = self._mean_busy = 0.0
        # known once pieces of different sizes were measured
        self._seconds_per_row: float | None = None

    def measured(self, rows: int, timing: Timing) -> None:
        """Records the timing of a piece of `rows` rows."""
        if not rows:
            return
        # What is under way was requested for many pieces: fewer rows would wait for it as long.
        seconds = timing.seconds - timing.under_way
        # CPU time: on a machine under other load, pieces take longer, and smaller ones would only add overhead.
        busy = max(timing.processor_seconds, seconds / _CONTENTION)
        if self._elsewhere:
            seconds = busy
        # Means and (co)variances with fading weights, updated as by Welford (1962).
        self._weight = self._weight * _KEPT + 1
        from_rows = rows - self._mean_rows
        from_seconds = seconds - self._mean_seconds
        self._mean_rows += from_rows / self._weight
        self._mean_seconds += from_seconds / self._weight
        self._mean_busy += (busy - self._mean_busy) / self._weight
        self._spread = self._spread * _KEPT + from_rows * (rows - self._mean_rows)
        self._together = self._together * _KEPT + from_rows * (
            seconds - self._mean_seconds
        )
        if self._spread > (0.1 * self._mean_rows) ** 2:
            self._seconds_per_row = min(
                max(self._together / self._spread, 0.0),
                self._mean_seconds / self._mean_rows,
            )

    @property
    def steps(self) -> int:
        """Number of steps of the next group: a power of two, so that buffers have few sizes and are reused."""
        if not self._weight:
            return 1  # the first batch must not wait for others
        places = self._places()
        target = self._group_target * max(1, places)
        fitting = int(
            target / max(self._mean_busy / self._mean_rows * self._rows, 1e-9) + 1e-6
        )
        return 1 << max(
            0,
            min(fitting, _MOST_PLACED_STEPS if places else _MOST_STEPS).bit_length()
            - 1,
        )

    def pieces(
        self, count: int, active: int, rows_per_step: int | None = None
    ) -> list[tuple[int, int]]:
        """Splits the rows of each of the `count` steps of a group into pieces `(low, high)`, for `active` threads.

        Steps have `rows_per_step` rows; None: as many as the largest.
        Each piece has a fixed cost, the highest for a stream with many lanes: so no more than keep these threads busy.
        """
        rows = rows_per_step or self._rows
        parts = 1
        places = self._places()
        if (count == 1 or places) and self._weight and self._splits:
            most = min(rows, _PIECES_PER_WORKER * active)
            if self._seconds_per_row is None:
                per_row = self._mean_seconds / self._mean_rows
                # a hundredth more, for rounding
                if self._mean_busy < 1.01 / _CONTENTION * self._mean_seconds:
                    most = min(most, _TRIED)
            else:
                per_row = self._seconds_per_row
            delay = self._mean_seconds - per_row * self._mean_rows
            parts = max(
                1, min(most, round(per_row * rows * count / max(self._target, delay)))
            )
        if places:  # as many for each
            parts = min(rows, places * max(1, round(parts / places)))
        return [
            (rows * part // parts, rows * (part + 1) // parts)
            for part in range(parts)
        ]
