"""A slice of an order is the slice of its list of rows."""

import pytest

from loadax.plan.sequential import Sequential
from loadax.plan.shuffle import Shuffled
from loadax.plan.slice import Sliced
from tests.plan.visited import rows


@pytest.mark.parametrize("bounds", [(0, 10, 1), (3, 9, 2), (9, -1, -1), (9, -1, -4), (5, 5, 1)])
def test_sliced(bounds: tuple[int, int, int]) -> None:
    chosen = range(*bounds)
    order = Sliced(Sequential(10), chosen.start, chosen.step, len(chosen))
    assert rows(order) == list(chosen)
    assert not order.varies
    after = Sliced(Shuffled(Sequential(10), 1), chosen.start, chosen.step, len(chosen))
    shuffled = rows(Shuffled(Sequential(10), 1), 4)
    assert rows(after, 4) == [shuffled[position] for position in chosen]
    assert after.varies
