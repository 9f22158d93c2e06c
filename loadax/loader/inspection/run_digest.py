"""Digest of the rows that a run reads at each step and position, to compare two runs.

Every (step, position, row, epoch) has a 128-bit hash, and the digest is their sum, whose halves are added separately.
The hashes protect against mistakes, not against forgery.
"""

from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from loadax import seeds
from loadax.loader.options import without
from loadax.plan.steps import Steps
from loadax.protocols import Integers

AT_ONCE = 1 << 18  # visits to hash at a time


class DigestedSteps(NamedTuple):
    """Consecutive steps of one plan.

    Args:
        plan: The plan.
        steps: Its steps.
        quarantine: Rows that count as padding, sorted int64[n].
        first: Step of the run that is step 0 of the plan.
    """

    plan: Steps
    steps: range
    quarantine: Integers
    first: int = 0


def digest_of(digested: Iterable[DigestedSteps]) -> str:
    """Digest of steps as 32 hexadecimal digits."""
    halves = [0, 0]
    for plan, steps, quarantine, offset in digested:
        for begin, end in pairwise([*plan.changes(steps), steps.stop]):
            positions = np.arange(plan.segment_of(begin)[0].batch_size)
            at_once = max(1, AT_ONCE // len(positions))
            for first in range(begin, end, at_once):
                some = range(first, min(first + at_once, end))
                visits = without(plan.visits_of(some, positions), quarantine)
                step = np.repeat(
                    np.arange(some.start, some.stop) + offset, len(positions)
                )
                position = np.tile(positions, len(some))
                for half in (0, 1):
                    hashes = seeds.derive(
                        0, "visit", half, step, position, visits.rows, visits.epochs
                    )
                    halves[half] += int(hashes[visits.rows >= 0].sum())
    return "".join(f"{half % (1 << 64):016x}" for half in halves)
