"""Distinct values of integers that are close together."""

import numpy as np

from loadax.protocols import Integers


def distinct(values: Integers) -> tuple[Integers, Integers]:
    """Distinct values, ascending, and the index of each value in them.

    `np.unique(values, return_inverse=True)`, but without sorting where values are close together.

    Args:
        values: int64[n], n at least 1.

    Examples:
        >>> import numpy as np
        >>> from loadax.core.distinct import distinct
        >>> distinct(np.array([7, 5, 7]))
        (array([5, 7]), array([1, 0, 1]))
    """
    first = int(values.min())
    last = int(values.max())
    if last - first > 4 * len(values):
        return np.unique(values, return_inverse=True)
    offsets = values - first
    present = np.zeros(last - first + 1, bool)
    present[offsets] = True
    return np.flatnonzero(present) + first, (np.cumsum(present) - 1)[offsets]
