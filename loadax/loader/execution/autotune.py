"""Autotunes the number of active workers while the consumer waits. Affects speed only."""

from typing import NamedTuple, final

_TRIAL = 0.1  # shortest measurement, in seconds
_TRIAL_STEPS = 6  # shortest measurement, in batches
# Speedup that additional workers must reach to be kept. Their processor time per second must grow as much, since a
# batch takes as much of it as before: otherwise they take turns at the GIL, and are faster for another reason.
_GAIN = 1.1
# Pieces per worker after which a trial ends early, if the workers get no more processor time than before it.
_TRIAL_PIECES = 8
# seconds until the next trial after a failed one
_FIRST_PAUSE = 2.0
_LONGEST_PAUSE = 120.0


class _Speed(NamedTuple):
    """Speed of a number of workers.

    Args:
        batches: Batches per second.
        processors: Processor time of the workers, in seconds per second.
    """

    batches: float
    processors: float


@final
class WorkerAutotuner:
    """Starts with few workers and adds more while the consumer waits for rows and throughput increases.

    More workers may not help, or do harm: threads whose maps hold the GIL compete for it, and a saturated disk does not
    get faster with more requests. A failed trial is repeated after increasing pauses.

    Args:
        least: Initial number of workers.
        most: Largest number of workers; equal to `least` if the user has set it.
        settling: Seconds until new workers run at full speed.
    """

    def __init__(self, least: int, most: int, settling: float = 0.0):
        self._settling = settling
        # Number of workers that may be active.
        self.size = min(least, most)
        # Largest number that was tried.
        self.tried = self.size
        self._most = most
        self._size_before = 0  # size before the current trial
        self._baseline: _Speed | None = None  # speed before it
        self._pause = _FIRST_PAUSE
        self._next_trial = 0.0
        # whether a measurement is over: the first batches are slower, since their memory is new
        self._warm = False
        # start of the current measurement; may be in the future
        self._began: float | None = None
        self._steps = 0
        # read in the current measurement, and their processor time in seconds
        self._pieces = 0
        self._processor = 0.0
        # longest absence of the consumer during the measurement, in seconds
        self._longest_absence = 0.0

    def worked(self, seconds: float) -> None:
        """Records that a worker has read a piece, and its processor time in seconds."""
        self._pieces += 1
        self._processor += seconds

    def on_batch(self, now: float, starving: bool, away: float = 0.0) -> bool:
        """Records that the consumer got a batch. Returns whether the number of workers has increased.

        Args:
            now: Time in seconds.
            starving: Whether the consumer waits for rows too long.
            away: Seconds between the consumer's last batch and its request for this one.
        """
        if self.size == self._most and self._baseline is None:
            return False
        speed = self._speed(now, away)
        if speed is None:
            return False
        if self._baseline is not None:
            self._evaluate(now, speed)
            return False
        grows = starving and now >= self._next_trial
        if grows:
            self._size_before = self.size
            self._baseline = speed
            self.size = min(2 * self.size, self._most)
            self.tried = max(self.tried, self.size)
            self._began = now + self._settling
        return grows

    def _speed(self, now: float, away: float) -> "_Speed | None":
        """The speed once measured for long enough, else None. Then starts the next measurement."""
        if self._began is None:
            self._began = now
        if now <= self._began:
            self._pieces = 0
            self._processor = 0.0
            return None
        self._steps += 1
        self._longest_absence = max(self._longest_absence, away)
        seconds = now - self._began
        if seconds < _TRIAL or (
            self._steps < _TRIAL_STEPS and not self._fails_early(seconds)
        ):
            return None
        # An evaluation or a checkpoint during the measurement says nothing about the workers.
        usable = self._warm and self._longest_absence <= seconds / 2
        speed = _Speed(self._steps / seconds, self._processor / seconds)
        self._warm = True
        self._began = now
        self._steps = 0
        self._longest_absence = 0.0
        self._pieces = 0
        self._processor = 0.0
        if usable:
            return speed
        return None

    def _fails_early(self, seconds: float) -> bool:
        """Whether a trial has failed before its last batch: workers finish pieces steadily, but batches in bursts."""
        if self._baseline is None or self._pieces < _TRIAL_PIECES * self.size:
            return False
        return self._processor < self._baseline.processors * seconds

    def _evaluate(self, now: float, speed: "_Speed") -> None:
        assert self._baseline is not None
        before = self._baseline
        self._baseline = None
        if (
            speed.batches >= _GAIN * before.batches
            and speed.processors >= _GAIN * before.processors
        ):
            self._pause = _FIRST_PAUSE
            return
        self.size = self._size_before
        self._next_trial = now + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
