"""Pace: how many requests a second a server is sent, once it has refused some.

Times are passed in, so that `tests/files/test_budget.py` can prove in a simulated world that the rate settles.
"""

from collections import deque
from math import inf, sqrt
from typing import final

# Refused requests of the last second that are not taken for a limit: this share, which has other reasons, and so many
# standard deviations of their number, or at least a few. Without the deviations, one in ten runs met a "limit" by
# chance in its first second.
_SHARE = 0.01
_DEVIATIONS = 4
_FEW = 5
# And where the server is known to have one: this share, or at least a few.
_LIMITED_SHARE = 0.025
_LIMITED_FEW = 3
_MEMORY = 1.0  # seconds for which answers are remembered
_BELOW = 0.95  # of the rate that was answered, with which to go on after refusals
_STEP = 0.25  # seconds between two growths of the rate
_NEAR = 8  # each growth goes this part of the way back to the rate that was refused
# Growth beyond that rate in one step, which grows with each, up to the greatest.
_BEYOND = 0.005
_FASTER = 1.5
_FARTHEST = 0.1
HOLD = 0.05  # seconds in which nothing is sent after refusals, which double while all is refused
LONGEST = 1.0
SLOWEST = 4.0  # requests a second
_LEAST = 0.5  # of a rate, which one refusal leaves at least
_BURST = 0.03  # seconds of a rate that may be sent at once


@final
class Pace:
    """The rate of requests to one server.

    It is not limited before the server refuses more (429, 503) than 1 % that have other reasons explain. Then requests
    go on just below the rate that was answered; that grows quickly at first, and slowly near the rate that was refused.

    Args:
        now: Time in seconds, of the clock of all other calls.
    """

    def __init__(self, now: float):
        self.rate = inf  # requests a second
        self._answers: deque[tuple[float, bool]] = (
            deque()
        )  # time, and whether refused
        self._refusals = 0
        self._credit = 0.0  # requests that may be sent at once
        self._credited = now
        self._paused_until = 0.0  # until when nothing is sent
        self._hold = HOLD
        self._lowered = -inf  # when the rate was lowered last
        self._stepped = now
        self._refused_rate = inf
        self._beyond = _BEYOND
        self._was_needed = False

    @property
    def is_free(self) -> bool:
        """Whether the server takes all that it is sent."""
        return self.rate == inf

    def allows(self, now: float) -> bool:
        """Whether a request may be sent now."""
        if self.is_free:
            return True
        self._grow(now)
        credit = self._credit + (now - self._credited) * self.rate
        self._credit = min(credit, max(1.0, _BURST * self.rate))
        self._credited = now
        if now < self._paused_until or self._credit < 1:
            self._was_needed = True
            return False
        return True

    def sent(self) -> None:
        """Counts a request that was sent."""
        self._credit -= 1

    def answered(self, now: float, sent: float) -> None:
        """Learns from an answer to a request that was sent at a time."""
        self._remember(now, is_refusal=False)
        if sent > self._lowered:
            self._hold = HOLD

    def refused(self, now: float, sent: float, in_flight: int) -> None:
        """Learns from a request that was refused since there are too many, of so many in flight."""
        self._remember(now, is_refusal=True)
        total = len(self._answers)
        if self.is_free:
            by_chance = _SHARE * total + _DEVIATIONS * sqrt(_SHARE * total)
            most = max(_FEW, by_chance)
        else:
            most = max(_LIMITED_FEW, _LIMITED_SHARE * total)
        if sent <= self._lowered or self._refusals <= most:
            return
        answered = (total - self._refusals) / _MEMORY
        if self.rate < inf:
            self._refused_rate = self.rate
            answered = max(answered, _LEAST * self.rate)
        else:
            self._refused_rate = in_flight / max(now - sent, HOLD / 10)
        self.rate = max(SLOWEST, _BELOW * min(self._refused_rate, answered))
        self._beyond = _BEYOND
        self._credit = 0.0
        self._credited = self._stepped = self._lowered = now
        self._paused_until = now + self._hold
        self._hold = min(2 * self._hold, LONGEST)

    def _remember(self, now: float, *, is_refusal: bool) -> None:
        self._answers.append((now, is_refusal))
        self._refusals += is_refusal
        while self._answers[0][0] < now - _MEMORY:
            self._refusals -= self._answers.popleft()[1]

    def _grow(self, now: float) -> None:
        while now - self._stepped >= _STEP:
            self._stepped += _STEP
            if not self._was_needed:
                continue
            self._was_needed = False
            way = (self._refused_rate - self.rate) / _NEAR
            if way > _BEYOND * self.rate:
                self.rate += way
            else:
                self.rate *= 1 + self._beyond
                self._beyond = min(_FASTER * self._beyond, _FARTHEST)
