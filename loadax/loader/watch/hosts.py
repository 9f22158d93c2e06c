"""RunHosts: what the hosts of a run tell each other, through the coordination service's key-value store.

No device takes part, and no batch waits, except the first one for the other hosts' records, for a limited time.
"""

import json
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any, final

import numpy as np
from jax.sharding import Mesh

from loadax.core.context import Caller
from loadax.core.distributed import this_process
from loadax.core.key_value import (
    CoordinatorError,
    KeyValueStore,
    LoaderRuns,
    key_value_store,
)
from loadax.core.log import log
from loadax.errors import HostError
from loadax.loader.assembly.host_shard import HostShard
from loadax.loader.metrics.stats import Stats
from loadax.loader.order_hash import OrderHash
from loadax.loader.pipeline import BatchPipeline
from loadax.loader.watch.process_exit import (
    GRACE,
    TICK,
    end_process,
    ended_text,
    exit_limit,
    process_exit,
)
from loadax.loader.watch.record import (
    Record,
    contents,
    difference,
    processes_text,
    rows_of_steps,
    run_record,
)
from loadax.loader.watch.status import (
    SILENT,
    HostStatus,
    Neighbours,
    host_statuses,
    silent_text,
    slowest_text,
)
from loadax.sharding.mesh import grid_of

# Seconds that the first batch waits for the other hosts' records.
FIRST_WAIT = 5.0

# seconds between the first two looks at the store, and at most while a batch waits for them
_FIRST_TICKS = 0.005, 0.1
_STATUS = 5.0  # seconds between two statuses
_VERDICT = "verdict"  # who tells how the records differ
# Who tells of weights: no other host may pass the step in this run.
_WEIGHTS = "weights"
# In place of the step: weights of this host were refused.
_REFUSED = -1

# Set when hosts were late once: later runs of this process don't wait for them.
_late_before = threading.Event()


