"""Patience: a wait that is logged again and again, and has an end."""

from time import perf_counter
from typing import final

from loadax.core.log import log
from loadax.errors import StorageError
from loadax.redaction import redact

NOTICE = 5.0  # seconds of waiting for storage before the first log line


@final
class Patience:
    """A wait that is to be logged after some seconds, and again after twice as long, and that has an end.

    Args:
        notice: Seconds of waiting after which to log.
        limit: Seconds of waiting after which to give up.
        since: Time of `perf_counter` at which the wait began. None: now.
    """

    def __init__(self, notice: float, limit: float, since: float | None = None):
        self._next = notice
        self._limit = limit
        # When the wait began.
        if since is None:
            self.since = perf_counter()
        else:
            self.since = since

    @property
    def waited(self) -> float:
        """Seconds of waiting so far."""
        return perf_counter() - self.since

    @property
    def rest(self) -> float:
        """Seconds until there is something to log, or the end."""
        return max(0.0, min(self._next, self._limit) - self.waited)

    @property
    def over(self) -> bool:
        """Whether to give up."""
        return self.waited >= self._limit

    def due(self) -> bool:
        """Whether to log now. The next time is after twice as long."""
        waited = self.waited
        due = waited >= self._next
        while self._next <= waited:
            self._next *= 2
        return due

    def check_storage(self, name: str) -> None:
        """Logs that storage does not answer, when it is time.

        Args:
            name: What is waited for, with which a message begins.

        Raises:
            StorageError: At the end.
        """
        if self.over:
            raise StorageError(
                f"{redact(name)}: no answer after {self.waited:.0f} s; is the store "
                "reachable?"
            )
        if self.due():
            log.warning(
                "%s: no answer for %.0f s, still waiting", redact(name), self.waited
            )
