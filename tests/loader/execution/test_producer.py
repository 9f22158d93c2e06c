"""The visits of the lookahead are those of the plan, in any order of calls."""

from typing import Any

import numpy as np
from hypothesis import given, settings, strategies as st

from loadax import from_arrays
from loadax.loader.execution import producer
from loadax.loader.execution.producer import VisitLookahead
from loadax.plan.batches import BatchPlan
from loadax.plan.sequential import Sequential
from loadax.protocols import Visits


@settings(deadline=None)
@given(st.integers(1, 50), st.lists(st.tuples(st.integers(0, 60), st.integers(1, 17)), max_size=8), st.booleans())
def test_visits_ahead(lookahead: int, asked: list[tuple[int, int]], endless: bool) -> None:
    order = from_arrays(np.arange(50)).shuffle(seed=0, block=3, lanes=4).order
    plan = BatchPlan(order, 8, None if endless else 12, "pad")
    positions = np.array([1, 2, 6], np.int64)
    before, producer.LOOKAHEAD = producer.LOOKAHEAD, lookahead
    try:
        ahead = VisitLookahead(plan, positions, plan.num_steps)
    finally:
        producer.LOOKAHEAD = before
    for first, count in asked:
        visits = ahead(first, count)
        expected = plan.visits_of(range(first, first + count), positions)
        np.testing.assert_array_equal(visits.rows, expected.rows)
        np.testing.assert_array_equal(visits.epochs, expected.epochs)


def test_visits_of_no_positions() -> None:
    plan = BatchPlan(from_arrays(np.arange(50)).order, 8, 1)
    assert len(VisitLookahead(plan, np.empty(0, np.int64), plan.num_steps)(2, 3).rows) == 0


def test_balanced_steps_are_not_computed_far_ahead() -> None:
    """Each takes the costs of all its rows: no batch waits for those of hundreds of steps."""
    asked: list[int] = []

    def costs(visits: Visits) -> Any:
        asked.append(len(visits.rows))
        return visits.rows % 7.0

    plan = BatchPlan(Sequential(1 << 22), 1 << 14, costs=costs)
    ahead = VisitLookahead(plan, np.arange(8), plan.num_steps)
    for step in range(40):
        ahead(step, 1)
    assert sum(asked) >= 40 << 14
    assert max(asked) == 1 << 16
