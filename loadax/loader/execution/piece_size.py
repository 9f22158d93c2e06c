"""Sizes of read tasks (pieces): as many rows as take a few milliseconds."""

from typing import final

from loadax.loader.metrics.stats import Timing

# Seconds: far above the cost of handing a piece to a thread, and little enough memory to stay in a core's caches.
_TARGET = 0.002
_ISOLATED_TARGET = 0.012  # processor seconds: a piece costs the trainer's process 0.25 ms of its own
# a piece that takes more than so many times its processor time waits for a disk or a network, not for a core
_CONTENTION = 4
_MOST_STEPS = 16  # the steps of a group share memory, which comes back when the last of them is gone
_PIECES_PER_WORKER = 4
_KEPT = 0.75  # of the weight of what was measured before, at each new measurement


@final
class PieceSizes:
    """Chooses how many steps a group has, or in how many pieces a step is cut. Only ever a matter of speed.

    A piece takes `delay + rows * seconds_per_row` seconds, a line fitted to what pieces took: cutting a step helps
    where rows take time, and does harm where it is the delay of a disk or a network, which every piece has again.

    Args:
        rows_per_step: Rows that this process reads in a step.
        workers: Threads that take up pieces.
        isolated: Whether pieces are read outside this process.
    """

    def __init__(self, rows_per_step: int, workers: int, isolated: bool = False):
        self._rows = max(1, rows_per_step)
        self._isolated = isolated
        self._target = _ISOLATED_TARGET if isolated else _TARGET
        self._most_pieces = min(self._rows, _PIECES_PER_WORKER * workers) if workers > 1 else 1
        self._weight = self._mean_rows = self._mean_seconds = self._spread = self._together = 0.0
        self._seconds_per_row: float | None = None  # seconds a row, once pieces of different sizes were measured

    def measured(self, rows: int, timing: Timing) -> None:
        """Takes in what a piece of `rows` took."""
        if not rows:
            return
        seconds = timing.seconds
        if self._isolated:
            # Processor time: on a machine that others use, pieces take longer, and smaller ones would only cost more.
            seconds = max(timing.processor_seconds, seconds / _CONTENTION)
        # Means and (co)variances with fading weights, updated as by Welford (1962).
        self._weight = self._weight * _KEPT + 1
        from_rows, from_seconds = rows - self._mean_rows, seconds - self._mean_seconds
        self._mean_rows += from_rows / self._weight
        self._mean_seconds += from_seconds / self._weight
        self._spread = self._spread * _KEPT + from_rows * (rows - self._mean_rows)
        self._together = self._together * _KEPT + from_rows * (seconds - self._mean_seconds)
        if self._spread > (0.1 * self._mean_rows) ** 2:
            self._seconds_per_row = min(max(self._together / self._spread, 0.0), self._mean_seconds / self._mean_rows)

    @property
    def steps(self) -> int:
        """Steps of the next group: a power of two, so that their memory has few different sizes."""
        if not self._weight:
            return 1  # the first batch must not wait for others
        fitting = int(self._target / max(self._mean_seconds / self._mean_rows * self._rows, 1e-9))
        return 1 << max(0, min(fitting, _MOST_STEPS).bit_length() - 1)

    def pieces(self, count: int) -> list[tuple[int, int]]:
        """The rows of a group of `count` steps, cut into the pieces that are read at once: `(low, high)` each."""
        rows = count * self._rows
        parts = 1
        if count == 1 and self._weight:
            per_row = (
                self._seconds_per_row if self._seconds_per_row is not None else self._mean_seconds / self._mean_rows
            )
            delay = self._mean_seconds - per_row * self._mean_rows
            parts = max(1, min(self._most_pieces, round(per_row * rows / max(self._target, delay))))
        return [(rows * part // parts, rows * (part + 1) // parts) for part in range(parts)]
