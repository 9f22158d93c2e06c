"""Delays: how long a server takes for an answer, and what follows: which request is late, which gaps are joined."""

from collections import deque
from math import inf
from typing import final

_KEPT = 256  # latencies that are remembered
_FIRST = 64  # answers before which nothing is said
_LATE = 0.99  # quantile of the latencies above which a request is late
# Where more than one in a hundred is a straggler, so many times what nine in ten take is late too.
_MOST = 0.9
_TIMES = 3.0
_SHORTEST = 0.05  # seconds, before which none is late
_EXTRA = 0.02  # share of requests that may be sent a second time
# Bytes from which the time between the head of an answer and its end tells the bandwidth.
_LARGE = 64 << 10
_SMOOTHING = 0.1
_PERIOD = 0.25  # seconds of a throughput
_FADING = 0.95  # of the greatest throughput, in each period

# Gaps that are joined before anything was measured, in bytes, and at least and at most.
CAUTIOUS = 16 << 10
NARROWEST = 512
WIDEST = 512 << 10


def gap_worth_reading(latency: float, bandwidth: float, width: float) -> int:
    """Returns the largest gap between two ranges of a file that takes less time to read than another request, in bytes.

    A request occupies one of `width` places for its latency; each place has that share of the bandwidth.

    Args:
        latency: Seconds from a request to its answer.
        bandwidth: Bytes a second, of all places.
        width: Requests in flight.

    Examples:
        >>> from loadax.files.delays import gap_worth_reading
        >>> gap_worth_reading(0.1, 64e6, 64)
        100000
        >>> gap_worth_reading(0.02, 5e6, 256)
        512
    """
    return int(min(WIDEST, max(NARROWEST, latency * bandwidth / width)))


@final
class Delays:
    """Delays of one server, measured by the answers of this process.

    A request takes its latency, and the time of its bytes.
    """

    def __init__(self) -> None:
        self._latencies: deque[float] = deque(maxlen=_KEPT)
        self._number = 0
        self._repeated = 0
        self._per_byte = 0.0  # seconds
        self._median = 0.0
        self._late = inf
        self._since = 0.0
        self._bytes = 0
        self._throughput = 0.0  # bytes a second, the greatest

    def answered(self, now: float, latency: float, seconds: float, size: int) -> None:
        """Learns from an answer.

        Args:
            now: Time in seconds.
            latency: Seconds until its first byte.
            seconds: Seconds until its last byte.
            size: Bytes of it.
        """
        self._number += 1
        self._latencies.append(latency)
        if size >= _LARGE:
            per_byte = (seconds - latency) / size
            self._per_byte += _SMOOTHING * (per_byte - self._per_byte)
        self._bytes += size
        if now - self._since >= _PERIOD:
            self._throughput = max(
                _FADING * self._throughput, self._bytes / (now - self._since)
            )
            self._since = now
            self._bytes = 0
        if self._number % _FIRST == 0:
            latencies = sorted(self._latencies)
            self._median = latencies[len(latencies) // 2]
            longest = latencies[int(_LATE * len(latencies))]
            most = latencies[int(_MOST * len(latencies))]
            self._late = max(_SHORTEST, min(longest, _TIMES * most))

    def is_late(self, seconds: float, size: int) -> bool:
        """Whether a request of `size` bytes, sent some seconds ago, takes longer than 99 % of its kind."""
        return seconds > self._late + 2 * self._per_byte * size

    def may_repeat(self) -> bool:
        """Whether a late request may be sent a second time; counts it. At most 2 % of all requests are."""
        allowed = self._repeated < _EXTRA * self._number
        self._repeated += allowed
        return allowed

    def gap(self, width: float) -> int:
        """Gap between two ranges, in bytes, up to which they are joined, with so many requests in flight."""
        if self._number < _FIRST or not self._throughput:
            return CAUTIOUS
        return gap_worth_reading(self._median, self._throughput, width)
