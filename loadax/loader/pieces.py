"""How much is read at once: as many rows as take about four milliseconds, by what rows took so far."""

from typing import final

_TARGET = 0.004  # seconds: far above what handing a piece to a thread costs, far below what anyone waits for
_MOST_STEPS = 16  # the steps of a run share memory, which comes back when the last of them is gone
_SLICES_PER_WORKER = 4
_WEIGHT = 0.25  # of the newest measurement in the running average


@final
class PieceSizes:
    """Chooses how many steps a run has, or in how many slices a step is cut. Only ever a matter of speed."""

    def __init__(self, rows_per_step: int, workers: int):
        self._rows = max(1, rows_per_step)
        self._most_slices = min(self._rows, _SLICES_PER_WORKER * workers) if workers > 1 else 1
        self._seconds_per_row: float | None = None

    def measured(self, rows: int, seconds: float) -> None:
        """Takes in what a piece of `rows` took."""
        if rows:
            new, old = seconds / rows, self._seconds_per_row
            self._seconds_per_row = new if old is None else old + _WEIGHT * (new - old)

    @property
    def steps(self) -> int:
        """Steps of the next run: a power of two, so that their memory has few different sizes."""
        if self._seconds_per_row is None:
            return 1  # the first batch must not wait for others
        fitting = int(_TARGET / max(self._seconds_per_row * self._rows, 1e-9))
        return 1 << max(0, min(fitting, _MOST_STEPS).bit_length() - 1)

    def slices(self, count: int) -> list[tuple[int, int]]:
        """The rows of a run of `count` steps, cut into the pieces that are read at once: `(low, high)` each."""
        rows = count * self._rows
        parts = 1
        if count == 1 and self._seconds_per_row is not None:
            parts = max(1, min(self._most_slices, round(self._seconds_per_row * rows / _TARGET)))
        return [(rows * part // parts, rows * (part + 1) // parts) for part in range(parts)]
