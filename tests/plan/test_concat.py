"""Orders one behind another."""

import numpy as np

from loadax.plan.concat import Concatenated
from loadax.plan.repeat import Repeated
from loadax.plan.sequential import Sequential
from loadax.plan.shuffle import Shuffled
from loadax.plan.slice import Sliced
from tests.plan.visited import epoch, rows


def test_concatenated_numbers_rows_on_by_sources_not_by_positions() -> None:
    parts = (Sliced(Sequential(10), 0, 2, 5), Sequential(0), Repeated(Sequential(3), 2))
    order = Concatenated(parts, (10, 4, 3))
    assert rows(order) == [0, 2, 4, 6, 8, 14, 15, 16, 14, 15, 16]
    assert epoch(order, 5)[-1] == (16, 11)  # the part's own epoch
    assert not order.varies
    assert Concatenated((Sequential(2), Shuffled(Sequential(2), 0)), (2, 2)).varies


def test_concatenated_takes_positions_in_any_order() -> None:
    order = Concatenated((Sequential(3), Shuffled(Sequential(4), 0)), (3, 4))
    positions = np.array([6, 0, 3, 3, 2, 5, 1, 4])
    whole = rows(order)
    assert order.visits(np.zeros(8, np.int64), positions).rows.tolist() == [whole[position] for position in positions]
