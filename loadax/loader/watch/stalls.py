"""StallCheck: tells what a batch waits for that does not come, again and again, and ends the run if asked to."""

import logging
from time import perf_counter
from typing import final

from loadax.errors import StallError
from loadax.loader.execution.scheduler import PrefetchScheduler
from loadax.loader.watch.hosts import RunHosts

_log = logging.getLogger("loadax")


@final
class StallCheck:
    """Looks at how long the consumer of a scheduler waits.

    Args:
        stall_after: Seconds of waiting after which to log, and again after twice as long. None: never.
        abort_after: Seconds of waiting after which the consumer gets a `StallError`. None: never.
    """

    def __init__(self, stall_after: float | None, abort_after: float | None):
        self._stall_after = float("inf") if stall_after is None else stall_after
        self._abort_after = float("inf") if abort_after is None else abort_after
        self.scheduler: PrefetchScheduler | None = None
        """The present scheduler."""
        self.hosts: RunHosts | None = None
        """The other hosts, who are told too."""
        self._since = 0.0  # start of the wait that was looked at last
        self._next = self._stall_after

    @property
    def needed(self) -> bool:
        """Whether there is a limit."""
        return min(self._stall_after, self._abort_after) < float("inf")

    def check(self, closing: bool) -> float:
        """Logs what is waited for if it is time; returns the seconds until the next look."""
        scheduler = self.scheduler
        since = None if closing or scheduler is None else scheduler.waiting_since()
        if scheduler is None or since is None:
            return min(self._stall_after, self._abort_after)
        if since != self._since:
            self._since, self._next = since, self._stall_after
        waited = perf_counter() - since
        if waited >= self._abort_after:
            text = self._text(scheduler, waited)
            scheduler.abort(StallError(f"{text}\nabort_after={self._abort_after:g}: pass a higher one to wait longer"))
            return self._abort_after
        if waited >= self._next:
            while self._next <= waited:
                self._next *= 2
            text = self._text(scheduler, waited)
            _log.warning("%s", text)
            if self.hosts is not None:
                self.hosts.tell(text)
        return min(self._next, self._abort_after) - waited

    def fail(self, error: BaseException) -> None:
        """Has the consumer get an error."""
        if self.scheduler is not None:
            self.scheduler.abort(error)

    def _text(self, scheduler: PrefetchScheduler, waited: float) -> str:
        step, text = scheduler.waiting_for()
        host = "" if self.hosts is None else self.hosts.name
        return f"{host}step {step} has not come for {waited:.0f} s: {text}"
