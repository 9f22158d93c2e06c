"""Finds the groups of positions, faster than a binary search over many groups."""

from typing import final

import numpy as np

from loadax.protocols import Integers

_FEW = 16  # groups of a bucket that are looked at one after the other


@final
class GroupFinder:
    """Finds the group that each position is in.

    A table has the group of the first position of each bucket of equal size. There are about as many as groups.

    Args:
        ends: Position after the last one of each group, int64[groups], ascending. A group may be empty.
    """

    def __init__(self, ends: Integers):
        self.ends = ends
        size = int(ends[-1]) if len(ends) else 0
        self._bits = (size // max(1, len(ends))).bit_length()
        firsts = np.arange((size >> self._bits) + 1) << self._bits
        self._table = np.searchsorted(ends, firsts, side="right").astype(np.int32)

    def __call__(self, positions: Integers) -> Integers:
        """The group of each position, int64[n]."""
        groups = self._table[positions >> self._bits].astype(np.int64)
        for _ in range(_FEW):
            is_later = self.ends[groups] <= positions
            if not is_later.any():
                return groups
            groups += is_later
        return np.searchsorted(self.ends, positions, side="right")
