"""Splits go by row: disjoint, complete, the same before and after a shuffle, and steady when rows are appended."""

import numpy as np
import pytest

from loadax import seeds
from loadax.errors import ArgumentError
from loadax.plan.block_shuffle import BlockShuffled
from loadax.plan.concat import Concatenated
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


@pytest.mark.parametrize("counts", [[300], [1, 299], [240, 30, 30], [100, 100, 99, 1]])
@pytest.mark.parametrize("seed", [-1, 0])
def test_parts_of_exact_sizes_are_the_rows_by_their_hashes(counts: list[int], seed: int) -> None:
    parts = split_counts(Sequential(300), 300, counts, seed)
    by_hash = sorted(range(300), key=lambda row: int(seeds.derive(seed, "split", row)))
    ends = np.cumsum(counts).tolist()
    assert [rows(part) for part in parts] == [
        sorted(by_hash[end - count : end]) for end, count in zip(ends, counts, strict=True)
    ]


@pytest.mark.parametrize("epoch", [0, 3])
def test_counts_mean_the_same_before_and_after_a_shuffle_or_a_repeat(epoch: int) -> None:
    plain = split_counts(Sequential(100), 100, [70, 30], 1)[1]
    for shuffle in (lambda order: Shuffled(order, 5), lambda order: Repeated(BlockShuffled(order, 5, 4, 2, 3), 2)):
        order = shuffle(Sequential(100))
        assert rows(split_counts(order, 100, [70, 30], 1)[1], epoch) == rows(shuffle(plain), epoch)


def test_counts_are_of_the_rows_that_are_left_whatever_holds_them() -> None:
    listed = Selected(Sequential(40), np.array([5, 9, 5, 1, 30]), "digest")
    one, other = split_counts(listed, 40, [1, 3], 0)
    assert sorted(rows(one) + rows(other)) == [1, 5, 5, 9, 30]
    assert not set(rows(one)) & set(rows(other))
    parts = Concatenated((Sequential(20), Sliced(Sequential(40), 1, 2, 20)), (20, 40))
    halves = split_counts(Shuffled(parts, 2), 60, [20, 20], 0)
    assert sorted(rows(halves[0]) + rows(halves[1])) == sorted(rows(parts))
    assert [half.size for half in halves] == [20, 20]


def test_counts_that_do_not_add_up() -> None:
    with pytest.raises(
        ArgumentError, match=r"fraction=\[8, 1\]: the counts add up to 9, and the dataset has 10 rows; pass"
    ):
        split_counts(Sequential(10), 10, [8, 1], 0)
    with pytest.raises(ArgumentError, match="add up to 20, and the dataset has 10 rows in 20 positions; pass counts"):
        split_counts(Selected(Sequential(10), np.arange(20) % 10, "digest"), 10, [10, 10], 0)


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


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("epoch", [0, 3])
def test_it_means_the_same_before_and_after_a_shuffle(side: int, epoch: int) -> None:
    plain = split(Sequential(100), 0.4, 1)[side]
    assert rows(split(Shuffled(Sequential(100), 5), 0.4, 1)[side], epoch) == rows(Shuffled(plain, 5), epoch)
    blocks = split(BlockShuffled(Sequential(100), 5, 4, 2, 3), 0.4, 1)[side]
    assert rows(blocks, epoch) == rows(BlockShuffled(plain, 5, 4, 2, 3), epoch)
    assert rows(split(Repeated(Shuffled(Sequential(100), 5), 2), 0.4, 1)[side], epoch) == rows(
        Repeated(Shuffled(plain, 5), 2), epoch
    )


@pytest.mark.parametrize("side", [0, 1])
def test_a_row_keeps_its_side_whatever_slice_it_is_in(side: int) -> None:
    whole = set(rows(split(Sequential(100), 0.4, 1)[side]))
    backwards = rows(split(Sliced(Sequential(100), 99, -3, 34), 0.4, 1)[side])
    assert backwards == [row for row in range(99, -1, -3) if row in whole]


@pytest.mark.parametrize("side", [0, 1])
def test_rows_of_a_concatenation_are_told_apart_by_their_own_numbers(side: int) -> None:
    whole = rows(split(Sequential(60), 0.4, 1)[side])
    parts = Concatenated(
        (Sequential(20), Shuffled(Concatenated((Sequential(15), Sequential(25)), (15, 25)), 1)), (20, 40)
    )
    assert sorted(rows(split(parts, 0.4, 1)[side], 2)) == whole


def test_a_side_can_be_split_again() -> None:
    first, rest = split(Sequential(400), 0.5, 1)
    both = split(first, 0.5, 2)
    assert sorted(rows(both[0]) + rows(both[1])) == rows(first)
    assert 0 < both[0].size < first.size
    assert not set(rows(first)) & set(rows(rest))


def test_nothing_splits_into_nothing() -> None:
    assert [side.size for side in split(Sequential(0), 0.5, 0)] == [0, 0]


@pytest.mark.parametrize("parent", [Shuffled(Sequential(9), 0), BlockShuffled(Sequential(9), 0, 2, 2, 2)])
def test_a_slice_of_a_shuffle_cannot_be_split(parent: Order) -> None:
    message = r"split\(\) after \[.*\] of a shuffle .* other rows in every epoch.*call split\(\) before the shuffle, or"
    for order in (Sliced(parent, 0, 1, 4), Shuffled(Repeated(Sliced(parent, 0, 1, 4), 2), 1)):
        with pytest.raises(ArgumentError, match=message):
            split(order, 0.5, 0)


def test_many_rows_are_looked_at_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    from loadax.plan import subset as module

    whole = rows(split(Sequential(1000), 0.5, 0)[0])
    monkeypatch.setattr(module, "_CHUNK", 7)
    assert rows(split(Sequential(1000), 0.5, 0)[0]) == whole


def test_a_split_of_a_split_with_the_same_seed_cuts_anew() -> None:
    """Train, validation and test, as everybody writes it."""
    train, rest = split(Sequential(10_000), 0.8, 0)
    parts = [train, *split(rest, 0.5, 0)]
    assert [round(part.size / 1000) for part in parts] == [8, 1, 1]
    rows = [part.visits(np.zeros(part.size, np.int64), np.arange(part.size)).rows for part in parts]
    assert sorted(np.concatenate(rows).tolist()) == list(range(10_000))
