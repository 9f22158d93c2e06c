"""Decides whether a worker places batches ahead or the consumer places its own. Affects speed only."""

import math
from time import perf_counter
from typing import final

_WEIGHT = 0.25  # of the newest measurement in the running averages
_SHORTEST_BACKOFF, _LONGEST_BACKOFF = 0.0005, 0.05  # seconds
# shares of the time of a consumer that only takes batches, and of one that trains
_ENDURED, _ENDURED_IF_AWAY = 0.2, 0.005
_WORTH = 2.0  # a batch is placed ahead when the consumer stays away for so many times as long as placing takes


@final
class ConsumerPace:
    """How long the consumer stays away between two batches, beside how long it takes to place one.

    Handing a batch from thread to thread costs about as much as placing it. So a consumer that comes back at once is
    served fastest when it places for itself, while the workers read; for one that trains in between, batches are placed
    ahead.

    Args:
        to_accelerator: placing begins a copy to another device, which should be under way while that one computes: then
            a batch is placed as soon as it is there, whoever has to be woken for it.
    """

    def __init__(self, to_accelerator: bool = False):
        self._to_accelerator = to_accelerator
        self._away = math.inf
        self._place = 0.0
        self._starved = math.inf  # share of its time that the consumer waited for rows
        self._left: float | None = None

    @property
    def ahead(self) -> bool:
        """Whether workers should place: the consumer stays away long, or has done so since its last batch."""
        if self._to_accelerator:
            return True
        away = self._away if self._left is None else max(self._away, perf_counter() - self._left)
        return away > _WORTH * self._place

    @property
    def starving(self) -> bool:
        """Whether more workers should read: below that, they would take more time from each other than they save."""
        return self._starved > (_ENDURED_IF_AWAY if self._away > _WORTH * self._place else _ENDURED)

    def backoff(self, tries: int) -> float:
        """Seconds until a worker looks again whether a batch was taken, after so many tries in vain."""
        if self._away <= _WORTH * self._place and not self._to_accelerator:
            return _LONGEST_BACKOFF
        return min(max(self._away / 2, _SHORTEST_BACKOFF) * 2.0 ** min(tries, 16), _LONGEST_BACKOFF)

    def requested(self) -> None:
        """The consumer asks for a batch."""
        if self._left is not None:
            self._away = _average(self._away, perf_counter() - self._left)

    def delivered(self, starved: float) -> None:
        """The consumer has got one; it waited so many seconds for its rows."""
        now = perf_counter()
        if self._left is not None:
            self._starved = _average(self._starved, starved / max(now - self._left, 1e-9))
        self._left = now

    def placed(self, seconds: float) -> None:
        """A batch was placed in so many seconds."""
        self._place = _average(self._place or math.inf, seconds)


def _average(old: float, new: float) -> float:
    return new if old == math.inf else old + _WEIGHT * (new - old)
