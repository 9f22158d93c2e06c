"""The rows of a source in their stored order."""

from loadax.plan.sequential import Sequential
from tests.plan.visited import epoch


def test_sequential() -> None:
    assert epoch(Sequential(4), 7) == [(0, 7), (1, 7), (2, 7), (3, 7)]
    assert not Sequential(4).varies
