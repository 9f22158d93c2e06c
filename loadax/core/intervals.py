"""Sets of integers as ranges."""

from collections.abc import Iterable

from loadax.protocols import Interval


def merge(intervals: Iterable[Interval]) -> tuple[Interval, ...]:
    """Merges ranges that overlap or touch, and sorts them; leaves out empty ones.

    Examples:
        >>> from loadax.core.intervals import merge
        >>> merge([(4, 6), (0, 2), (2, 3), (5, 8), (9, 9)])
        ((0, 3), (4, 8))
    """
    merged: list[Interval] = []
    for start, stop in sorted(
        interval for interval in intervals if interval[0] < interval[1]
    ):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(stop, merged[-1][1])
        else:
            merged.append((start, stop))
    return tuple(merged)
