"""Law: `find` is the inverse of `rows`.

What it finds is where the batches have the row, and all of that; by arithmetic, however large the data.
"""

from functools import partial
from typing import Any, Literal

import numpy as np
from hypothesis import HealthCheck, assume, given, settings, strategies as st

from loadax import seeds
from loadax.core.intervals import merge
from loadax.plan.batches import BatchPlan
from loadax.plan.block_shuffle import BlockShuffled
from loadax.plan.concat import Concatenated
from loadax.plan.find import StepPosition, find
from loadax.plan.flat_map import FlatMapped
from loadax.plan.mix import Mixed, Segment, Stop
from loadax.plan.repeat import Repeated
from loadax.plan.sample import Sampled
from loadax.plan.select import Selected
from loadax.plan.sequential import Sequential
from loadax.plan.shuffle import Shuffled
from loadax.plan.skips import Skips
from loadax.plan.slice import Sliced
from loadax.plan.split import split
from loadax.plan.subset import Excluding
from loadax.plan.zip import Zipped
from loadax.protocols import Order
from tests.limits import examples
from tests.work_counts import lines_of, peak_of

SMALL = st.integers(1, 9)
MOST = 120  # positions an epoch


VERBS = [
    "shuffle",
    "blocks",
    "slice",
    "repeat",
    "split",
    "without",
    "select",
    "sample",
    "flat_map",
    "concat",
    "mix",
    "zip",
]


@st.composite
def orders(choose: st.DrawFn, depth: int = 2) -> tuple[Order, int]:
    """An order, and how many rows its source has."""
    rows = choose(st.integers(1, 40))
    order: Order = Sequential(rows)
    for _ in range(choose(st.integers(0, 4))):
        verb = choose(st.sampled_from(VERBS))
        if verb == "shuffle":
            order = Shuffled(order, choose(SMALL))
        elif verb == "blocks":
            seed, block, window, lanes = (choose(SMALL) for _ in range(4))
            order = BlockShuffled(order, seed, block, window, lanes, choose(st.booleans()))
        elif verb == "slice":
            start, stop = sorted((choose(st.integers(0, order.size)), choose(st.integers(0, order.size))))
            chosen = range(start, stop)[:: choose(st.sampled_from([1, 1, 2, 3, -1, -2]))]
            order = Sliced(order, chosen.start, chosen.step, len(chosen))
        elif verb in ("select", "sample") and order.size:
            order = choose(listed(order, verb))
        elif verb in ("repeat", "flat_map") and order.size <= MOST // 3:
            times = choose(st.integers(1, 3))
            order = Repeated(order, times) if verb == "repeat" else FlatMapped(order, times, "parts")
            rows *= 1 if verb == "repeat" else times
        elif verb == "split" and not order.varies:
            order = split(order, choose(st.sampled_from([0.2, 0.5, 0.8])), choose(SMALL))[choose(st.integers(0, 1))]
        elif verb == "without" and not order.varies and order.size:
            missing = choose(st.sets(st.integers(0, order.size - 1), max_size=4))
            order = Excluding(order, np.array(sorted(missing), np.int64), ("exclude",))
        elif verb == "zip":
            order, rows = Zipped((order, Sequential(order.size)), ("one", "other")), order.size
        elif verb in ("concat", "mix") and depth and order.size:
            other, others = choose(orders(depth - 1))
            if verb == "concat":
                order, rows = Concatenated((order, other), (rows, others)), rows + others
            elif other.size:
                order, rows = choose(mixtures(order, rows, other, others)), rows + others
        assume(order.size <= MOST)
    return order, rows


@st.composite
def listed(choose: st.DrawFn, order: Order, verb: str) -> Order:
    """Positions of an order, listed or drawn."""
    if verb == "select" or order.varies:
        positions = choose(st.lists(st.integers(0, order.size - 1), max_size=12))
        return Selected(order, np.array(positions, np.int64), ("select", "digest"))
    weights = choose(st.lists(st.integers(1, 3), min_size=order.size, max_size=order.size))
    return Sampled(order, np.cumsum(weights), choose(st.integers(1, 20)), choose(SMALL), "digest")


