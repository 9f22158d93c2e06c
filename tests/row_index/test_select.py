"""`select` and `ds[[…]]`: listed positions, as NumPy indexes an array."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from loadax import mix
from loadax.errors import ArgumentError, RowIndexError
from loadax.plan.select import Selected
from loadax.plan.slice import Sliced
from tests.row_index.filters import data, rows_of

ROWS = np.arange(500)
MASK = ROWS % 7 == 3


@pytest.mark.parametrize(
    "rows",
    [
        *([3, 1, 4, 1, 5], [-1, 0, -500, 499], [], np.array([9, 9], np.uint8), np.empty(0), MASK, MASK.tolist()),
        *(np.zeros(500, bool), range(5), range(10, 2, -3), range(-3, 0), range(-2, 3), range(3, 3), range(-1, -9, -2)),
    ],
    ids=str,
)
def test_it_is_numpys_indexing(rows: Any) -> None:
    index = np.array(rows)
    expected = ROWS[index if len(index) else []].tolist()
    assert rows_of(data().select(rows)) == rows_of(data()[rows]) == expected
    shuffled = data().shuffle(3)
    for epoch in (0, 2):
        whole = shuffled.order.visits(np.full(500, epoch), ROWS).rows
        chosen, first = shuffled.subset_per_epoch(rows), shuffled.order.visits(np.zeros(500, np.int64), ROWS).rows
        order = np.arange(len(chosen))
        epochs = np.full(len(chosen), epoch)
        assert chosen.order.visits(epochs, order).rows.tolist() == whole[expected].tolist()
        fixed = shuffled[rows].order.visits(epochs, order).rows.tolist()
        assert sorted(fixed) == sorted(first[expected].tolist())
        assert epoch or fixed == first[expected].tolist()


def test_a_range_keeps_no_list() -> None:
    assert data().select(range(10, 400, 3)).order_facts == data()[10:400:3].order_facts
    assert isinstance(data().select(range(-5, 0)).order, Sliced)


def test_the_callers_list_may_change() -> None:
    rows = np.array([1, 2, 3])
    chosen = data().select(rows)
    rows[:] = 0
    assert rows_of(chosen) == [1, 2, 3]


@pytest.mark.parametrize(
    ("rows", "match"),
    [
        ([3, 500], r"rows: position 500 is out of range for a dataset of length 500; pass positions from 0 on"),
        ([-501], r"rows: position -501 is out of range"),
        (np.array([2**63 + 5], np.uint64), r"rows: position 9223372036854775813 is out of range"),
        (range(10**15), r"rows: position 999999999999999 is out of range"),
        (range(-(10**15), 0), r"rows: position -1000000000000000 is out of range"),
        ([1.0], r"rows contains float64; pass row numbers, as integers"),
        (["3"], r"rows contains <U1"),
        ([2**70], r"rows contains object"),
        (3, r"rows=3: pass a list or an array of row numbers"),
        ("chosen.npy", r"rows='chosen.npy' is a path; pass the numbers in it: numpy\.load\(path\)"),
        ([[1, 2]], r"rows has 2 dimensions: int64\[1, 2\]; pass a flat list, such as rows\.reshape\(-1\)"),
        (np.ones(499, bool), r"rows is a mask of 499 bools, and the dataset has 500 rows; pass one for each row"),
        ({3, 1}, r"rows=\{1, 3\} is a set, which has no order; pass sorted\(rows\)"),
    ],
    ids=str,
)
def test_what_is_no_list_of_positions(rows: Any, match: str) -> None:
    with pytest.raises((ArgumentError, RowIndexError), match=match):
        data().select(rows)


def test_an_index_is_named_as_one() -> None:
    with pytest.raises(RowIndexError, match=r"index: position 500 is out of range"):
        _ = data()[[500]]
    with pytest.raises(ArgumentError, match="index has 2 dimensions"):
        _ = data()[np.array([[1]])]


def test_a_selection_of_a_shuffle_has_the_same_rows_each_epoch() -> None:
    chosen = data().shuffle(0)[[3, 1]]
    assert chosen.order.varies
    assert {row for epoch in range(5) for row in chosen.order.visits(*np.array([[epoch, epoch], [0, 1]])).rows} == {
        *data().shuffle(0).order.visits(*np.array([[0, 0], [3, 1]])).rows
    }
    assert sum(map(len, chosen.split([1, 1]))) == 2


def test_a_selection_of_every_epoch_is_not_split() -> None:
    chosen = data().shuffle(0).subset_per_epoch([3, 1])
    calls: list[Callable[[], Any]] = [lambda: chosen.split(0.5), lambda: chosen.shuffle(0).exclude([1])]
    for call in calls:
        with pytest.raises(ArgumentError, match=r"after select\(.* rows\) of a shuffle .*; call it before"):
            call()
    assert len(data().exclude([1]).shuffle(0)[[3, 1]]) == len(data()[[3, 1]].shuffle(0).exclude([1])) + 1  # the advice


def test_a_mixture_that_never_ends_has_positions_to_select() -> None:
    endless = mix([data(), data()], [1, 1], stop="never")
    first, far = (rows_of(endless.subset_per_epoch(range(start, start + 1))) for start in (0, 10**9))
    assert rows_of(endless.subset_per_epoch([0, 10**9])) == first + far


def test_the_state_is_of_the_list() -> None:
    one, same, other = (data().select(rows).order for rows in ([1, -1], [1, 499], [499, 1]))
    assert one.describe() == same.describe() != other.describe()
    assert isinstance(one, Selected)
    assert repr(data().select([1, 2])) == "Dataset(2 rows of arrays in memory.select(2 rows))"
    assert one.lane_assignments(0, 0, 2) == []
