"""Where windows are: the positions of their rows, within the groups that they don't leave."""

from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from loadax.plan.groups.finder import GroupFinder
from loadax.plan.groups.offsets import group_starts
from loadax.protocols import Integers
from loadax.sources.checks import check_rows


class Places(NamedTuple):
    """Places of windows.

    Args:
        begins: Position of the first row of each window, int64[n]; it may be before the window's group.
        bounds: First and last position of each window's group; None where no window leaves it.
    """

    begins: Integers
    bounds: tuple[Integers, Integers] | None

    def some(self, windows: Integers) -> "Places":
        """The places of some of the windows."""
        bounds = self.bounds
        if bounds is not None:
            bounds = bounds[0][windows], bounds[1][windows]
        return Places(self.begins[windows], bounds)

    def positions(self, offsets: Integers) -> Integers:
        """Positions of rows, int64[n, offsets]: outside of the group, that of its nearest row."""
        positions = self.begins[:, None] + offsets
        if self.bounds is not None:
            first, last = self.bounds
            np.clip(positions, first[:, None], last[:, None], positions)
        return positions

    def inside(self, offsets: Any) -> NDArray[np.bool_]:
        """Whether rows are in the window's group, bool[n, offsets]."""
        if self.bounds is None:
            return np.ones((len(self.begins), len(offsets)), bool)
        first, last = self.bounds
        listed = np.asarray(offsets)
        low = (first - self.begins)[:, None]
        high = (last - self.begins)[:, None]
        return (listed >= low) & (listed <= high)

    def all_inside(self, offsets: range) -> NDArray[np.bool_]:
        """Whether all rows are in the window's group, bool[n]."""
        ends = self.inside([offsets[0], offsets[-1]])
        return ends[:, 0] & ends[:, 1]


@final
class WindowPlaces:
    """The windows of groups, one group after the other.

    Args:
        starts: First positions of the groups, int64[groups] from 0, ascending.
        size: Number of positions.
        stride: Positions from one window of a group to the next.
        span: Positions of a window, which has to be in its group; None: each window in turn has a row of its group for
            its anchor, and its other rows may be outside.
        anchor: Positions from a window's begin to its anchor.
    """

    def __init__(
        self, starts: Integers, size: int, stride: int, span: int | None, anchor: int
    ):
        self._bounds = np.append(starts, size)
        self._stride = stride
        self._anchor = 0 if span is not None else anchor
        self._is_padded = span is None
        self.largest = int(np.diff(self._bounds).max(initial=0))
        if span is None:
            counts = -(-np.diff(self._bounds) // stride)
        else:
            counts = np.maximum((np.diff(self._bounds) - span) // stride + 1, 0)
        self._before = np.append(0, np.cumsum(counts))
        self._group_of = GroupFinder(self._before[1:])

    def __len__(self) -> int:
        return int(self._before[-1])

    @property
    def starts(self) -> Integers:
        """First positions of the groups."""
        return self._bounds[:-1]

    @property
    def num_groups(self) -> int:
        """Number of groups."""
        return len(self._before) - 1

    @property
    def first_windows(self) -> Integers:
        """First window of each group that has some."""
        return group_starts(self._before)

    def __call__(self, windows: Integers) -> Places:
        """The places of windows."""
        windows = check_rows(windows, len(self))
        groups = self._group_of(windows)
        first = self._bounds[groups]
        begins = first + (windows - self._before[groups]) * self._stride
        if not self._is_padded:
            return Places(begins, None)
        return Places(begins - self._anchor, (first, self._bounds[groups + 1] - 1))
