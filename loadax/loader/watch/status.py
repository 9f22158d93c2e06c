"""HostStatus: step and waiting time of every host, for reports, and to notice a host that is silent."""

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple, final

from loadax.core.formatting import percent_text
from loadax.loader.watch.record import processes_text
from loadax.sharding.key_value import KeyValueStore

SILENT = 20.0
"""Seconds without a new status after which a host counts as silent."""


class HostStatus(NamedTuple):
    """What a host tells of its run, every few seconds.

    Attributes:
        step: Next step.
        waited: Seconds that training waited for data, from the third step on.
        trained: Seconds of training in the same steps.
        number: Number of this status.
        closed: Whether the iterator is closed.
    """

    step: int
    waited: float
    trained: float
    number: int
    closed: bool = False

    @property
    def waited_share(self) -> float:
        """Share of its time that training waited for data."""
        return self.waited / (self.waited + self.trained or 1.0)


def publish(keys: KeyValueStore, process: int, status: HostStatus) -> None:
    """Sets the status of a process."""
    keys.set(f"status/{process}", json.dumps(status))


def statuses(keys: KeyValueStore) -> dict[int, HostStatus]:
    """The latest status of every process that has one."""
    found = {int(process): HostStatus(*json.loads(text)) for process, text in keys.list("status").items()}
    return dict(sorted(found.items()))


def slowest_text(hosts: Mapping[int, HostStatus]) -> str:
    """A clause about the host that waits longest for data."""
    if len(hosts) < 2:
        return "no other host has told of its run yet"
    slowest = max(hosts, key=lambda process: hosts[process].waited_share)
    others = max(status.waited_share for process, status in hosts.items() if process != slowest)
    share, step = hosts[slowest].waited_share, hosts[slowest].step
    behind = max(status.step for status in hosts.values()) - step
    late = f", {behind} steps behind the first" if behind > 1 else ""
    return (
        f"of {len(hosts)} hosts, process {slowest} waits longest: {percent_text(share)} of the time, the others at "
        f"most {percent_text(others)}; it is at step {step}{late}"
    )


@final
class SilentHosts:
    """Notices hosts whose status no longer changes, by this host's clock."""

    def __init__(self) -> None:
        self._heard: dict[int, tuple[HostStatus, float]] = {}
        self._silent: set[int] = set()

    def check(self, hosts: Mapping[int, HostStatus], now: float) -> str | None:
        """A sentence about hosts that have become silent."""
        for process, status in hosts.items():
            if process not in self._heard or self._heard[process][0] != status:
                self._heard[process] = status, now
                self._silent.discard(process)
        found = [
            process
            for process, (status, heard) in self._heard.items()
            if not status.closed and now - heard >= SILENT and process not in self._silent
        ]
        self._silent.update(found)
        return self._text(found) if found else None

    def _text(self, processes: Sequence[int]) -> str:
        steps = ", ".join(str(self._heard[process][0].step) for process in processes)
        have = "has" if len(processes) == 1 else "have"
        return (
            f"{processes_text(list(processes))} {have} been silent for {SILENT:g} s, since step {steps}: killed, "
            "stopped, cut off, or in code that does not release the GIL; look there first, the others wait for it"
        )
