"""Simulates a run on all of its hosts and checks that each row is read by exactly the hosts that hold it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from loadax.core.formatting import count_text
from loadax.errors import ConformanceError
from loadax.loader.assembly.host_shard import HostShard
from loadax.loader.inspection.all_hosts import AllHosts
from loadax.loader.inspection.chunk_reads import spaced
from loadax.plan.steps import Steps
from loadax.protocols import Integers

_MOST_ROWS = 1 << 22  # rows to check by default
_MOST_CALLS = 1 << 13  # shards to compute over all steps: a second or two
_FEW_STEPS = 16  # rather than check fewer steps, check a part of the shards per step


class PlanCheck(NamedTuple):
    """Summary of a successful check.

    Attributes:
        steps: Number of simulated steps.
        all_steps: Number of steps of the run; None: infinite.
        hosts: Number of hosts.
        shares: Number of different sets of positions that hosts read.
        asked: Number of these sets checked per step, in rotation.
        copies: Smallest and largest number of hosts that read a row.
        visits: Number of occurrences of the most frequent row in these steps.
        later: First step and summary of each later phase of a chain.
    """

    steps: int
    all_steps: int | None
    hosts: int
    shares: int
    asked: int
    copies: tuple[int, int]
    visits: int
    later: tuple[tuple[int, "PlanCheck"], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The figures as a JSON-serialisable dict."""
        later = [[first, phase.to_dict()] for first, phase in self.later]
        return {**self._asdict(), "copies": list(self.copies), "later": later}

    def __str__(self) -> str:
        if self.all_steps is None:
            whole = "endless steps"
        else:
            whole = count_text(self.all_steps, "step")
        if self.steps == self.all_steps:
            steps = "all steps"
        else:
            steps = f"{self.steps:,} of {whole}"
        least, most = self.copies
        if least == most:
            several = f"the {count_text(least, 'host')}"
        else:
            several = f"the {least} to {most} hosts"
        if most == 1:
            hosts = "the one host that holds it"
        else:
            hosts = f"{several} that hold it"
        shares = count_text(self.shares, "different share") + (
            f", {self.asked:,} in turn" if self.asked < self.shares else ""
        )
        if self.visits == 1:
            once = "at most once"
        else:
            once = (
                f"at most {count_text(self.visits, 'time')}, over all of their epochs"
            )
        text = (
            f"checked {steps} on {count_text(self.hosts, 'host')} ({shares}): each row "
            f"is read by exactly {hosts}, and occurs in these steps {once}"
        )
        return text + "".join(
            f"\nfrom step {first:,} on\n{phase}" for first, phase in self.later
        )


def check_run(
    plan: Steps, shard_at: Callable[[int], HostShard], steps: int | None
) -> PlanCheck:
    """Simulates a run.

    Args:
        plan: Plan of the run.
        shard_at: One process's shard of a step.
        steps: Number of evenly spaced steps; None: all, or as many as take about a second.

    Raises:
        ConformanceError: If a host would read other rows than the batch has, or a row is read by more or fewer hosts
            than hold it; shows step and position.
    """
    segments = [(first, plan.segment_of(first)[0]) for first in plan.first_steps]
    rows: list[Integers] = []
    copies: list[Integers] = []
    # hosts, shares, and shares checked per step
    counts: list[tuple[int, int, int]] = []
    for first, segment in segments:
        hosts = AllHosts(shard_at(first), segment.batch_size)
        shares = shares_of(hosts)
        most = steps or max(
            1,
            min(
                _MOST_ROWS // hosts.batch_size,
                max(_FEW_STEPS, _MOST_CALLS // len(shares)),
            ),
        )
        chosen = spaced(plan.alike(first), -(-most // len(segments)))
        if steps:
            asked = len(shares)
        else:
            asked = min(len(shares), max(1, _MOST_CALLS // len(chosen)))
        for turn, step in enumerate(chosen):
            checked = [
                shares[(turn * asked + index) % len(shares)] for index in range(asked)
            ]
            rows.append(_check_step(plan, step, checked))
        copies.append(hosts.rows.copies)
        counts.append((len(hosts.processes), len(shares), asked))
    visited = np.concatenate(rows)
    met = np.concatenate(copies)
    visits = int(np.unique(visited[visited >= 0], return_counts=True)[1].max())
    return PlanCheck(
        len(rows),
        plan.num_steps,
        *max(counts),
        (int(met.min()), int(met.max())),
        visits,
    )


def shares_of(hosts: AllHosts) -> list[tuple[int, Integers]]:
    """The different sets of positions that hosts compute for themselves, each with its first host."""
    shares: dict[bytes, tuple[int, Integers]] = {}
    loaded = np.zeros(hosts.batch_size, np.int64)
    for host in range(len(hosts.processes)):
        positions = hosts.shard(host).positions
        loaded[positions] += 1
        shares.setdefault(positions.tobytes(), (host, positions))
    # Compare with the same figures, computed from the whole mesh.
    expected = hosts.rows.copies
    if not np.array_equal(loaded, expected):
        wrong = int(np.flatnonzero(loaded != expected)[0])
        raise ConformanceError(
            f"position {wrong} of the batch would be read by "
            f"{count_text(loaded[wrong], 'host')}, but {expected[wrong]} hold it: "
            f"this is a bug of loadax; report it with the mesh {hosts.one.mesh!r} "
            f"and the partition {hosts.one.specs!r}"
        )
    return list(shares.values())


def _check_step(
    plan: Steps, step: int, shares: list[tuple[int, Integers]]
) -> Integers:
    """Checks that the visits of each share equal the same part of the whole step; returns the step's rows."""
    whole = plan.visits(step)
    for host, positions in shares:
        part = plan.visits(step, positions)
        different = (part.rows != whole.rows[positions]) | (
            part.epochs != whole.epochs[positions]
        )
        if different.any():
            index = int(np.flatnonzero(different)[0])
            at = int(positions[index])
            raise ConformanceError(
                f"step {step}, position {at}: host {host} would read row "
                f"{part.rows[index]} (epoch {part.epochs[index]}), but row "
                f"{whole.rows[at]} (epoch {whole.epochs[at]}) is at this position of "
                "the whole batch; visits() of the order must compute each position "
                "independently"
            )
    return whole.rows
