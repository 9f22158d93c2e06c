"""Decides whether a worker places batches ahead or the consumer places its own. Affects speed only."""

import math
from time import perf_counter
from typing import final

_WEIGHT = 0.25  # weight of a new measurement in the running averages
# seconds
SHORTEST_BACKOFF = 0.0005
_LONGEST_BACKOFF = 0.05
# Tolerated share of waiting for rows: of a consumer that only takes batches, and of one that trains in between.
_TOLERATED_WAIT = 0.2
_TOLERATED_WAIT_IF_AWAY = 0.005
# Batches are placed ahead if the consumer is away for more than this multiple of the placing time.
_PLACE_AHEAD_RATIO = 2.0


@final
class ConsumerPace:
    """Compares the consumer's time between two batches with the time to place one.

    Handing a batch from thread to thread costs about as much as placing it. A consumer that returns immediately is
    served fastest if it places batches itself while workers read. For a consumer that trains in between, batches are
    placed ahead.

    Args:
        to_accelerator: Whether placing starts a copy to an accelerator. The copy should overlap with computation, so
            batches are then always placed ahead.
    """

    def __init__(self, to_accelerator: bool = False):
        self._to_accelerator = to_accelerator
        self._away = math.inf
        self._place = 0.0
        # share of its time that the consumer waited for rows
        self._starved = math.inf
        self._left: float | None = None

    @property
    def ahead(self) -> bool:
        """Whether workers should place: the consumer is away for long, on average or since its last batch."""
        if self._left is None:
            away = self._away
        else:
            away = max(self._away, perf_counter() - self._left)
        return self._to_accelerator or away > _PLACE_AHEAD_RATIO * self._place

    @property
    def starving(self) -> bool:
        """Whether the consumer waits so long that more workers may help, despite their contention."""
        return self._starved > (
            _TOLERATED_WAIT_IF_AWAY
            if self._away > _PLACE_AHEAD_RATIO * self._place
            else _TOLERATED_WAIT
        )

    def backoff(self, tries: int) -> float:
        """Seconds until an idle worker checks again whether a batch was taken, after `tries` failed checks."""
        if (
            self._away <= _PLACE_AHEAD_RATIO * self._place
            and not self._to_accelerator
        ):
            return _LONGEST_BACKOFF
        return min(
            max(self._away / 2, SHORTEST_BACKOFF) * 2.0 ** min(tries, 16),
            _LONGEST_BACKOFF,
        )

    def requested(self) -> None:
        """The consumer asked for a batch."""
        if self._left is not None:
            self._away = _average(self._away, perf_counter() - self._left)

    def delivered(self, starved: float) -> None:
        """The consumer got a batch after it waited `starved` seconds for rows."""
        now = perf_counter()
        if self._left is not None:
            self._starved = _average(
                self._starved, starved / max(now - self._left, 1e-9)
            )
        self._left = now

    def placed(self, seconds: float) -> None:
        """A batch was placed in `seconds`."""
        self._place = _average(self._place or math.inf, seconds)


def _average(old: float, new: float) -> float:
    if old == math.inf:
        return new
    return old + _WEIGHT * (new - old)
