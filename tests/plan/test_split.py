"""Splits go by row: disjoint, complete, the same before and after a shuffle, and steady when rows are appended."""

import numpy as np
import pytest

from loadax import from_arrays
from loadax.errors import ArgumentError
from loadax.plan.block_shuffle import BlockShuffled
from loadax.plan.repeat import Repeated
from loadax.plan.select import Selected
from loadax.plan.sequential import Sequential
from loadax.plan.shuffle import Shuffled
from loadax.plan.slice import Sliced
from loadax.plan.split import split, split_counts
from loadax.protocols import Order
from tests.plan.visited import rows


@pytest.mark.parametrize("fraction", [0.001, 0.1, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("seed", [-1, 0, 1])
def test_the_sides_share_no_row_and_miss_none(fraction: float, seed: int) -> None:
    first, rest = split(Sequential(3000), fraction, seed)
    assert sorted(rows(first) + rows(rest)) == list(range(3000))
    assert abs(first.size - 3000 * fraction) < 5 * (3000 * fraction * (1 - fraction)) ** 0.5 + 1
    assert rows(first) == sorted(rows(first))


def test_seeds_choose_other_rows() -> None:
    assert len({tuple(rows(split(Sequential(100), 0.5, seed)[0])) for seed in range(20)}) == 20


def test_counts_that_do_not_add_up() -> None:
    with pytest.raises(
        ArgumentError, match=r"fraction=\[8, 1\]: the counts add up to 9, and the dataset has 10 rows; pass"
    ):
        split_counts(Sequential(10), 10, [8, 1], 0)
    with pytest.raises(ArgumentError, match="add up to 20, and the dataset has 10 rows in 20 positions; pass counts"):
        split_counts(Selected(Sequential(10), np.arange(20) % 10, ("select", "digest")), 10, [10, 10], 0)


@pytest.mark.parametrize("contiguous", [False, True])
def test_a_number_of_parts_that_looks_like_a_percentage_is_told(contiguous: bool) -> None:
    data = from_arrays(np.arange(100))
    with pytest.warns(
        UserWarning, match=r"90 parts of equal size; for 90 % in the first of two parts, pass 0\.9"
    ) as told:
        assert len(data.split(90, contiguous=contiguous)) == 90
    assert (len(told), told[0].filename) == (1, __file__)
    assert len(data.split(0.9, contiguous=contiguous)) == 2  # as it says
    assert [len(part) for part in data.split(4, contiguous=contiguous)] == [25] * 4


def test_the_text_of_many_parts_is_short() -> None:
    assert len(repr(from_arrays(np.arange(1000)).split(300)[7])) < 200


def test_a_second_split_by_counts_cuts_anew() -> None:
    first, _ = split_counts(Sequential(100), 100, [50, 50], 0)
    again = split_counts(first, 100, [25, 25], 0)[0]
    assert rows(again) != rows(split_counts(Sequential(100), 100, [25, 75], 0)[0])
    assert set(rows(again)) < set(rows(first))


def test_more_rows_leave_the_others_where_they_are() -> None:
    small, large = (split(Sequential(size), 0.3, 1) for size in (100, 1000))
    for before, after in zip(small, large, strict=True):
        assert rows(before) == [row for row in rows(after) if row < 100]


def test_a_larger_fraction_only_adds_rows() -> None:
    assert set(rows(split(Sequential(500), 0.2, 1)[0])) < set(rows(split(Sequential(500), 0.6, 1)[0]))


def test_nothing_splits_into_nothing() -> None:
    assert [side.size for side in split(Sequential(0), 0.5, 0)] == [0, 0]


@pytest.mark.parametrize("parent", [Shuffled(Sequential(9), 0), BlockShuffled(Sequential(9), 0, 2, 2, 2)])
def test_a_slice_of_a_shuffle_cannot_be_split(parent: Order) -> None:
    message = r"split\(\) after \[.*\] of a shuffle .* other rows in every epoch; call it before"
    for order in (Sliced(parent, 0, 1, 4), Shuffled(Repeated(Sliced(parent, 0, 1, 4), 2), 1)):
        with pytest.raises(ArgumentError, match=message):
            split(order, 0.5, 0)


def test_a_split_of_a_split_with_the_same_seed_cuts_anew() -> None:
    """Train, validation and test, as everybody writes it."""
    train, rest = split(Sequential(10_000), 0.8, 0)
    parts = [train, *split(rest, 0.5, 0)]
    assert [round(part.size / 1000) for part in parts] == [8, 1, 1]
    rows = [part.visits(np.zeros(part.size, np.int64), np.arange(part.size)).rows for part in parts]
    assert sorted(np.concatenate(rows).tolist()) == list(range(10_000))
