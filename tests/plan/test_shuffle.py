"""A full shuffle is the permutation of its seed and epoch."""

import numpy as np

from loadax import seeds
from loadax.plan.sequential import Sequential
from loadax.plan.shuffle import Shuffled
from tests.plan.visited import rows


def test_shuffled_is_the_permutation_of_the_seeds_module() -> None:
    order = Shuffled(Sequential(100), 5)
    for number in (0, 1, 10**9):
        expected = seeds.permute(np.arange(100), 100, seeds.derive(5, "shuffle", number))
        assert rows(order, number) == expected.tolist()
        assert sorted(rows(order, number)) == list(range(100))
    assert order.varies
    assert len({tuple(rows(order, number)) for number in range(50)}) == 50


def test_shuffled_takes_many_epochs_in_one_call() -> None:
    order = Shuffled(Sequential(10), 5)
    epochs, positions = np.repeat([3, 0, 8], 10), np.tile(np.arange(10), 3)
    visits = order.visits(epochs, positions)
    assert visits.rows.tolist() == rows(order, 3) + rows(order, 0) + rows(order, 8)
    assert visits.epochs.tolist() == epochs.tolist()


def test_different_seeds_and_epochs_never_share_an_order() -> None:
    pairs = [(seed, number) for seed in range(-8, 8) for number in range(16)]
    assert len({tuple(rows(Shuffled(Sequential(40), seed), number)) for seed, number in pairs}) == len(pairs)


def test_two_shuffles_that_follow_each_other_are_another_shuffle() -> None:
    once = Shuffled(Sequential(30), 0)
    twice = Shuffled(once, 0)
    inner = rows(once)
    assert rows(twice) == [inner[inner[position]] for position in range(30)]
