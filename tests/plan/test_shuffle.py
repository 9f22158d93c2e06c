"""A full shuffle is the permutation of its seed and epoch."""

from loadax.plan.sequential import Sequential
from loadax.plan.shuffle import Shuffled
from tests.plan.visited import rows


def test_different_seeds_and_epochs_never_share_an_order() -> None:
    pairs = [(seed, number) for seed in range(-8, 8) for number in range(16)]
    assert len({tuple(rows(Shuffled(Sequential(40), seed), number)) for seed, number in pairs}) == len(pairs)
