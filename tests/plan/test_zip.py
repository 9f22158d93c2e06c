"""Orders side by side: rows are positions, the same in every epoch where no part varies."""

import numpy as np
import pytest

from loadax.errors import ArgumentError
from loadax.plan.order import check_fixed_rows
from loadax.plan.sequential import Sequential
from loadax.plan.shuffle import Shuffled
from loadax.plan.slice import Sliced
from loadax.plan.split import split
from loadax.plan.subset import met_rows, only_rows
from loadax.plan.zip import Zipped
from loadax.protocols import Order
from tests.plan.visited import rows

FIXED = Sequential(6), Sliced(Sequential(9), 8, -1, 6)


def zipped(*parts: Order) -> Zipped:
    return Zipped(parts, tuple(f"[{index}]" for index in range(len(parts))))


def test_verbs_that_look_at_rows_need_fixed_ones() -> None:
    kept = only_rows(Shuffled(zipped(*FIXED), 2), np.array([1, 4, 5]), ("filter", "x"))
    assert sorted(rows(kept)) == [1, 4, 5]
    assert met_rows(Sliced(zipped(*FIXED), 2, 2, 2), "filter", 6).tolist() == [False, False, True, False, True, False]
    changing = zipped(FIXED[0], Shuffled(Sequential(6), 3))
    for order in (changing, Sliced(changing, 0, 1, 3), Shuffled(changing, 1)):
        message = (
            r"split\(\) needs the same rows in every epoch, but the order of zipped datasets changes .*; zip the "
            r"datasets before they are shuffled or mixed, and shuffle and map with loadax after split\(\)"
        )
        with pytest.raises(ArgumentError, match=message):
            split(order, 0.5, 0)
        with pytest.raises(ArgumentError, match=r"cache\(\) needs the same rows"):
            check_fixed_rows(order, "cache()")


def test_it_tells_of_all_parts() -> None:
    parts = Sequential(6), Shuffled(Sequential(6), 3)
    assert zipped(*parts).text() == ["zip: [0] = 6 rows; [1] = 6 rows, shuffle(3)"]
    assert zipped(*parts).describe() == [["zip", [["[0]", [["rows", 6]]], ["[1]", [["rows", 6], ["shuffle", 3]]]]]]
    assert zipped(*parts).describe() != zipped(*parts[::-1]).describe()
    assert zipped(*parts).lane_assignments(0, 0, 6) == []
