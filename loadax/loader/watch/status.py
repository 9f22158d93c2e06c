"""HostStatus: step and waiting time of every host, for reports, and to notice a host that is silent or has left."""

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple, final

from loadax.core.formatting import percent_text
from loadax.sharding.key_value import KeyValueStore

SILENT = 20.0
"""Seconds without a new status after which a host counts as silent."""

_MOST = 8  # hosts that one host looks at


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
class Neighbours:
    """Watches the host before this one. The hosts form a ring, so each is watched, with few messages.

    While that one is silent or closed, also the one before it, and so on.

    Args:
        keys: Keys of the run.
        process: Index of this process.
        processes: All processes of the run, ascending.
    """

    def __init__(self, keys: KeyValueStore, process: int, processes: Sequence[int]):
        own = processes.index(process)
        self._keys, self._process = keys, process
        self._before = [*processes[own + 1 :], *processes[:own]][: -_MOST - 1 : -1]
        self._heard: dict[int, tuple[str, float]] = {}  # latest status, and since when it is that
        self._told: set[int] = set()

    def check(self, step: int, now: float, resumed: float) -> Mapping[int, str]:
        """Sentences about hosts that have become silent or left the run early, by process.

        Args:
            step: Next step of this host.
            now: Present time, in seconds.
            resumed: Time at which this process was resumed last.
        """
        found, here = {}, f"process {self._process} is at step {step}"
        for process in self._before:
            text = self._keys.get(f"status/{process}")
            if text is None:
                continue  # it has not begun
            if process not in self._heard or self._heard[process][0] != text:
                self._heard[process] = text, now
                self._told.discard(process)
            status, silent = HostStatus(*json.loads(text)), now - max(self._heard[process][1], resumed)
            if not status.closed and silent < SILENT:
                break
            if process not in self._told and (not status.closed or status.step < step):
                self._told.add(process)
                found[process] = (
                    f"{silent_text(f'process {process}', silent)}; it last reported step {status.step}; {here}"
                )
                if status.closed:
                    found[process] = (
                        f"process {process} closed its iterator at step {status.step}, and {here}: it can't go on "
                        "without the other; leave the loop at the same step on all processes"
                    )
        return found


def silent_text(who: str, seconds: float) -> str:
    """A clause about a host that does not report."""
    return (
        f"{who} has been silent for {seconds:.0f} s: killed, stopped, cut off, or in code that does not release the "
        "GIL; look there first, the others wait for it"
    )
