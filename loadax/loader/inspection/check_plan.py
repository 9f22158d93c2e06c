"""Simulates a run on all of its hosts, and checks that every row of every step is read by the hosts that hold it."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, final

import numpy as np

from loadax.core.formatting import count_text
from loadax.errors import ConformanceError
from loadax.loader.assembly.host_shard import HostShard
from loadax.loader.inspection.chunk_reads import spaced
from loadax.loader.inspection.hosts import Everybody
from loadax.plan.batches import BatchPlan
from loadax.protocols import Integers

_MOST_ROWS = 1 << 22  # that are looked at by default,
_MOST_CALLS = 1 << 13  # and shares that are asked for, all steps together: a second or two
_FEW_STEPS = 16  # rather than fewer, only some of the shares are asked for in each step


@final
@dataclass(frozen=True)
class PlanCheck:
    """What was checked, and held.

    Args:
        steps: of the run that were played through.
        all_steps: that it has; None when it has no end.
        hosts: that took part.
        shares: different sets of positions that they read.
        asked: of these, in each step; in another step it is the turn of others.
        copies: the fewest and the most hosts that read a row: just those that hold it.
        visits: how often the row that stands in these steps most often does.
    """

    steps: int
    all_steps: int | None
    hosts: int
    shares: int
    asked: int
    copies: tuple[int, int]
    visits: int

    def to_dict(self) -> dict[str, Any]:
        """The figures, as JSON can hold them."""
        return {**asdict(self), "copies": list(self.copies)}

    def __str__(self) -> str:
        whole = "endless" if self.all_steps is None else f"{self.all_steps:,}"
        steps = "all" if self.steps == self.all_steps else f"{self.steps:,} of {whole}"
        hosts = (
            "the one host that holds it" if self.copies == (1, 1) else f"the {_range(self.copies)} hosts that hold it"
        )
        shares = count_text(self.shares, "different share") + (
            f", {self.asked:,} in turn" if self.asked < self.shares else ""
        )
        once = "at most once" if self.visits == 1 else f"up to {self.visits:,} times"
        return (
            f"checked {steps} steps on {count_text(self.hosts, 'host')} ({shares}): "
            f"each row is read by just {hosts}, and stands in these steps {once}"
        )


def _range(bounds: tuple[int, int]) -> str:
    return f"{bounds[0]}" if bounds[0] == bounds[1] else f"{bounds[0]} to {bounds[1]}"


def check_run(plan: BatchPlan, share_at: Callable[[int], HostShard], steps: int | None) -> PlanCheck:
    """Plays a run through.

    Args:
        plan: which rows a step has.
        share_at: one process's share of a step.
        steps: how many, evenly spread; None: all, or as many as take about a second.

    Raises:
        ConformanceError: when a host would read another row than stands in the batch, or a row is read by more or fewer
            hosts than hold it; shows where.
    """
    stretches = [(each.first, plan.stretch(each.first)[1] or each.first + each.epoch_steps) for each in plan.stretches]
    rows: list[Integers] = []
    copies: list[Integers] = []
    found: list[tuple[int, int, int]] = []  # hosts, shares, and how many of these were asked for
    for first, end in stretches:
        everybody = Everybody(share_at(first), plan.stretch(first)[0].batch_size)
        shares = _shares(everybody)
        most = steps or max(1, min(_MOST_ROWS // everybody.batch_size, max(_FEW_STEPS, _MOST_CALLS // len(shares))))
        chosen = spaced(range(first, end), -(-most // len(stretches)))
        asked = len(shares) if steps else min(len(shares), max(1, _MOST_CALLS // len(chosen)))
        for turn, step in enumerate(chosen):
            mine = [shares[(turn * asked + number) % len(shares)] for number in range(asked)]
            rows.append(_check_step(plan, step, mine))
        copies.append(everybody.rows.copies)
        found.append((len(everybody.processes), len(shares), asked))
    visited, met = np.concatenate(rows), np.concatenate(copies)
    visits = int(np.unique(visited[visited >= 0], return_counts=True)[1].max())
    return PlanCheck(len(rows), plan.num_steps, *max(found), (int(met.min()), int(met.max())), visits)


def _shares(everybody: Everybody) -> list[tuple[int, Integers]]:
    """The positions that hosts read, as each of them works it out by itself.

    Each with the first host of those that read the same.
    """
    shares: dict[bytes, tuple[int, Integers]] = {}
    loaded = np.zeros(everybody.batch_size, np.int64)
    for host in range(len(everybody.processes)):
        positions = everybody.share(host).positions
        loaded[positions] += 1
        shares.setdefault(positions.tobytes(), (host, positions))
    # Once more, from the mesh as a whole.
    expected = everybody.rows.copies
    if not np.array_equal(loaded, expected):
        wrong = int(np.flatnonzero(loaded != expected)[0])
        raise ConformanceError(
            f"position {wrong} of the batch would be read by {loaded[wrong]} hosts, and {expected[wrong]} hold it: "
            "this is a bug of loadax; "
            f"report it with the mesh {everybody.one.mesh!r} and the partition {everybody.one.specs!r}"
        )
    return list(shares.values())


def _check_step(plan: BatchPlan, step: int, shares: list[tuple[int, Integers]]) -> Integers:
    """The step's rows; each share, asked for alone, must be the same part of it."""
    whole = plan.visits(step)
    for host, positions in shares:
        mine = plan.visits(step, positions)
        different = (mine.rows != whole.rows[positions]) | (mine.epochs != whole.epochs[positions])
        if different.any():
            place = int(np.flatnonzero(different)[0])
            at = int(positions[place])
            raise ConformanceError(
                f"step {step}, position {at}: host {host} would read row {mine.rows[place]} (epoch "
                f"{mine.epochs[place]}), but row {whole.rows[at]} (epoch {whole.epochs[at]}) "
                "stands there in the whole batch; the order's visits() must answer for each position by itself"
            )
    return whole.rows
