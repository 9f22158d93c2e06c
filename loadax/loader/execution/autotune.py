"""Autotunes the number of active workers while the consumer waits. Affects speed only."""

from typing import final

_TRIAL = 0.1  # seconds, at least, that a number of workers is judged by
_TRIAL_STEPS = 6  # and batches
_GAIN = 1.1  # times the batches a second that more workers must bring, to stay
_FIRST_PAUSE, _LONGEST_PAUSE = 2.0, 120.0  # seconds until more are tried again, where they were of no use


@final
class WorkerAutotuner:
    """Begins with few workers and takes on more while the consumer waits for rows and more of them serve it faster.

    More may be no use, or do harm: threads whose maps hold the interpreter only take it from each other, and a disk
    that is busy is no faster for being asked twice as often. What was of no use is tried again later, after longer and
    longer pauses.

    Args:
        least: workers to begin with.
        most: there may be; as many as `least` where the user has said how many.
        settling: seconds until new ones do their share.
    """

    def __init__(self, least: int, most: int, settling: float = 0.0):
        self._settling = settling
        self.size = min(least, most)
        """How many may be at work."""
        self.tried = self.size
        """How many have been at most."""
        self._most = most
        self._before: tuple[int, float] | None = None  # size and batches a second before the trial that is under way
        self._pause, self._again = _FIRST_PAUSE, 0.0
        self._began: float | None = None  # the time over which speed is measured now; it may lie ahead
        self._steps = 0
        self._longest = 0.0  # absence of the consumer in that time

    def on_batch(self, now: float, starving: bool, away: float = 0.0) -> bool:
        """The consumer was handed a batch. Returns whether more workers are to be at work.

        Args:
            now: when, in seconds.
            starving: whether it mostly waits.
            away: seconds that it had stayed away before it came for this one.
        """
        if self.size == self._most and self._before is None:
            return False
        speed = self._speed(now, away)
        if speed is None:
            return False
        if self._before is not None:
            self._judge(now, speed)
            return False
        grows = starving and now >= self._again
        if grows:
            self._before = (self.size, speed)
            self.size = min(2 * self.size, self._most)
            self.tried = max(self.tried, self.size)
            self._began = now + self._settling
        return grows

    def _speed(self, now: float, away: float) -> float | None:
        """Batches a second, when that has been measured for long enough; then the next measurement begins."""
        if self._began is None:
            self._began = now
        if now <= self._began:
            return None
        self._steps += 1
        self._longest = max(self._longest, away)
        seconds = now - self._began
        if seconds < _TRIAL or self._steps < _TRIAL_STEPS:
            return None
        # An evaluation or a checkpoint in between says nothing about the workers.
        speed = None if self._longest > seconds / 2 else self._steps / seconds
        self._began, self._steps, self._longest = now, 0, 0.0
        return speed

    def _judge(self, now: float, speed: float) -> None:
        assert self._before is not None
        size, speed_before = self._before
        self._before = None
        if speed >= _GAIN * speed_before:
            self._pause = _FIRST_PAUSE
            return
        self.size = size
        self._again = now + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
