"""Growth of a series of measurements: exponent over time, change an hour with its error, and the verdict."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

WARM = 0.25
"""Share of a run that is left out at its beginning: caches fill, code is compiled, read-ahead finds its depth."""

BLOCKS = 12
"""Means that the line is fitted to. Neighbouring samples are not independent; means of long stretches nearly are."""

SIGNIFICANT = 3.2
"""Standard errors; t for 10 degrees of freedom leaves 0.5 % above it."""

TOLERATED = 0.02
"""Share of the mean that a run may grow by in an hour."""


@final
@dataclass(frozen=True)
class Trend:
    """A fitted trend.

    Args:
        exponent: Slope of log(value) over log(time): 0 is flat, 1 grows as time does.
        hourly: Change an hour, in the unit of the values.
        error: Standard error of `hourly`.
        mean: Mean after the warm-up.
    """

    exponent: float
    hourly: float
    error: float
    mean: float

    @property
    def grows(self) -> bool:
        """Whether growth of more than is tolerated is beyond chance."""
        surely = self.hourly - SIGNIFICANT * self.error
        return surely > TOLERATED * self.mean


def trend(seconds: Sequence[float], values: Sequence[float]) -> Trend:
    """Fits lines to a series by least squares.

    Args:
        seconds: Times since the start, ascending and positive.
        values: Measurements at these times, of which at least 24 must be after the warm-up.

    Raises:
        ValueError: When there are fewer.
    """
    times = np.asarray(seconds, np.float64)
    heights = np.asarray(values, np.float64)
    warm = times >= WARM * times[-1]
    times = times[warm]
    heights = heights[warm]
    if len(times) < 2 * BLOCKS:
        raise ValueError(f"{len(times)} samples after the warm-up; a trend needs {2 * BLOCKS}")
    exponent, _ = line(np.log(times), np.log(np.maximum(heights, 1)))
    parts = np.array_split(np.arange(len(times)), BLOCKS)
    middles = np.array([times[part].mean() for part in parts])
    means = np.array([heights[part].mean() for part in parts])
    slope, error = line(middles / 3600, means)
    return Trend(exponent, slope, error, float(heights.mean()))


def line(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[float, float]:
    """Slope of the least-squares line, and its standard error."""
    away = x - x.mean()
    spread = float(away @ away)
    slope = float(away @ (y - y.mean())) / spread
    left = y - y.mean() - slope * away
    variance = float(left @ left) / (len(x) - 2)
    return slope, math.sqrt(variance / spread)
