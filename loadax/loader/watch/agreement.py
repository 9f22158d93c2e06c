"""Agreement: compares what decides a run on all hosts, before its first step and every 1,000 steps."""

import json
import logging
from collections.abc import Callable, Mapping
from typing import final

from loadax.loader.watch.record import Record, difference, processes_text, with_contents
from loadax.sharding.key_value import KeyValueStore

FIRST_WAIT = 5.0
"""Seconds that the first batch waits for the other hosts' records."""

_ROUND = 1000  # steps between two samples of contents

_log = logging.getLogger("loadax")


@final
class Agreement:
    """Publishes this host's records, one a round. The leader, the first of the processes, compares those of all.

    So each host sends a constant number of messages, however many hosts there are.

    Args:
        keys: Keys of this run: `records/<round>/<process>`, and `agreed`.
        process: Index of this process.
        processes: All processes of the run's mesh, ascending.
        record: This run's record.
        contents: Function of a round: digests of some rows; None while they are read.
    """

    def __init__(
        self,
        keys: KeyValueStore,
        process: int,
        processes: tuple[int, ...],
        record: Record,
        contents: Callable[[int], Mapping[str, list[str]] | None],
    ):
        self._keys, self._process, self._processes = keys, process, processes
        self._record, self._contents = record, contents
        self._began: float | None = None  # time of the first check
        self._round = 0
        self._published = False
        self._warned = False

    def check(self, step: int, now: float, tell: Callable[[str], None]) -> None:
        """Publishes and compares what is due at this step.

        Args:
            step: Next step of this host.
            now: Present time, in seconds.
            tell: Tells all hosts how they differ.
        """
        self._began = now if self._began is None else self._began
        if not self._published:
            if self._round and step < self._record["first step"] + self._round * _ROUND:
                return
            contents = self._contents(self._round)
            if contents is None:
                return
            record = with_contents({} if self._round else self._record, contents)
            self._keys.set(f"records/{self._round}/{self._process}", json.dumps(record))
            self._published = True
        if self._process != self._processes[0]:
            complete = self._round > 0 or self._keys.get("agreed") is not None
        else:
            records = self._records()
            complete = len(records) == len(self._processes)
            if complete:
                if differing := difference(records):
                    tell(differing)
                self._keys.set("agreed", "")  # last, so that nobody goes on before it is told
                if self._round:
                    self._keys.delete(f"records/{self._round - 1}")
        if complete:
            self._round, self._published = self._round + 1, False
        elif self._round == 0 and not self._warned and now - self._began >= FIRST_WAIT:
            self._warned = True
            late = sorted(set(self._processes) - set(self._records())) or [self._processes[0]]
            _log.warning(
                "%s: not there %g s after process %d has begun to iterate; process %d goes on, and compares their "
                "data with its own when they come. All processes must iterate over the same loaders in the same order",
                processes_text(late),
                FIRST_WAIT,
                self._process,
                self._process,
            )

    def close(self) -> None:
        """Withdraws a record that was not compared: a run that is closed says nothing of runs that begin later.

        Nor do processes wait for a leader that is closed.
        """
        if self._round == 0 and self._process == self._processes[0]:
            self._keys.set("agreed", "")
        elif self._published and self._round == 0:
            self._keys.delete(f"records/0/{self._process}")

    @property
    def agreed(self) -> bool:
        """Whether all hosts have compared their records once."""
        return self._round > 0

    def _records(self) -> dict[int, Record]:
        found = self._keys.list(f"records/{self._round}")
        return {int(process): json.loads(text) for process, text in found.items()}
