"""Budget: how many requests of a process, and how many of their bytes, are in flight.

The numbers adapt to what is answered, by times that are passed in, so that `tests/files/test_budget.py` can prove in a
simulated world that they settle.
"""

from math import inf
from typing import final

_FIRST = 64  # requests in flight at first: a step of 64 scattered rows then takes one round trip
_MOST = 256
_FEWEST = 4
_BYTES = 128 << 20  # in flight: 10 Gb/s for 0.1 s
_PERIOD = 0.25  # seconds over which a throughput is measured
# Growth of the number of requests in flight, to try whether more of them are faster: at first, where a gain stands out
# of the noise of a period, and once a growth did not pay.
_FIRST_GROWTH = 2.0
_GROWTH = 1.25
# Share of that growth by which the throughput must grow, to go on.
_GAIN = 0.3
_REST = 8  # periods after which growth that did not pay is tried again: noise may have hidden its gain
# What a request costs a server, in bytes that it could have sent instead.
_REQUEST = 64 << 10


@final
class Budget:
    """Requests and bytes that may be in flight.

    The number of requests begins with 64, and grows up to 256 while that raises the throughput; a timeout lowers it.

    Args:
        now: Time in seconds, of the clock of all other calls.
    """

    def __init__(self, now: float):
        self.width = float(_FIRST)
        self.in_flight = 0
        self.bytes_in_flight = 0
        self._measured_since = now
        self._work = 0
        self._was_full = False
        self._before: tuple[float, float] | None = None  # width and throughput
        self._growth = _FIRST_GROWTH
        # The first period has the latency of the first answers in it, in which none came.
        self._resting = 1
        self._lowered = -inf  # when the number was lowered last

    def allows(self, size: int) -> bool:
        """Whether a request of `size` bytes may be sent now."""
        if self.in_flight < int(self.width) and (
            not self.in_flight or self.bytes_in_flight + size <= _BYTES
        ):
            return True
        self._was_full = True
        return False

    def sent(self, size: int) -> None:
        """Counts a request that was sent."""
        self.in_flight += 1
        self.bytes_in_flight += size

    def ended(self, size: int) -> None:
        """Counts a request that is not in flight any more, whatever became of it."""
        self.in_flight -= 1
        self.bytes_in_flight -= size

    def answered(self, now: float, sent: float, size: int) -> None:
        """Learns from an answer of `size` bytes to a request that was sent at a time."""
        self._work += size + _REQUEST
        if now - self._measured_since >= max(_PERIOD, 2 * (now - sent)):
            self._measure(now)

    def timed_out(self, now: float, sent: float) -> None:
        """Learns from a request that was not answered in time."""
        if sent > self._lowered:
            self._lowered = now
            self.width = max(_FEWEST, 0.7 * self.width)
            self._before = None

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
                if self._growth == _GROWTH:
                    self._resting = _REST
                self._growth = _GROWTH
                return
        self._before = (self.width, throughput)
        self.width = min(_MOST, self._growth * self.width)
