"""BatchPlan: steps of positions, and every way to ask for none."""

from typing import Any

import numpy as np
import pytest

from loadax import Dataloader
from loadax.errors import ArgumentError, RowIndexError
from loadax.plan.batches import BatchPlan
from loadax.plan.block_shuffle import BlockShuffled
from loadax.plan.sequential import Sequential
from loadax.plan.shuffle import Shuffled
from loadax.protocols import Order, Visits
from tests.work_counts import lines_of, peak_of


def rows(plan: BatchPlan, step: int) -> list[int]:
    found: Any = plan.visits(step).rows
    return list(found.tolist())


def test_without_end_there_is_always_another_epoch() -> None:
    plan = BatchPlan(Shuffled(Sequential(10), 0), 5, num_epochs=None)
    assert plan.num_steps is None
    assert sorted(rows(plan, 10**15) + rows(plan, 10**15 + 1)) == list(range(10))
    assert plan.visits(10**15).epochs.tolist() == [5 * 10**14] * 5


def test_no_steps_are_no_visits() -> None:
    for order in (Sequential(8), BlockShuffled(Sequential(8), 0, 2, 2, 2)):
        visits = BatchPlan(order, 4).visits_of(range(1, 1), np.arange(4))
        assert len(visits.rows) == len(visits.epochs) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, r"batch_size=0: a batch needs at least one row"),
        ({"batch_size": -3}, r"batch_size=-3: a batch needs at least one row"),
        ({"num_epochs": 0}, r"num_epochs=0: pass 1 or more, or None for endless epochs"),
        ({"remainder": "keep"}, r"remainder='keep': pass 'drop', 'pad' or 'error'"),
        ({"order": Sequential(0)}, r"the dataset has no rows; check the data that it reads, or its slice or split"),
        ({"order": Sequential(0), "remainder": "pad"}, r"the dataset has no rows"),
        ({"order": Sequential(0), "remainder": "error"}, r"the dataset has no rows"),
        (
            {"remainder": "error"},
            r"remainder='error': of 10 rows, 2 are left over after batches of batch_size=4; pass remainder='drop'",
        ),
        ({"batch_size": 11, "remainder": "error"}, r"of 10 rows, 10 are left over"),
        (
            {"batch_size": 11},
            r"batch_size=11 but the dataset has only 10 rows: remainder='drop' .*; pass a smaller batch_size, or",
        ),
    ],
)
def test_what_cannot_be_planned(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        BatchPlan(**{"order": Sequential(10), "batch_size": 4, **arguments})


def test_largest_batch_size() -> None:
    order = Sequential(2**62)
    assert BatchPlan(order, 2**62).num_steps == 1
    with pytest.raises(ArgumentError, match=r"batch_size=4611686018427387905 is too large; pass 2\*\*62 or less"):
        BatchPlan(order, 2**62 + 1)


@pytest.mark.parametrize("step", [-1, 4, 10**12])
def test_a_step_that_is_not_there(step: int) -> None:
    with pytest.raises(RowIndexError, match=rf"step {step} is out of range: steps are at least 0 and below 4"):
        Dataloader(np.arange(10), 4, num_epochs=2).rows(step)


def test_a_step_below_zero_of_a_plan_without_end() -> None:
    with pytest.raises(RowIndexError, match=r"step -1 is out of range: steps are at least 0$"):
        Dataloader(np.arange(10), 4, num_epochs=None).rows(-1)


@pytest.mark.parametrize("order", [Shuffled(Sequential(10**12), 0), BlockShuffled(Sequential(10**12), 0, 4096, 4, 128)])
def test_a_trillion_rows_are_no_trouble(order: Order) -> None:
    plan = BatchPlan(order, 65536, num_epochs=None)
    mine = np.arange(16)
    plan.visits(1, mine)
    visits: list[Visits] = []
    assert peak_of(lambda: visits.extend(plan.visits(step, mine) for step in (0, 10**6, 15 * 10**6, 10**12))) < 1 << 20
    assert lines_of(lambda: plan.visits(10**12, mine)) < 10_000
    assert len({row for each in visits for row in each.rows.tolist()}) == 64
    assert all(0 <= row < 10**12 for each in visits for row in each.rows.tolist())
