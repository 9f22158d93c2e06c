"""RunHosts: what the hosts of a run tell each other, through the coordination service's key-value store.

No device takes part, and no batch waits, except the first one for the other hosts' first records, for a limited time.
"""

import json
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import final

from jax.errors import JaxRuntimeError

from loadax.errors import HostError
from loadax.loader.metrics.stats import Stats
from loadax.loader.watch.agreement import FIRST_WAIT, Agreement
from loadax.loader.watch.process_exit import GRACE, TICK, end_process, ended_text, exit_limit, process_exit
from loadax.loader.watch.status import SILENT, HostStatus, Neighbours, publish, silent_text, slowest_text, statuses
from loadax.sharding.key_value import KeyValueStore

_FIRST_TICKS = 0.005, 0.1  # seconds between the first two looks at the store, and at most while a batch waits for them
_STATUS = 5.0  # seconds between two statuses
_DIFFERING = "differing"

# Set when hosts were late once: later runs of this process don't wait for them.
_late_before = threading.Event()

_log = logging.getLogger("loadax")


@final
class RunHosts:
    """This process's part in the exchange of a run's hosts. `check` runs on one thread.

    Args:
        keys: Keys of this run, the same on all hosts.
        process: Index of this process.
        processes: All processes of the run, ascending.
        agreement: Comparison of the records.
        progress: Function that returns the next step and the statistics.
        fail: Ends this run with an error.
        forget: Function for the first process to call last: deletes keys of closed runs.
        exits: Function that returns the processes that have exited, as `exits` of `process_exit`.
        abort_after: Seconds from the end of another host on after which this process ends, if its training thread has
            not asked for a batch: it is in a collective, with which nothing else can end. None: only if the other
            process exits.
    """

    def __init__(
        self,
        keys: KeyValueStore,
        process: int,
        processes: tuple[int, ...],
        agreement: Agreement,
        progress: Callable[[], tuple[int, Stats]],
        fail: Callable[[BaseException], None],
        forget: Callable[[], None],
        exits: Callable[[], Mapping[int, str]],
        abort_after: float | None,
    ):
        self._keys, self._process, self._processes = keys, process, processes
        self._abort_after = abort_after
        self._agreement, self._progress, self._fail, self._exits = agreement, progress, fail, exits
        self._forget = forget
        self._neighbours = Neighbours(keys, process, processes)
        self._delay, self._count = _FIRST_TICKS[0], 0
        # `_reached`: when the coordinator has answered last; `_warned`: whether it was told that it does not.
        self._began = self._now = self._next_status = self._reached = perf_counter()
        self._warned = False
        self._received: dict[str, str] = {}
        self._to_tell: deque[tuple[bool, str]] = deque()
        self.error: HostError | None = None
        """The error that ends this run, because of another host or a difference."""
        self._end: tuple[str, HostError] | None = None  # who has ended this run, and the error
        self._ended_at, self._grace, self._limit = 0.0, GRACE, float("inf")  # and when; seconds to the error, and exit
        self._first_words = threading.Event()  # set when the records are compared, or never will be
        process_exit.begin(lambda: progress()[0], abort_after)

    @property
    def name(self) -> str:
        """Prefix of what this host tells."""
        return f"process {self._process}: "

    def ended(self, step: int, error: BaseException) -> None:
        """Tells all other hosts that this one can't go on, so that they end too."""
        self.tell(ended_text(self._process, step, error), ends=True)
        process_exit.fail()

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

    def check(self, closing: bool, resumed: float) -> float:
        """Exchanges news with the other hosts; returns the seconds until the next time.

        Args:
            closing: Whether this is the last time.
            resumed: Time at which this process was resumed last. While it was stopped, it could not hear the others.
        """
        self._now = perf_counter()
        self._reached, self._ended_at = max(self._reached, resumed), max(self._ended_at, resumed)
        step, due = self._progress()[0], self._now >= self._next_status
        try:
            self._send(closing, due)
            if not closing:
                self._agreement.check(step, self._now, self._tell_difference)
            self._receive()
            if not closing:
                self._look_for_exits()
                found = self._neighbours.check(step, self._now, resumed) if due and self._end is None else {}
                for process, text in found.items():
                    self._tell_all(f"about {process}", text, False)
            else:
                self._agreement.close()
                if self._process == self._processes[0]:
                    self._forget()
        except JaxRuntimeError as error:
            self._first_words.set()
            if not closing and not self._warned and self._now - self._reached >= SILENT:
                self._warned = True
                text = silent_text("process 0, which runs the coordinator,", self._now - self._reached)
                _log.warning("process %d is at step %d: %s (%s)", self._process, step, text, error)
            self._delay = TICK
        else:
            self._reached, self._warned = self._now, False
            first = not self._first_words.is_set() and self._now - self._began < FIRST_WAIT
            self._delay = min(_FIRST_TICKS[1] if first else TICK, 1.5 * self._delay)
        if not closing:
            self._end_if_due()
        return self._delay

    def slowest(self) -> str:
        """A clause about the host that waits longest for data."""
        try:
            self._publish_status(False)
            return slowest_text(statuses(self._keys))
        except JaxRuntimeError as error:
            return f"the other hosts can't be reached: {error}"

    def _send(self, closing: bool, due: bool) -> None:
        while self._to_tell:
            ends, text = self._to_tell[0]
            self._tell_all(str(self._process), text, ends)
            self._to_tell.popleft()
        if closing or due:
            self._next_status = self._now + _STATUS
            self._publish_status(closing)

    def _tell_all(self, key: str, text: str, ends: bool) -> None:
        self._keys.set(f"told/{key}", json.dumps([ends, text]))

    def _tell_difference(self, text: str) -> None:
        self._tell_all(_DIFFERING, text, True)

    def _publish_status(self, closing: bool) -> None:
        step, stats = self._progress()
        self._count += 1
        publish(self._keys, self._process, HostStatus(step, stats.waited, stats.trained, self._count, closing))

    def _receive(self) -> None:
        """Logs news. Also at the end: a collective may have failed because of what another host tells."""
        for sender, news in self._keys.list("told").items():
            if self._received.get(sender) != news and sender != str(self._process):
                self._received[sender] = news
                ends, text = json.loads(news)
                _log.log(logging.ERROR if ends else logging.WARNING, "%s", text)
                if ends:
                    self._end_with(sender, text)

    def _look_for_exits(self) -> None:
        """Notices processes that have exited after an error."""
        for process, text in self._exits().items():
            if text and process != self._process and process in self._processes and self._end is None:
                _log.error("%s", text)
                self._end_with(str(process), text)
            if self._end is not None and (text or self._end[0] == str(process)):
                self._limit = min(self._limit, self._now - self._ended_at + exit_limit(self._abort_after))

    def _end_with(self, sender: str, text: str) -> None:
        """Ends this run in some seconds, because of another host."""
        if self._end is None:
            self._end, self._ended_at = (sender, HostError(text)), self._now
            self._grace = 0.0 if sender == _DIFFERING else GRACE
            self._limit = float("inf") if self._abort_after is None else max(self._abort_after, 2 * GRACE)

    def _end_if_due(self) -> None:
        if self._end is not None:
            waited, error = self._now - self._ended_at, self._end[1]
            if self.error is None and waited >= self._grace:
                self.error = error
                self._fail(error)
            if waited >= self._limit:
                why = f"its training thread has not asked for a batch within {waited:.0f} s of this error"
                text = "process %d ends without cleaning up: %s, so it waits for the other host: %s"
                _log.critical(text, self._process, why, error)
                end_process()
        if self._agreement.agreed or self.error is not None:
            self._first_words.set()