@st.composite
def mixtures(choose: st.DrawFn, one: Order, rows: int, other: Order, others: int) -> Order:
    stop: Stop = choose(st.sampled_from(["first", "all"]))
    weights = st.tuples(st.integers(1, 4), st.integers(1, 4))
    segments = [Segment(0, choose(weights))]
    for start in sorted(choose(st.sets(st.integers(1, 50), max_size=2))):
        share = choose(weights | st.sampled_from([(0, 1), (2, 0)]))
        segments.append(Segment(start, share))
    if stop == "all":
        segments.append(Segment(60, (1, 1)))
    version = choose(st.sampled_from([1, 2]))
    order = Mixed((one, other), (rows, others), ("one", "other"), tuple(segments), choose(SMALL), stop, version=version)
    if order.size > MOST:
        return Sliced(order, 0, 1, MOST // 2)
    return order


def test_an_empty_slice_backwards_of_an_empty_order_has_nothing() -> None:
    empty = Sliced(Sliced(Sequential(3), 0, 1, 0), -1, -2, 0)
    hits = empty.inverse(np.array([0]), np.array([0]), (0, 0))
    assert not len(hits.asked)


@settings(
    max_examples=examples(400), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
@given(orders(), st.data())
def test_inverse_is_the_inverse_of_visits(made: tuple[Order, int], data: st.DataObject) -> None:
    order, rows = made
    epochs = np.repeat([0, 1, 5], rows)
    asked = np.tile(np.arange(rows), 3)
    low = data.draw(st.integers(0, order.size))
    high = data.draw(st.integers(low, order.size))
    for window in ((0, order.size), (low, high)):
        expected = set()
        for number, epoch in enumerate((0, 1, 5)):
            met = order.visits(np.full(order.size, epoch), np.arange(order.size)).rows.tolist()
            expected |= {(number * rows + row, position) for position, row in enumerate(met)}
        inside = {each for each in expected if window[0] <= each[1] < window[1]}
        hits = order.inverse(asked, epochs, window)
        found = list(zip(hits.asked.tolist(), hits.positions.tolist(), strict=True))
        assert len(set(found)) == len(found)
        assert inside <= set(found) <= expected
    for row in (-1, rows, rows + 7):
        assert not len(order.inverse(np.array([row]), np.array([0]), (0, order.size)).positions)


@settings(
    max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
@given(orders(), st.integers(1, 20), st.sampled_from(["drop", "pad"]), st.data())
def test_find_is_the_inverse_of_rows(
    made: tuple[Order, int], batch_size: int, remainder: Literal["drop", "pad"], data: st.DataObject
) -> None:
    order, rows = made
    assume(order.size >= (1 if remainder == "pad" else batch_size))
    whole: Any = BatchPlan(order, batch_size, 2, remainder)
    if whole.num_steps > 1 and data.draw(st.booleans()):  # a schedule of batch sizes
        later = data.draw(st.integers(1, order.size if remainder == "drop" else 20))
        sizes = (0, batch_size), (data.draw(st.integers(1, whole.num_steps - 1)), later)
        whole = BatchPlan(order, sizes, 2, remainder)
    pieces = data.draw(st.lists(st.tuples(st.integers(0, whole.num_steps), st.integers(1, 5)), max_size=3))
    skips = Skips(merge((start, min(start + count, whole.num_steps)) for start, count in pieces))
    plan = BatchPlan(order, whole.batch_size, 2, remainder, skips)
    assert plan.num_steps is not None
    start = data.draw(st.integers(0, plan.num_steps))
    steps = range(start, data.draw(st.integers(start, plan.num_steps)))
    met: dict[int, list[StepPosition]] = {}
    for step in steps:
        for position, row in enumerate(plan.visits(step).rows.tolist()):
            met.setdefault(row, []).append(StepPosition(step, position))
    for row in range(rows):
        assert find(plan, row, steps) == met.get(row, [])


def test_a_trillion_rows_are_not_looked_through() -> None:
    size = 10**12 + 7
    blocks = BlockShuffled(Sequential(size), 0, 4096, 4, 128)
    parts = (Shuffled(Sequential(size), 1), Repeated(blocks, 3), Sliced(Shuffled(Sequential(size), 2), 5, 3, size // 4))
    mixture = Mixed(parts, (size,) * 3, ("a", "b", "c"), (Segment(0, (5, 2, 1)), Segment(10**9, (1, 2, 5))), 0, "first")
    for order in (*parts, mixture, Concatenated((*parts, mixture), (size, size, size, 3 * size))):
        plan = BatchPlan(order, 4096, num_epochs=3)
        assert plan.num_steps is not None
        for step in (0, 12_345, plan.steps_per_epoch, plan.num_steps - 1):
            rows = plan.visits(step).rows
            for position in (0, 1717, 4095):
                asked = partial(find, plan, int(rows[position]), range(plan.num_steps))
                assert StepPosition(step, position) in asked()
                assert lines_of(asked) < 50_000
                assert peak_of(asked) < 1 << 24


def test_a_block_shuffle_of_a_trillion_rows_is_undone_in_bulk() -> None:
    order = BlockShuffled(Sequential(10**12 + 7), 0, 4096, 4, 128)
    positions = seeds.permute(np.arange(100_000), 10**12 + 7, 3)
    rows = order.visits(np.full_like(positions, 2), positions).rows
    hits = order.inverse(rows, np.full_like(rows, 2), (0, order.size))
    np.testing.assert_array_equal(hits.positions[np.argsort(hits.asked)], positions)
