"""`exclude`: all rows but those in a list, wherever it comes from."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadax.errors import ArgumentError, RowIndexError
from loadax.plan.subset import Excluding
from tests.row_index.filters import data, rows_of

GONE = [3, 499, 0, 3, 17, 18]
LEFT = [row for row in range(500) if row not in GONE]


@pytest.mark.parametrize(
    "rows",
    [
        GONE,
        tuple(GONE),
        set(GONE),
        np.array(GONE),
        np.array(GONE, np.uint16),
        (row for row in GONE),
    ],
    ids=["list", "tuple", "set", "array", "unsigned", "generator"],
)
def test_a_list_of_rows(rows: Any) -> None:
    left = data().exclude(rows)
    assert len(left) == len(LEFT)
    assert rows_of(left) == LEFT


def test_advice_for_a_file_of_rows_works(tmp_path: Path) -> None:
    np.save(tmp_path / "gone.npy", np.array(GONE, np.int32))
    (tmp_path / "gone.txt").write_text("# taken down\n3\n 499 \n\n0 # a duplicate\n3\n17\n18")
    for path, load in (
        (tmp_path / "gone.npy", "numpy.load(path)"),
        (tmp_path / "gone.txt", "numpy.loadtxt(path, int)"),
    ):
        for given in (path, str(path)):
            with pytest.raises(ArgumentError, match=rf"rows='{path}' is a path; pass the numbers in it: .*") as caught:
                data().exclude(given)
            assert load in str(caught.value)
        assert rows_of(data().exclude(eval(load, {"numpy": np, "path": path}))) == LEFT


def test_nothing_to_leave_out() -> None:
    nothing: list[Any] = [[], np.empty(0)]
    for rows in nothing:
        assert rows_of(data().exclude(rows)) == list(range(500))


def test_it_costs_what_is_left_out() -> None:
    order = data().exclude(GONE).order
    assert isinstance(order, Excluding)
    assert order.positions.nbytes == 5 * 8


def test_the_state_is_of_the_rows_that_are_left_out() -> None:
    one, same, other = (data().exclude(rows).order_facts for rows in ([1, 2], [2, 1, 1], [1, 3]))
    assert one == same != other
    assert repr(data().exclude([1, 2])) == "Dataset(498 rows of arrays in memory.exclude(498 rows))"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([1.5], "rows contains float64; pass row numbers, as integers"),
        (np.ones(500, bool), r"rows is a mask of True and False; pass row numbers: numpy.flatnonzero\(mask\)"),
        (3, "rows=3: pass a list or an array of row numbers"),
        ([[1], [2, 3]], r"rows=\[\[1\], \[2, 3\]\]: pass a list or an array of row numbers"),
        (range(500), "leaves none of 500 rows; pass fewer than all"),
    ],
)
def test_lists_that_can_not_be_used(rows: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        data().exclude(rows)


def test_rows_that_are_not_there() -> None:
    for row in (500, -1):
        with pytest.raises(RowIndexError, match=rf"row {row} is out of range; pass rows from 0 on, below 500"):
            data().exclude([1, row])
