"""Costs of the parts that a mesh cuts the rows of balanced steps into, with and without balance."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from loadax.loader.assembly.host_shard import HostShard
from loadax.plan.batches import BatchPlan
from loadax.protocols import Array, Visits


def part_costs(
    plan: BatchPlan, shard: HostShard, steps: Sequence[int]
) -> tuple[Array, Array]:
    """Costs of the parts of steps, float64[steps, parts]: without balance, and with it."""
    parts = max(
        (
            size // (box[0][1] - box[0][0])
            for (size, *_), (box, *_), *_ in shard.layouts
        ),
        default=1,
    )
    without, balanced = (
        np.array(
            [
                [
                    part.sum()
                    for part in np.array_split(_costs(plan, made, step), parts)
                ]
                for step in steps
            ]
        )
        for made in (replace(plan, costs=None), plan)
    )
    return without, balanced


def imbalance(costs: Array) -> float:
    """How many times the mean cost the most expensive part of a step costs, on average over steps.

    Args:
        costs: Costs of parts, float64[steps, parts].
    """
    means = np.maximum(costs.mean(axis=1), 1e-300)
    return float((costs.max(axis=1) / means).mean())


def _costs(plan: BatchPlan, made: BatchPlan, step: int) -> Array:
    """Costs of the rows of a step as a plan arranges them, float64[batch size]; padding costs nothing."""
    assert plan.costs is not None
    visits = made.visits(step)
    costs = np.zeros(len(visits.rows))
    real = visits.rows >= 0
    costs[real] = plan.costs(Visits(visits.rows[real], visits.epochs[real]))
    return costs
