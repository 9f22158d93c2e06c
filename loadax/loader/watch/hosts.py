"""RunHosts: what the hosts of a run tell each other, through the coordination service's key-value store.

No device takes part, and no batch waits, except the first one for the other hosts' first records, for a limited time.
"""

import json
import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import final

from jax.errors import JaxRuntimeError

from loadax.errors import HostError
from loadax.loader.metrics.stats import Stats
from loadax.loader.watch.agreement import FIRST_WAIT, Agreement
from loadax.loader.watch.status import HostStatus, SilentHosts, publish, slowest_text, statuses
from loadax.sharding.key_value import KeyValueStore

_FIRST_TICK, _TICK = 0.005, 2.0  # seconds between two looks at the store: at first, and later
_STATUS = 5.0  # seconds between two statuses
_GRACE = 5.0  # seconds after which a run ends because another host has: this one may be about to raise the same error
_DIFFERING = "differing"

# Set when hosts were late once: later runs of this process don't wait for them.
_late_before = threading.Event()

_log = logging.getLogger("loadax")


def end_process() -> None:
    """Ends this process at once: exit handlers would wait for the other hosts too."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


@final
class RunHosts:
    """This process's part in the exchange of a run's hosts. `check` runs on one thread.

    Args:
        keys: Keys of this run, the same on all hosts.
        process: Index of this process.
        leads: Whether this process looks for silent hosts.
        agreement: Comparison of the records.
        progress: Function that returns the next step and the statistics.
        fail: Ends this run with an error.
        abort_after: Seconds from then on after which the process ends, if its training thread has not come for that
            error: it is in a collective, with which nothing else can end. None: never.
        clock: Function that returns seconds, ascending.
    """

    def __init__(
        self,
        keys: KeyValueStore,
        process: int,
        leads: bool,
        agreement: Agreement,
        progress: Callable[[], tuple[int, Stats]],
        fail: Callable[[BaseException], None],
        abort_after: float | None,
        clock: Callable[[], float],
    ):
        self._keys, self._process, self._leads = keys, process, leads
        self._abort_after = float("inf") if abort_after is None else abort_after
        self._agreement, self._progress, self._fail, self._clock = agreement, progress, fail, clock
        self._silent_hosts = SilentHosts()
        self._delay = _FIRST_TICK
        self._next_status, self._count = clock(), 0
        self._received: dict[str, str] = {}
        self._to_tell: deque[tuple[bool, str]] = deque()
        self.error: HostError | None = None
        """The error that ends this run, because of another host or a difference."""
        self._end: tuple[float, HostError] | None = None  # when to end this run, and why
        self._first_words = threading.Event()  # set when the records are compared, or never will be

    @property
    def name(self) -> str:
        """Prefix of what this host tells."""
        return f"process {self._process}: "

    def ended(self, step: int, error: BaseException) -> None:
        """Tells all other hosts that this one can't go on, so that they end too."""
        words = "; ".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])
        self.tell(
            f"process {self._process} ended before step {step} with {words}. The others can't go on without it: start "
            "all processes again from the last saved state",
            ends=True,
        )

    def tell(self, text: str, ends: bool = False) -> None:
        """Has `check` tell all other hosts a sentence. `ends`: their runs end with it as an error."""
        self._to_tell.append((ends, text))

    def wait(self) -> None:
        """Waits until the records of all hosts are compared, for a few seconds at most.

        Raises:
            HostError: If a host differs.
        """
        if not self._first_words.wait(0 if _late_before.is_set() else FIRST_WAIT):
            _late_before.set()
        if self.error is not None:
            raise self.error

    def check(self, closing: bool) -> float:
        """Exchanges news with the other hosts; returns the seconds until the next time.

        Args:
            closing: Whether this is the last time.
        """
        try:
            self._send(closing)
            if not closing:
                self._receive()
        except JaxRuntimeError as error:
            if not closing:
                _log.info("the hosts of this run can't reach the coordinator any more: %s", error)
            self._first_words.set()
            return float("inf")
        self._delay = min(_TICK, 1.5 * self._delay)
        return self._delay

    def slowest(self) -> str:
        """A clause about the host that waits longest for data."""
        try:
            self._publish_status(False)
            return slowest_text(statuses(self._keys))
        except JaxRuntimeError as error:
            return f"the other hosts can't be reached: {error}"

    def _send(self, closing: bool) -> None:
        while self._to_tell:
            ends, text = self._to_tell.popleft()
            self._tell_all(str(self._process), text, ends)
        if closing or self._clock() >= self._next_status:
            self._publish_status(closing)
            silent = self._silent_hosts.check(statuses(self._keys), self._clock()) if self._leads else None
            if silent is not None:
                self._tell_all("silent", silent, False)

    def _tell_all(self, key: str, text: str, ends: bool) -> None:
        self._keys.set(f"told/{key}", json.dumps([ends, text]))

    def _publish_status(self, closing: bool) -> None:
        step, stats = self._progress()
        self._next_status, self._count = self._clock() + _STATUS, self._count + 1
        publish(self._keys, self._process, HostStatus(step, stats.waited, stats.trained, self._count, closing))

    def _receive(self) -> None:
        self._agreement.check(self._progress()[0], self._clock(), lambda text: self._tell_all(_DIFFERING, text, True))
        for sender, news in self._keys.list("told").items():
            if self._received.get(sender) != news and sender != str(self._process):
                self._received[sender] = news
                ends, text = json.loads(news)
                _log.log(logging.ERROR if ends else logging.WARNING, "%s", text)
                if ends and self._end is None:
                    self._end = self._clock() + (0 if sender == _DIFFERING else _GRACE), HostError(text)
        if self._end is not None and self.error is None and self._clock() >= self._end[0]:
            self.error = self._end[1]
            self._fail(self.error)
        if self._end is not None and self._clock() >= self._end[0] + self._abort_after:
            _log.critical(
                "process %d ends without cleaning up: its training thread has not asked for a batch within "
                "abort_after=%g s of this error, so it waits for the other host: %s",
                self._process,
                self._abort_after,
                self._end[1],
            )
            end_process()
        if self._agreement.agreed or self.error is not None:
            self._first_words.set()
