"""Summary: what is known of many numbers by column, merged from parts in any order of reading.

Means and sums of squares are merged as Chan, Golub and LeVeque do ("Algorithms for computing the sample variance",
1983), in float64, so that nothing cancels. Quantiles come from some values that stand for their neighbours in order,
each with its number.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadax.protocols import Integers

Floats = NDArray[np.float64]

_MOST_POINTS = 1024
_LEAST_POINTS = 32
_POINTS_TOGETHER = 1 << 16


class Summary(NamedTuple):
    """Summary of numbers by column; each array has a row for each column.

    Args:
        number: Number of finite values, int64[columns].
        missing: Number of other values, int64[columns].
        mean: Mean of the finite ones, float64[columns].
        squares: Sum of the squared differences from the mean, float64[columns].
        least: Least finite value, float64[columns]; infinity if there is none.
        most: Greatest one, float64[columns].
        points: Values that stand for others, ascending, float64[columns, points].
        weights: Number of values that each stands for, float64[columns, points]; 0: none.
    """

    number: Integers
    missing: Integers
    mean: Floats
    squares: Floats
    least: Floats
    most: Floats
    points: Floats
    weights: Floats

    @classmethod
    def of(cls, values: NDArray[Any]) -> "Summary":
        """Summary of an array[n, columns] of real numbers."""
        columns = values.astype(np.float64).T
        finite = np.isfinite(columns)
        count = finite.sum(1)
        missing = columns.shape[1] - count
        whole = bool(finite.all())
        kept = columns if whole else np.where(finite, columns, 0.0)
        mean = kept.sum(1) / np.maximum(count, 1)
        away = kept - mean[:, None]
        if not whole:
            away[~finite] = 0.0
        # the second sum is of rounding errors alone
        squares = (away**2).sum(1) - away.sum(1) ** 2 / np.maximum(count, 1)
        mean += away.sum(1) / np.maximum(count, 1)
        # those that are not finite come last, where they stand for nothing
        ordered = np.sort(columns if whole else np.where(finite, columns, np.inf))
        weights = np.broadcast_to(
            np.arange(columns.shape[1]) < count[:, None], columns.shape
        )
        least = np.where(finite, columns, np.inf).min(1, initial=np.inf)
        most = np.where(finite, columns, -np.inf).max(1, initial=-np.inf)
        points = _fewer(ordered, weights.astype(np.float64))
        return cls(count, missing, mean, squares, least, most, *points)

    @classmethod
    def merged(cls, parts: Sequence["Summary"]) -> "Summary":
        """Summary of the numbers of all parts, of which there is one at least."""
        total = parts[0]
        count, mean, squares = total.number, total.mean, total.squares
        for part in parts[1:]:
            both = np.maximum(count + part.number, 1)
            apart = part.mean - mean
            squares = squares + part.squares + apart**2 * (count * part.number / both)
            mean = mean + apart * (part.number / both)
            count = count + part.number
        points = np.concatenate([part.points for part in parts], 1)
        weights = np.concatenate([part.weights for part in parts], 1)
        order = np.argsort(points, 1, kind="stable")
        fewer = _fewer(
            np.take_along_axis(points, order, 1),
            np.take_along_axis(weights, order, 1),
        )
        return cls(
            count,
            np.sum([part.missing for part in parts], 0),
            mean,
            squares,
            np.min([part.least for part in parts], 0),
            np.max([part.most for part in parts], 0),
            *fewer,
        )

    def quantiles(self, fraction: float) -> Floats:
        """The value below which this fraction of the finite ones lies, by linear interpolation, float64[columns]."""
        return np.array(
            [self._quantile(fraction, column) for column in range(len(self.number))]
        )

    def _quantile(self, fraction: float, column: int) -> float:
        count = int(self.number[column])
        if not count:
            return float("nan")
        stands = self.weights[column] > 0
        weights = self.weights[column, stands]
        # the mean rank of those that a value stands for
        ranks = np.cumsum(weights) - (weights + 1) / 2
        ranks = np.concatenate([[0.0], ranks, [count - 1.0]])
        values = np.concatenate(
            [[self.least[column]], self.points[column, stands], [self.most[column]]]
        )
        return float(np.interp(fraction * (count - 1), ranks, values))


def most_points(columns: int) -> int:
    """Number of points by which quantiles of this many columns are known."""
    return max(_LEAST_POINTS, min(_MOST_POINTS, _POINTS_TOGETHER // max(1, columns)))


def _fewer(points: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Ascending points and their weights, as so many that each stands for an equal number."""
    columns, found = points.shape
    most = most_points(columns)
    if found <= most:
        return points, weights
    fewer = np.empty((columns, most))
    shares = np.empty((columns, most))
    for column in range(columns):
        reached = np.cumsum(weights[column])
        share = reached[-1] / most
        places = np.searchsorted(reached, share * (np.arange(most) + 0.5))
        fewer[column] = points[column, places]
        shares[column] = share
    return fewer, shares
