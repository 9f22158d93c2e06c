"""StallCheck: tells what a batch waits for that does not come, again and again, and ends the run if asked to."""

from typing import final

from loadax.core.log import log
from loadax.core.patience import Patience
from loadax.errors import StallError
from loadax.loader.execution.scheduler import PrefetchScheduler
from loadax.loader.slots import Agreement, OtherHosts


@final
class StallCheck:
    """Looks at how long the consumer of a scheduler waits: for a batch, or for other processes that read a stream.

    Args:
        stall_after: Seconds of waiting after which to log, and again after twice as long. None: never.
        abort_after: Seconds of waiting after which the consumer gets a `StallError`. None: never.
    """

    def __init__(self, stall_after: float | None, abort_after: float | None):
        if stall_after is None:
            self._stall_after = float("inf")
        else:
            self._stall_after = stall_after
        if abort_after is None:
            self._abort_after = float("inf")
        else:
            self._abort_after = abort_after
        # The present scheduler.
        self.scheduler: PrefetchScheduler | None = None
        # The present agreement on the end of streams.
        self.agreement: Agreement | None = None
        # The other hosts, who are told too.
        self.hosts: OtherHosts | None = None
        # the one that was looked at last
        self._wait = Patience(self._stall_after, self._abort_after, float("-inf"))

    @property
    def needed(self) -> bool:
        """Whether there is a limit."""
        return min(self._stall_after, self._abort_after) < float("inf")

    def check(self, closing: bool, resumed: float) -> float:
        """Logs what is waited for if it is time; returns the seconds until the next look.

        Args:
            closing: Whether this is the last time.
            resumed: Time at which this process was resumed last. While it was stopped, no batch could come.
        """
        scheduler = self.scheduler
        if closing:
            began = None
        else:
            began = self._waiting_since()
        if scheduler is None or began is None:
            return min(self._stall_after, self._abort_after)
        since = max(began, resumed)
        if since != self._wait.since:
            self._wait = Patience(self._stall_after, self._abort_after, since)
        if self._wait.over:
            text = self._text(scheduler)
            if self._waiting_since() != began:
                return 0.0  # the batch has come while the stacks were read
            scheduler.abort(
                StallError(
                    f"{text}\nabort_after={self._abort_after:g}: pass a higher one "
                    "to wait longer"
                )
            )
            return self._abort_after
        if self._wait.due():
            text = self._text(scheduler)
            log.warning("%s", text)
            if self.hosts is not None:
                self.hosts.tell(text)
        return self._wait.rest

    def fail(self, error: BaseException) -> None:
        """Has the consumer get an error."""
        if self.scheduler is not None:
            self.scheduler.abort(error)

    def _waiting_since(self) -> float | None:
        if self.agreement is None:
            others = None
        else:
            others = self.agreement.waiting
        if others:
            return others[0]
        if self.scheduler is None:
            return None
        return self.scheduler.waiting_since()

    def _text(self, scheduler: PrefetchScheduler) -> str:
        step, text = scheduler.waiting_for()
        if self.agreement is not None and (others := self.agreement.waiting):
            step = others[1]
            text = self.agreement.waiting_text(others[1])
        if self.hosts is None:
            host = ""
        else:
            host = self.hosts.name
        return f"{host}step {step} has not come for {self._wait.waited:.0f} s: {text}"
