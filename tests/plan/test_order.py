"""What all orders promise: the contract, how they describe themselves, and lanes that go through them."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from loadax.plan.block_shuffle import BlockShuffled
from loadax.plan.concat import Concatenated
from loadax.plan.fixed_part import fixed_part
from loadax.plan.mix import Mixed, Segment
from loadax.plan.order import depth_first
from loadax.plan.repeat import Repeated
from loadax.plan.sequential import Sequential
from loadax.plan.shuffle import Shuffled
from loadax.plan.slice import Sliced
from loadax.plan.split import split
from loadax.plan.subset import Subset
from loadax.plan.zip import Zipped
from loadax.protocols import Order
from tests.plan.visited import rows

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
    "pinned blocks": lambda: BlockShuffled(Sequential(12), 0, 3, 2, 2, True),
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
    "zip": lambda: Zipped((Sequential(12), Sliced(Sequential(15), 3, 1, 12)), ("a", "b")),
    "zip of others": lambda: Zipped((Sequential(12), Sliced(Sequential(15), 2, 1, 12)), ("a", "b")),
    "split": lambda: Subset(Sequential(12), np.arange(4), ("split", 0.5, 0, True)),
    "fixed part": lambda: fixed_part(Sliced(Shuffled(Sequential(12), 0), 0, 1, 6)),
    "the other part": lambda: fixed_part(Sliced(Shuffled(Sequential(12), 0), 6, 1, 6)),
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
    assert all(run.start < 12 for run in order.lane_assignments(0, 0, order.size))
    changes = any(rows(order, 0) != rows(order, number) for number in range(1, 5))
    assert changes == order.varies
    assert len(order.text()) == len(order.describe())
    if order.row_range is not None:
        assert rows(order, 3) == list(order.row_range)
    nothing = order.visits(np.empty(0, np.int64), np.empty(0, np.int64))
    assert len(nothing.rows) == len(nothing.epochs) == 0


TEXTS: dict[str, list[str]] = {
    "rows": ["12 rows"],
    "shuffle": ["12 rows", "shuffle(0)"],
    "blocks": ["12 rows", "shuffle(0, block=3, window=2, lanes=2)"],
    "another slice": ["12 rows", "[6:12]"],
    "with a step": ["12 rows", "[0::2][:6]"],
    "repeat": ["12 rows", "repeat(2)"],
    "concat": ["concat: 0 = 6 rows; 1 = 6 rows"],
    "split": ["12 rows", "split(4 rows)"],
}


@pytest.mark.parametrize("name", TEXTS)
def test_an_order_as_text(name: str) -> None:
    assert ORDERS[name]().text() == TEXTS[name]


def test_texts_of_verbs_that_take_more() -> None:
    first, second = split(Sequential(1200), 0.5, 7)
    assert first.text()[-1] == f"split(0.5, seed=7, first part, {first.size} rows)"
    assert second.text()[-1] == f"split(0.5, seed=7, second part, {second.size} rows)"
    assert Sequential(1200, own_epochs=True).text() == ["1,200 rows, in the source's own order of each epoch"]
    parts = tuple(Shuffled(Sequential(size), size) for size in range(1, 13))
    (text,) = Concatenated(parts, tuple(range(1, 13))).text()
    assert text.endswith("7 = 8 rows, shuffle(8); and 4 more")
    segments = Segment(0, (3, 1)), Segment(1000, (1, 1))
    (text,) = Mixed((Sequential(9), parts[4]), (9, 5), ("a", "b"), segments, 4, "first").text()
    assert text == (
        "mix(seed=4, stop='first', version=1) 3:1, 1:1 from position 1,000 on: a = 9 rows; b = 5 rows, shuffle(5)"
    )


def test_depth_first_finds_every_order() -> None:
    leaf, other = Sequential(3), Sequential(4)
    shuffled = Shuffled(other, 0)
    both = Concatenated((leaf, shuffled), (3, 4))
    top = Repeated(both, 2)
    assert list(map(id, depth_first(top))) == list(map(id, [top, both, leaf, shuffled, other]))


def lanes_of(order: Any, start: int, stop: int) -> list[int]:
    """The lane of each position, by the runs of positions that the order names."""
    runs = order.lane_assignments(0, start, stop)
    lanes = []
    for position in range(start, stop):
        last = [run for run in runs if run.start <= position][-1]
        lanes.append(int(last.lanes[(position - last.start) % len(last.lanes)]))
    return lanes


def test_lanes_go_through_slices_and_repeats_and_end_at_what_reorders() -> None:
    blocks = BlockShuffled(Sequential(46), 0, 4, 2, 4)
    whole = lanes_of(blocks, 0, 46)
    assert whole[:8] == [0, 2, 1, 3, 0, 2, 1, 3]
    assert lanes_of(blocks, 30, 46) == whole[30:]
    assert lanes_of(Sliced(blocks, 6, 1, 30), 0, 30) == whole[6:36]
    assert Sliced(blocks, 0, 2, 23).lane_assignments(0, 0, 23) == []
    again = lanes_of(BlockShuffled(Sequential(46), 0, 4, 2, 4), 0, 46)
    assert lanes_of(Repeated(blocks, 3), 0, 46) == again
    assert lanes_of(Repeated(blocks, 3), 46, 54) == [0, 2, 1, 3, 0, 2, 1, 3]
    assert len(Repeated(blocks, 1000).lane_assignments(0, 0, 10)) == 1
    assert Shuffled(blocks, 0).lane_assignments(0, 0, 46) == []
