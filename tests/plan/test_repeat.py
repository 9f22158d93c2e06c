"""A repeated order counts epochs on."""

from loadax.plan.repeat import Repeated
from loadax.plan.sequential import Sequential
from loadax.plan.shuffle import Shuffled
from tests.plan.visited import epoch


def test_repeated_counts_epochs_on() -> None:
    order = Repeated(Shuffled(Sequential(5), 2), 3)
    inner = [epoch(order.parent, number) for number in range(6)]
    assert epoch(order, 0) == inner[0] + inner[1] + inner[2]
    assert epoch(order, 1) == inner[3] + inner[4] + inner[5]
    assert Repeated(Sequential(0), 3).size == 0
    assert epoch(Repeated(Sequential(0), 3), 0) == []
