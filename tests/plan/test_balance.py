"""`arrangement`: a permutation whose contiguous equal parts cost nearly the same, for every power of two."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra.numpy import arrays

from loadax.plan import balance
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


def all_pairs(costs: Array) -> list[int]:
    """The arrangement, but for blocks of any size by comparing all pairs of rows, and dealing round by round."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(balance, "MOST_PAIRED", 1 << 30)
        patch.setattr(balance, "FEW_BLOCKS", 0)
        return arrangement(costs).tolist()


@pytest.mark.parametrize("rows", [65 * 2, 130, 134 * 8, 201 * 4, 1000, 16 * 70, 1001])
def test_blocks_of_many_rows_are_those_of_all_pairs(rows: int) -> None:
    costs = np.random.default_rng(rows).lognormal(0, 1.2, rows)
    assert arrangement(costs).tolist() == all_pairs(costs)


def test_work_of_any_batch_size_grows_with_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """No array has more entries than a multiple of the rows, however few factors of two they have."""
    entries = []
    take, absolute = np.take_along_axis, np.abs

    def counted(function: Any) -> Any:
        def count(array: Any, *rest: Any, **options: Any) -> Any:
            entries.append(np.size(array))
            return function(array, *rest, **options)

        return count

    monkeypatch.setattr(np, "take_along_axis", counted(take))
    monkeypatch.setattr(np, "abs", counted(absolute))
    for rows in (4096, 8194, 20_002, 20_001, 16_388, 12_288):
        entries.clear()
        costs = np.random.default_rng(rows).lognormal(0, 0.5, rows)
        after = costs[arrangement(costs)]
        assert max(entries) <= 33 * rows
        assert sum(entries) <= 400 * rows
        assert rows % 2 or dearest(after, 2) < 1.001


def test_golden_arrangement() -> None:
    """Batches of a run that is resumed with another release are in the same order."""
    costs = np.arange(32.0) * 37 % 32
    assert arrangement(costs).tolist() == [
        17,
        2,
        18,
        1,
        10,
        9,
        25,
        26,
        30,
        21,
        5,
        14,
        29,
        22,
        6,
        13,
        4,
        15,
        31,
        20,
        23,
        28,
        12,
        7,
        11,
        8,
        24,
        27,
        16,
        3,
        19,
        0,
    ]


def test_one_dear_row_gets_the_cheapest_beside_it() -> None:
    costs = np.array([100.0, *np.linspace(1, 2, 63)])
    after = costs[arrangement(costs)].reshape(8, 8)
    (dear,) = np.flatnonzero((after == 100).any(axis=1))
    assert after[dear].sum() <= 100 + sorted(costs)[21] * 7
