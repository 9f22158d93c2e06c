"""Each order alone: what it turns positions into, and how it describes itself."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from loadax import seeds
from loadax.plan.block_shuffle import BlockShuffled
from loadax.plan.concat import Concatenated
from loadax.plan.order import depth_first
from loadax.plan.repeat import Repeated
from loadax.plan.sequential import Sequential
from loadax.plan.shuffle import Shuffled
from loadax.plan.slice import Sliced
from loadax.plan.subset import Subset
from loadax.protocols import Order


def epoch(order: Order, number: int) -> list[tuple[int, int]]:
    """All visits of an epoch, as pairs of row and epoch."""
    positions = np.arange(order.size)
    visits = order.visits(np.full(order.size, number), positions)
    assert visits.rows.dtype == visits.epochs.dtype == np.int64
    return list(zip(visits.rows.tolist(), visits.epochs.tolist(), strict=True))


def rows(order: Order, number: int = 0) -> list[int]:
    return [row for row, _ in epoch(order, number)]


def test_sequential() -> None:
    assert epoch(Sequential(4), 7) == [(0, 7), (1, 7), (2, 7), (3, 7)]
    assert not Sequential(4).varies


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


@pytest.mark.parametrize("bounds", [(0, 10, 1), (3, 9, 2), (9, -1, -1), (9, -1, -4), (5, 5, 1)])
def test_sliced(bounds: tuple[int, int, int]) -> None:
    chosen = range(*bounds)
    order = Sliced(Sequential(10), chosen.start, chosen.step, len(chosen))
    assert rows(order) == list(chosen)
    assert not order.varies
    after = Sliced(Shuffled(Sequential(10), 1), chosen.start, chosen.step, len(chosen))
    shuffled = rows(Shuffled(Sequential(10), 1), 4)
    assert rows(after, 4) == [shuffled[position] for position in chosen]
    assert after.varies


def test_repeated_counts_epochs_on() -> None:
    order = Repeated(Shuffled(Sequential(5), 2), 3)
    inner = [epoch(order.parent, number) for number in range(6)]
    assert epoch(order, 0) == inner[0] + inner[1] + inner[2]
    assert epoch(order, 1) == inner[3] + inner[4] + inner[5]
    assert Repeated(Sequential(0), 3).size == 0
    assert epoch(Repeated(Sequential(0), 3), 0) == []


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


def test_kept_picks_positions_of_its_parent() -> None:
    order = Subset(Sliced(Sequential(10), 9, -1, 10), np.array([0, 3, 9]), ("split", 0.5, 0, True))
    assert epoch(order, 2) == [(9, 2), (6, 2), (0, 2)]
    assert order.size == 3


ORDERS: dict[str, Callable[[], Order]] = {
    "rows": lambda: Sequential(12),
    "fewer rows": lambda: Sequential(11),
    "shuffle": lambda: Shuffled(Sequential(12), 0),
    "another seed": lambda: Shuffled(Sequential(12), 1),
    "twice": lambda: Shuffled(Shuffled(Sequential(12), 0), 0),
    "blocks": lambda: BlockShuffled(Sequential(12), 0, 3, 2, 2),
    "other blocks": lambda: BlockShuffled(Sequential(12), 0, 2, 2, 2),
    "other windows": lambda: BlockShuffled(Sequential(12), 0, 3, 1, 2),
    "other lanes": lambda: BlockShuffled(Sequential(12), 0, 3, 2, 1),
    "blocks of another seed": lambda: BlockShuffled(Sequential(12), 1, 3, 2, 2),
    "slice": lambda: Sliced(Sequential(12), 0, 1, 6),
    "another slice": lambda: Sliced(Sequential(12), 6, 1, 6),
    "with a step": lambda: Sliced(Sequential(12), 0, 2, 6),
    "repeat": lambda: Repeated(Sequential(12), 2),
    "more often": lambda: Repeated(Sequential(12), 3),
    "slice, shuffle": lambda: Shuffled(Sliced(Sequential(12), 0, 1, 6), 0),
    "shuffle, slice": lambda: Sliced(Shuffled(Sequential(12), 0), 0, 1, 6),
    "concat": lambda: Concatenated((Sequential(6), Sequential(6)), (6, 6)),
    "concat of others": lambda: Concatenated((Sequential(5), Sequential(7)), (5, 7)),
    "concat of longer sources": lambda: Concatenated((Sequential(6), Sequential(6)), (7, 6)),
    "split": lambda: Subset(Sequential(12), np.arange(4), ("split", 0.5, 0, True)),
    "the rest": lambda: Subset(Sequential(12), np.arange(4), ("split", 0.5, 0, False)),
}


def test_orders_describe_alike_when_and_only_when_they_are_alike() -> None:
    described = {name: json.dumps(make().describe()) for name, make in ORDERS.items()}
    assert len(set(described.values())) == len(ORDERS)
    assert described == {name: json.dumps(make().describe()) for name, make in ORDERS.items()}


@pytest.mark.parametrize("make", ORDERS.values(), ids=ORDERS.keys())
def test_an_order_keeps_the_contract(make: Callable[[], Any]) -> None:
    order = make()
    assert isinstance(order.varies, bool)
    assert all(deal.start < 12 for deal in order.lane_assignments(0, 0, order.size))
    changes = any(rows(order, 0) != rows(order, number) for number in range(1, 5))
    assert changes == order.varies
    nothing = order.visits(np.empty(0, np.int64), np.empty(0, np.int64))
    assert len(nothing.rows) == len(nothing.epochs) == 0


def test_depth_first_finds_every_order() -> None:
    leaf, other = Sequential(3), Sequential(4)
    shuffled = Shuffled(other, 0)
    both = Concatenated((leaf, shuffled), (3, 4))
    top = Repeated(both, 2)
    assert list(map(id, depth_first(top))) == list(map(id, [top, both, leaf, shuffled, other]))


def dealt_lanes(order: Any, start: int, stop: int) -> list[int]:
    """The lane of each position, by the stretches that the order names."""
    deals = order.lane_assignments(0, start, stop)
    lanes = []
    for position in range(start, stop):
        stretch = [deal for deal in deals if deal.start <= position][-1]
        lanes.append(int(stretch.lanes[(position - stretch.start) % len(stretch.lanes)]))
    return lanes


def test_lanes_go_through_slices_and_repeats_and_end_at_what_reorders() -> None:
    dealt = BlockShuffled(Sequential(46), 0, 4, 2, 4)
    whole = dealt_lanes(dealt, 0, 46)
    assert whole[:8] == [0, 2, 1, 3, 0, 2, 1, 3]
    assert dealt_lanes(dealt, 30, 46) == whole[30:]
    assert dealt_lanes(Sliced(dealt, 6, 1, 30), 0, 30) == whole[6:36]
    assert Sliced(dealt, 0, 2, 23).lane_assignments(0, 0, 23) == []
    again = dealt_lanes(BlockShuffled(Sequential(46), 0, 4, 2, 4), 0, 46)
    assert dealt_lanes(Repeated(dealt, 3), 0, 46) == again
    assert dealt_lanes(Repeated(dealt, 3), 46, 54) == [0, 2, 1, 3, 0, 2, 1, 3]
    assert len(Repeated(dealt, 1000).lane_assignments(0, 0, 10)) == 1
    assert Shuffled(dealt, 0).lane_assignments(0, 0, 46) == []
