"""`arrangement`: a permutation whose contiguous equal parts cost nearly the same, for every power of two."""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra.numpy import arrays

from loadax.plan.balance import arrangement
from loadax.protocols import Array


def dearest(costs: Array, parts: int) -> float:
    """Largest over mean cost of equal contiguous parts."""
    shares = costs.reshape(parts, -1).sum(axis=1)
    return float(shares.max() / shares.mean())


@given(arrays(np.float64, st.integers(1, 200), elements=st.floats(0, 1e12)))
def test_any_costs_give_a_permutation_twice_the_same(costs: Array) -> None:
    arranged = arrangement(costs)
    assert sorted(arranged.tolist()) == list(range(len(costs)))
    assert arranged.tolist() == arrangement(costs.copy()).tolist()


@pytest.mark.parametrize("rows", [16, 96, 512, 4096])
def test_parts_of_every_power_of_two_are_balanced(rows: int) -> None:
    costs = np.random.default_rng(rows).lognormal(0, 0.5, rows)
    before, after = costs, costs[arrangement(costs)]
    for parts in (2**power for power in range(1, 11) if rows % 2**power == 0 and rows >= 8 * 2**power):
        bound = max(1.0, costs.max() / (costs.mean() * rows / parts))
        assert dearest(after, parts) <= 1.1 * bound
        assert dearest(after, parts) <= dearest(before, parts)


def test_single_rows_are_balanced_below_the_blocks() -> None:
    """Parts of fewer rows than are dealt together: the dearest beside the cheapest."""
    assert dearest(np.arange(64.0)[arrangement(np.arange(64.0))], 32) <= 1.02


def test_one_dear_row_gets_the_cheapest_beside_it() -> None:
    costs = np.array([100.0, *np.linspace(1, 2, 63)])
    after = costs[arrangement(costs)].reshape(8, 8)
    (dear,) = np.flatnonzero((after == 100).any(axis=1))
    assert after[dear].sum() <= 100 + sorted(costs)[21] * 7