@final
class RunHosts:
    """This process's part in the exchange of a run's hosts. `check` runs on one thread.

    Each host publishes its record. The leader, the first of the processes, compares those of all and tells the verdict:
    so each host sends a constant number of messages, however many hosts there are.

    Args:
        store: Keys of all runs.
        keys: Keys of this run, the same on all hosts.
        process: Index of this process.
        processes: All processes of the run, ascending.
        record: This run's record; empty until it is known.
        progress: Function that returns the next step and the statistics.
        fail: Ends this run with an error.
        abort_after: Seconds from the end of another host on after which this process ends, if its training thread has
            not asked for a batch: it is in a collective, with which nothing else can end. None: only if the other
            process exits.
        next_keys: Function that returns the keys of the loader's next run. None: there is none.
    """

    def __init__(
        self,
        store: KeyValueStore,
        keys: KeyValueStore,
        process: int,
        processes: Sequence[int],
        record: Sequence[Record],
        progress: Callable[[], tuple[int, Stats]],
        fail: Callable[[BaseException], None],
        abort_after: float | None,
        next_keys: Callable[[], KeyValueStore] | None = None,
    ):
        self._store = store
        self._next_keys = next_keys
        self._keys = keys
        self._process = process
        self._processes = processes
        self._record = record
        self._progress = progress
        self._fail = fail
        self._abort_after = abort_after
        self._leads = process == processes[0]
        self.name = f"process {process}: "  # prefix of what this host tells
        self._published = self._compared = self._late_named = False
        self._neighbours = Neighbours(keys, process, processes)
        self._delay = _FIRST_TICKS[0]
        self._count = 0
        # `_reached`: when the coordinator has answered last; `_warned`: whether it was told that it does not.
        self._began = self._now = self._next_status = self._reached = perf_counter()
        self._warned = False
        self._received: dict[str, str] = {}
        # sender, text, and whether it ends the runs of others; of weights, the step that ends them
        self._to_tell: deque[tuple[str, str, int]] = deque()
        # Step, sender and text of the weights that another host has set.
        self._weights: list[tuple[int, str, str]] = []
        # The error that ends this run, because of another host or a difference.
        self.error: HostError | None = None
        # who has ended this run, and the error
        self._end: tuple[str, HostError] | None = None
        # and when; seconds to the error, and exit
        self._ended_at = 0.0
        self._grace = GRACE
        self._limit = float("inf")
        # set when the records are compared, or never will be
        self._first_words = threading.Event()
        process_exit.begin(lambda: progress()[0], abort_after)

    def ended(self, step: int, error: BaseException) -> None:
        """Tells all other hosts that this one can't go on, so that they end too."""
        self.tell(ended_text(self._process, step, error), ends=True)
        process_exit.fail()

    def tell(self, text: str, ends: bool = False) -> None:
        """Has `check` tell all other hosts a sentence. `ends`: their runs end with it as an error."""
        self._to_tell.append((str(self._process), text, ends))

    def set_weights(self, step: int) -> None:
        """Tells all other hosts that this one has set weights from a step on, and left this run for another one."""
        text = (
            f"process {self._process} has set other weights from step {step} on, and "
            "this process has not; call set_weights() with the same weights at the "
            "same step on all processes"
        )
        self._to_tell.append((f"{_WEIGHTS}/{self._process}", text, step))

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
        self._reached, self._ended_at = (
            max(self._reached, resumed),
            max(self._ended_at, resumed),
        )
        step = self._progress()[0]
        try:
            self._exchange(step, closing, resumed)
        except CoordinatorError as error:
            self._first_words.set()
            if (
                not closing
                and not self._warned
                and self._now - self._reached >= SILENT
            ):
                self._warned = True
                text = silent_text(
                    "process 0, which runs the coordinator,",
                    self._now - self._reached,
                )
                log.warning(
                    "process %d is at step %d: %s (%s)",
                    self._process,
                    step,
                    text,
                    error,
                )
            self._delay = TICK
        else:
            self._reached = self._now
            self._warned = False
            first = (
                not self._first_words.is_set()
                and self._now - self._began < FIRST_WAIT
            )
            self._delay = min(_FIRST_TICKS[1] if first else TICK, 1.5 * self._delay)
        if not closing:
            self._end_if_due()
        return self._delay

    def slowest(self) -> tuple[str, list[list[float]]]:
        """A clause about the host that waits longest for data; each process, its next step, and the share it waits."""
        try:
            self._publish_status(False)
            statuses = host_statuses(self._keys.list("status"))
        except CoordinatorError as error:
            return f"the other hosts can't be reached: {error}", []
        waits = [
            [process, status.step, status.waited]
            for process, status in sorted(statuses.items())
        ]
        return slowest_text(statuses), waits

    def _exchange(self, step: int, closing: bool, resumed: float) -> None:
        self._send()
        due = self._now >= self._next_status
        if closing or due:
            self._next_status = self._now + _STATUS
            self._publish_status(closing)
        if not closing and not self._compared and self._record:
            self._compare()
        self._receive()
        for at, sender, text in self._weights:
            if step > at and self._end is None:
                log.error("%s", text)
                if not closing:
                    self._refuse(sender, at)
                self._end_with(sender, text)
        if closing:
            self._leave()
            return
        self._look_for_exits()
        if due and self._end is None:
            for process, text in self._neighbours.check(
                step, self._now, resumed
            ).items():
                self._to_tell.append((f"about {process}", text, False))
            self._send()

    def _refuse(self, sender: str, step: int) -> None:
        """Ends the next run of a host that has set weights, which would wait for this one there."""
        if step == _REFUSED or self._next_keys is None:
            return  # it has refused those of this one
        text = (
            f"process {sender.rpartition('/')[2]} has set other weights from step "
            f"{step} on, and process {self._process} has not; call set_weights() with "
            "the same weights at the same step on all processes"
        )
        process_exit.fail()  # an exit from here on ends that host where it waits
        keys = self._next_keys()
        keys.set(f"told/{_WEIGHTS}/{self._process}", json.dumps([_REFUSED, text]))

    def _send(self) -> None:
        while self._to_tell:
            key, text, ends = self._to_tell[0]
            self._keys.set(f"told/{key}", json.dumps([ends, text]))
            self._to_tell.popleft()

    def _publish_status(self, closing: bool) -> None:
        step, stats = self._progress()
        self._count += 1
        status = HostStatus(
            step,
            stats.waited / (stats.waited + stats.trained or 1.0),
            self._count,
            closing,
        )
        self._keys.set(f"status/{self._process}/latest", json.dumps(status))

    def _compare(self) -> None:
        """Publishes this host's record. The leader tells how all differ, once it has them; others name who is late."""
        if not self._published:
            self._keys.set(f"records/{self._process}", json.dumps(self._record[0]))
            self._published = True
        overdue = not self._late_named and self._now - self._began >= FIRST_WAIT
        if not self._leads and not overdue:
            return
        records = {
            int(process): json.loads(text)
            for process, text in self._keys.list("records").items()
            if text
        }
        if self._leads and len(records) == len(self._processes):
            self._tell_verdict(difference(records))
        elif overdue:
            self._late_named = True
            late = processes_text(
                sorted(set(self._processes) - set(records)) or [self._processes[0]]
            )
            text = (
                "%s: not there %g s after process %d has begun to iterate; it goes "
                "on, and compares their data with its own when they come. All "
                "processes must iterate over the same loaders in the same order"
            )
            log.warning(text, late, FIRST_WAIT, self._process)

    def _tell_verdict(self, text: str | None) -> None:
        self._to_tell.append((_VERDICT, text or "", text is not None))
        self._send()
        self._compared = True

    def _leave(self) -> None:
        """A run that is closed says nothing of runs that begin later. Nor do processes wait for a leader then."""
        if self._published and not self._compared:
            self._keys.set(f"records/{self._process}", "")
        if self._leads:
            if not self._compared:
                self._tell_verdict(None)
            self._keys.forget()

    def _receive(self) -> None:
        """Logs news. Also at the end: a collective may have failed because of what another host tells."""
        for sender, news in self._keys.list("told").items():
            if self._received.get(sender) != news and sender != str(self._process):
                self._received[sender] = news
                ends, text = json.loads(news)
                if sender.startswith(_WEIGHTS):
                    self._weights.append((ends, sender, text))
                    continue
                self._compared = self._compared or sender == _VERDICT
                if text:
                    (log.error if ends else log.warning)("%s", text)
                if ends:
                    self._end_with(sender, text)

    def _look_for_exits(self) -> None:
        """Notices processes that have exited after an error. The text is empty if it has not ended the program."""
        for name, text in self._store.list("exits").items():
            if (
                text
                and int(name) != self._process
                and int(name) in self._processes
                and self._end is None
            ):
                log.error("%s", text)
                self._end_with(name, text)
            ended_by = self._end[0].rpartition("/")[2] if self._end else ""
            if self._end is not None and (text or ended_by == name):
                self._limit = min(
                    self._limit,
                    self._now - self._ended_at + exit_limit(self._abort_after),
                )

    def _end_with(self, sender: str, text: str) -> None:
        """Ends this run in some seconds, because of another host."""
        if self._end is None:
            self._end = (sender, HostError(text))
            self._ended_at = self._now
            if sender == _VERDICT or sender.startswith(_WEIGHTS):
                self._grace = 0.0
            else:
                self._grace = GRACE
            if self._abort_after is None:
                self._limit = float("inf")
            else:
                self._limit = max(self._abort_after, 2 * GRACE)

    def _end_if_due(self) -> None:
        if self._end is not None:
            waited = self._now - self._ended_at
            error = self._end[1]
            if self.error is None and waited >= self._grace:
                self.error = error
                self._fail(error)
            if waited >= self._limit:
                why = (
                    "its training thread has not asked for a batch within "
                    f"{waited:.0f} s of this error"
                )
                text = (
                    "process %d ends without cleaning up: %s, so it waits for the "
                    "other host: %s"
                )
                log.critical(text, self._process, why, error)
                end_process()
        if self._compared or self.error is not None:
            self._first_words.set()


