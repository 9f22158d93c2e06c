"""Budget: how many requests of a process, and how many of their bytes, are in flight, as the servers allow it.

The numbers adapt to what is answered, by times that are passed in, so that `tests/files/test_budget.py` can prove in a
simulated world that they settle.
"""

from collections import deque
from math import inf
from typing import final

_FIRST = 64  # requests in flight at first: a step of 64 scattered rows then takes one round trip
_MOST = 256
_FEWEST = 4
_BYTES = 128 << 20  # in flight: 10 Gb/s for 0.1 s
_PERIOD = 0.25  # seconds over which a throughput is measured
_GROWTH = 1.25  # of the number of requests in flight, to try whether more of them are faster
# Share of that growth by which the throughput must grow, to go on.
_GAIN = 0.3
_REST = 20  # periods after which growth that did not pay is tried again
# What a request costs a server, in bytes that it could have sent instead.
_REQUEST = 64 << 10

# Refused requests of the last second that are taken for the weather: this many, or this share.
_FEW = 3
_SHARE = 0.025
_MEMORY = 1.0  # seconds for which answers are remembered
_BELOW = 0.95  # of the rate that was answered, with which to go on after refusals
_STEP = 0.25  # seconds between two growths of the rate
_NEAR = 6
# Growth beyond that rate in one step, which doubles with each, up to the greatest.
_BEYOND = 0.005
_FARTHEST = 0.25
_HOLD = 0.05  # seconds in which nothing is sent after refusals, which double while all is refused
_LONGEST = 1.0
_SLOWEST = 4.0  # requests a second
_LEAST = 0.5  # of a rate, which one refusal leaves at least
_BURST = 0.03  # seconds of a rate that may be sent at once


@final
class Budget:
    """Requests and bytes that may be in flight, and the rate of requests once a server has refused some.

    - The number of requests begins with 64 and grows up to 256 while that raises the throughput; a timeout lowers it.
    - Requests a second are not limited before a server refuses more than a few (429, 503). Then they go on just below
      the rate that was answered, and grow quickly at first, slowly near the rate that was refused.

    Args:
        now: Time in seconds, of the clock of all other calls.
    """

    def __init__(self, now: float):
        self.width = float(_FIRST)
        self.pace = inf  # requests a second
        self.in_flight = 0
        self.bytes_in_flight = 0
        self._measured_since = now
        self._work = 0
        self._was_full = False
        self._before: tuple[float, float] | None = None  # width and throughput
        self._resting = 0
        self._answers: deque[tuple[float, bool]] = (
            deque()
        )  # time, and whether refused
        self._refusals = 0
        self._credit = 0.0  # requests that may be sent at once
        self._credited = now
        self._held = 0.0  # until when nothing is sent
        self._hold = _HOLD
        self._lowered = -inf  # when the rate was lowered last
        self._stepped = now
        self._refused_rate = inf
        self._beyond = _BEYOND
        self._was_paced = False

    def allows(self, now: float, size: int) -> bool:
        """Whether a request of `size` bytes may be sent now."""
        if self.in_flight >= int(self.width) or (
            self.in_flight and self.bytes_in_flight + size > _BYTES
        ):
            self._was_full = True
            return False
        if self.pace == inf:
            return True
        self._grow_pace(now)
        most = max(1.0, _BURST * self.pace)
        self._credit = min(most, self._credit + (now - self._credited) * self.pace)
        self._credited = now
        if now < self._held or self._credit < 1:
            self._was_paced = True
            return False
        return True

    def sent(self, size: int) -> None:
        """Counts a request that was sent."""
        self.in_flight += 1
        self.bytes_in_flight += size
        self._credit -= 1

    def ended(self, size: int) -> None:
        """Counts a request that is not in flight any more, whatever became of it."""
        self.in_flight -= 1
        self.bytes_in_flight -= size

    def answered(self, now: float, sent: float, size: int) -> None:
        """Learns from an answer of `size` bytes to a request that was sent at a time."""
        self._remember(now, is_refusal=False)
        if sent > self._lowered:
            self._hold = _HOLD
        self._work += size + _REQUEST
        if now - self._measured_since >= max(_PERIOD, 2 * (now - sent)):
            self._measure(now)

    def timed_out(self, now: float, sent: float) -> None:
        """Learns from a request that was not answered in time."""
        if sent > self._lowered:
            self._lowered = now
            self.width = max(_FEWEST, 0.7 * self.width)
            self._before = None

    def refused(self, now: float, sent: float) -> None:
        """Learns from a request that a server refused since there are too many."""
        self._remember(now, is_refusal=True)
        total = len(self._answers)
        if sent <= self._lowered or (self._refusals <= max(_FEW, _SHARE * total)):
            return
        answered = (total - self._refusals) / _MEMORY
        if self.pace < inf:
            self._refused_rate = self.pace
            answered = max(answered, _LEAST * self.pace)
        else:
            self._refused_rate = self.width / max(now - sent, _HOLD / 10)
        self.pace = max(_SLOWEST, _BELOW * min(self._refused_rate, answered))
        self._beyond = _BEYOND
        self._credit = 0.0
        self._credited = self._stepped = self._lowered = now
        self._held = now + self._hold
        self._hold = min(2 * self._hold, _LONGEST)

    def _remember(self, now: float, *, is_refusal: bool) -> None:
        self._answers.append((now, is_refusal))
        self._refusals += is_refusal
        while self._answers[0][0] < now - _MEMORY:
            self._refusals -= self._answers.popleft()[1]

    def _grow_pace(self, now: float) -> None:
        while now - self._stepped >= _STEP:
            self._stepped += _STEP
            if not self._was_paced:
                continue
            self._was_paced = False
            way = (self._refused_rate - self.pace) / _NEAR
            if way > _BEYOND * self.pace:
                self.pace += way
            else:
                self.pace *= 1 + self._beyond
                self._beyond = min(2 * self._beyond, _FARTHEST)

    def _measure(self, now: float) -> None:
        """Ends a period: tries more requests in flight, or goes back to fewer if they were not faster."""
        throughput = self._work / (now - self._measured_since)
        was_full = self._was_full
        self._measured_since = now
        self._work = 0
        self._was_full = False
        if not was_full:
            return
        if self._resting:
            self._resting -= 1
            return
        if self._before is not None:
            width, before = self._before
            grown = self.width / width - 1
            if throughput < before * (1 + _GAIN * grown):
                self.width = width
                self._before = None
                self._resting = _REST
                return
        self._before = (self.width, throughput)
        self.width = min(_MOST, _GROWTH * self.width)
