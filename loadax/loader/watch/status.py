"""HostStatus: step and waiting time of every host, for reports, and to notice a host that is silent or has left."""

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple, final

from loadax.core.formatting import count_text, percent_text
from loadax.core.key_value import KeyValueStore

# Seconds without a new status after which a host counts as silent.
SILENT = 20.0

_MOST = 8  # hosts that one host looks at


class HostStatus(NamedTuple):
    """Status of a host's run, told every few seconds.

    Attributes:
        step: Next step.
        waited: Share of its time that training waited for data, from the third step on.
        number: Number of this status.
        closed: Whether the iterator is closed.
    """

    step: int
    waited: float
    number: int
    closed: bool


def host_statuses(told: Mapping[str, str]) -> dict[int, HostStatus]:
    """Latest status of each process.

    Args:
        told: The statuses as JSON, by key.
    """
    return {
        int(key.partition("/")[0]): HostStatus(*json.loads(text))
        for key, text in told.items()
    }


def slowest_text(hosts: Mapping[int, HostStatus]) -> str:
    """A clause about the host that waits longest for data.

    Args:
        hosts: Latest status of each process.
    """
    if len(hosts) < 2:
        return "no other host has told of its run yet"
    *others, (process, slowest) = sorted(
        hosts.items(), key=lambda host: (host[1].waited, -host[0])
    )
    late = max(status.step for status in hosts.values()) - slowest.step
    return (
        f"of {count_text(len(hosts), 'host')}, process {process} waits longest: "
        f"{percent_text(slowest.waited)} of the time, the others at most "
        f"{percent_text(others[-1][1].waited)}; it is at step {slowest.step}"
        + (f", {count_text(late, 'step')} behind the first" if late > 1 else "")
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
        self._keys = keys
        self._process = process
        self._before = [*processes[own + 1 :], *processes[:own]][: -_MOST - 1 : -1]
        # latest status, and since when it is that
        self._heard: dict[int, tuple[str, float]] = {}
        self._told: set[int] = set()

    def check(self, step: int, now: float, resumed: float) -> Mapping[int, str]:
        """Sentences about hosts that have become silent or left the run early, by process.

        Args:
            step: Next step of this host.
            now: Present time, in seconds.
            resumed: Time at which this process was resumed last.
        """
        found = {}
        here = f"process {self._process} is at step {step}"
        for process in self._before:
            # alone: there may be thousands
            text = self._keys.list(f"status/{process}").get("latest")
            if text is None:
                continue  # it has not begun
            if process not in self._heard or self._heard[process][0] != text:
                self._heard[process] = text, now
                self._told.discard(process)
            status = HostStatus(*json.loads(text))
            silent = now - max(self._heard[process][1], resumed)
            if not status.closed and silent < SILENT:
                break
            if process in self._told or (status.closed and status.step >= step):
                continue
            self._told.add(process)
            found[process] = (
                f"{silent_text(f'process {process}', silent)}; it last reported step "
                f"{status.step}; {here}"
            )
            if status.closed:
                found[process] = (
                    f"process {process} closed its iterator at step {status.step}, "
                    f"and {here}: it can't go on without the other; leave the loop "
                    "at the same step on all processes"
                )
        return found


def silent_text(who: str, seconds: float) -> str:
    """A clause about a host that does not report."""
    return (
        f"{who} has been silent for {seconds:.0f} s: killed, stopped, cut off, or in "
        "code that does not release the GIL; look there first, the others wait for it"
    )