def run_hosts(
    runs: LoaderRuns,
    order: OrderHash,
    pipeline: BatchPipeline,
    mesh: Any,
    shard: HostShard,
    start: int,
    progress: Callable[[], tuple[int, Stats]],
    fail: Callable[[BaseException], None],
) -> RunHosts | None:
    """The exchange with the other hosts of a run; None if there are none.

    Args:
        runs: Names of the loader's runs.
        order: Hash of the loader's order.
        pipeline: Its pipeline.
        mesh: Mesh whose processes take part. A planned one, or none, has no processes.
        shard: This process's shard of the first batch.
        start: First step.
        progress: Function that returns the next step and the statistics.
        fail: Ends the run with an error.
    """
    store = key_value_store()
    if store is None or not isinstance(mesh, Mesh):
        return None
    process = this_process().index
    processes = np.unique(grid_of(mesh).owners).tolist()
    if len(processes) == 1 or process not in processes:
        return None
    options = pipeline.options
    record = run_record(pipeline, order, shard, start)
    found = list[Record]()

    def read() -> None:
        if options.streams is not None:  # whose rows are read once
            found.append(record)
            return
        rows = contents(pipeline.whole.dataset.reader, options.quarantine)
        found.append(
            record | rows | rows_of_steps(pipeline.plan, options.quarantine, start)
        )

    if options.num_workers > 1 or options.worker_type == "process":
        # Storage may hang, and a stalled batch is to be told meanwhile.
        threading.Thread(
            target=Caller().run, args=(read,), name="loadax-contents", daemon=True
        ).start()
    else:
        read()  # the source may be one that can't be read on another thread meanwhile
    keys = runs.next_keys(store, processes)
    return RunHosts(
        store,
        keys,
        process,
        processes,
        found,
        progress,
        fail,
        options.abort_after,
        partial(runs.next_keys, store, processes),
    )
