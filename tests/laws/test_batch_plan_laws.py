"""Laws of batches: who is served how often, that a step depends on nothing but its number, and what lanes promise."""

from collections import Counter
from typing import Any, Literal

import numpy as np
from hypothesis import assume, given, settings, strategies as st

from loadax import seeds
from loadax.plan.batches import BatchPlan
from loadax.plan.block_shuffle import BlockShuffled
from loadax.plan.lanes import lane_places
from loadax.plan.repeat import Repeated
from loadax.plan.sequential import Sequential
from loadax.plan.shuffle import Shuffled
from loadax.plan.slice import Sliced
from loadax.protocols import Order
from tests.limits import examples

SMALL = st.integers(1, 9)


@st.composite
def orders(choose: st.DrawFn) -> tuple[Order, int]:
    """An order, and how often one epoch serves each row."""
    order: Order = Sequential(choose(st.integers(1, 80)))
    times = 1
    for _ in range(choose(st.integers(0, 3))):
        kind = choose(st.sampled_from(["shuffle", "blocks", "repeat", "whole slice"]))
        if kind == "shuffle":
            order = Shuffled(order, choose(SMALL))
        elif kind == "blocks":
            seed, block, window, lanes = (choose(SMALL) for _ in range(4))
            order = BlockShuffled(order, seed, block, window, lanes, choose(st.booleans()))
        elif kind == "whole slice":
            order = Sliced(order, 0, 1, order.size)
        elif times < 4:
            order, times = Repeated(order, 2), times * 2
    return order, times


@st.composite
def plans(choose: st.DrawFn) -> tuple[BatchPlan, int]:
    order, times = choose(orders())
    batch_size = choose(st.integers(1, 40))
    remainder: Literal["drop", "pad", "error"] = choose(st.sampled_from(["drop", "pad", "error"]))
    assume(remainder == "pad" or batch_size <= order.size)
    assume(remainder != "error" or order.size % batch_size == 0)
    return BatchPlan(order, batch_size, choose(st.sampled_from([1, 2, 3])), remainder), times


def epoch_steps(plan: BatchPlan, epoch: int) -> range:
    return range(epoch * plan.steps_per_epoch, (epoch + 1) * plan.steps_per_epoch)


@settings(deadline=None)
@given(plans(), st.integers(0, 4))
def test_each_epoch_serves_each_row_as_often_as_it_should(made: tuple[BatchPlan, int], epoch: int) -> None:
    plan, times = made
    size = plan.order.size
    served: Counter[int] = Counter()
    for step in epoch_steps(plan, epoch):
        visits = plan.visits(step)
        assert len(visits.rows) == len(visits.epochs) == plan.batch_size_of(0)
        padding = visits.rows == -1
        assert plan.valid(step) == plan.batch_size_of(0) - padding.sum()
        assert not padding[: plan.valid(step)].any()  # it stands at the end
        served.update(visits.rows.tolist())
    assert plan.left_over(epoch) == size - plan.steps_per_epoch * plan.batch_size_of(0)
    padded = served.pop(-1, 0)
    assert set(served) <= set(range(size // times))
    if plan.remainder == "drop":
        assert padded == 0
        assert sum(served.values()) == size // plan.batch_size_of(0) * plan.batch_size_of(0)
        assert max(served.values()) <= times
    else:
        assert set(served) == set(range(size // times))
        assert set(served.values()) == {times}
        assert padded == plan.steps_per_epoch * plan.batch_size_of(0) - size
        assert padded < plan.batch_size_of(0)


@settings(deadline=None)
@given(plans())
def test_epochs_never_share_a_batch(made: tuple[BatchPlan, int]) -> None:
    plan, times = made
    assert plan.num_steps is not None
    for step in range(plan.num_steps):
        visits = plan.visits(step)
        outer = visits.epochs[visits.rows >= 0] // times
        assert set(outer.tolist()) == {step // plan.steps_per_epoch}


@settings(deadline=None)
@given(plans(), st.data())
def test_a_step_depends_on_nothing_but_its_number(made: tuple[BatchPlan, int], data: st.DataObject) -> None:
    """Asked for alone, within any run of steps, in any order, or in parts: always the same batch."""
    plan, _ = made
    assert plan.num_steps is not None
    everywhere = np.arange(plan.batch_size_of(0))
    sweep = [plan.visits(step) for step in range(plan.num_steps)]
    start = data.draw(st.integers(0, plan.num_steps))
    stop = data.draw(st.integers(start, plan.num_steps))
    together = plan.visits_of(range(start, stop), everywhere)
    assert together.rows.tolist() == [row for visits in sweep[start:stop] for row in visits.rows.tolist()]
    assert together.epochs.tolist() == [epoch for visits in sweep[start:stop] for epoch in visits.epochs.tolist()]

    step = data.draw(st.integers(0, plan.num_steps - 1))
    # of an endless run
    again = BatchPlan(plan.order, plan.batch_size_of(0), None, plan.remainder).visits(step)
    assert again.rows.tolist() == sweep[step].rows.tolist()

    positions = np.array(data.draw(st.lists(st.integers(0, plan.batch_size_of(0) - 1), max_size=8)), np.int64)
    part = plan.visits_of(range(start, stop), positions)
    assert part.rows.tolist() == [row for visits in sweep[start:stop] for row in visits.rows[positions].tolist()]
    assert part.epochs.tolist() == [
        epoch for visits in sweep[start:stop] for epoch in visits.epochs[positions].tolist()
    ]


@settings(deadline=None)
@given(orders(), st.integers(1, 12), st.integers(1, 4))
def test_a_batch_size_changes_which_rows_share_a_batch_but_not_their_order(
    made: tuple[Order, int], batch_size: int, factor: int
) -> None:
    """What a resume on another batch size relies on: the same positions were served up to a common multiple."""
    order, _ = made
    assume(batch_size * factor <= order.size)
    small, large = BatchPlan(order, batch_size), BatchPlan(order, batch_size * factor)
    for step in range(large.steps_per_epoch):
        parts = small.visits_of(range(step * factor, (step + 1) * factor), np.arange(batch_size))
        assert sorted(parts.rows.tolist()) == sorted(large.visits(step).rows.tolist())
        if not order.lane_assignments(0, 0, order.size):
            assert parts.rows.tolist() == large.visits(step).rows.tolist()


def lanes_of(order: BlockShuffled, epoch: int, rows: Any) -> Any:
    """Where the lane that each row's block was dealt to stands in a step."""
    key = seeds.derive(order.seed, *(["pinned"] if order.pinned else ["blocks", epoch]))
    return lane_places(order.lanes)[seeds.unpermute(rows // order.block, order.blocks, key) % order.lanes]


BLOCKED = {
    "size": st.integers(1, 400),
    "block": st.integers(1, 12),
    "window": st.integers(1, 5),
    "lanes": st.integers(1, 12),
    "batch_size": st.integers(8, 60),
    "hosts": st.integers(1, 6),
    "epoch": st.integers(0, 2),
    "pinned": st.booleans(),
}


def check_lanes(order: BlockShuffled, plan: BatchPlan, step: int, hosts: int) -> None:
    epoch = step // plan.steps_per_epoch
    rows = plan.visits(step).rows
    rows = rows[rows >= 0]
    lanes = lanes_of(order, epoch, rows)
    assert (np.diff(lanes) >= 0).all()
    if (
        len(rows) % hosts
        or len(set(lanes.tolist())) < order.lanes
        or max(np.bincount(lanes)) > min(np.bincount(lanes)) + 1
    ):
        return  # at the end of an epoch, where the lanes that are left have more of the batch
    # Every lane has its share of the batch, so a host's contiguous share meets its part of the lanes, and one that it
    # shares.
    for share in np.split(lanes, hosts):
        assert len(set(share.tolist())) <= -(-order.lanes // hosts) + 1


@settings(deadline=None)
@given(**BLOCKED)
def test_inside_a_step_rows_stand_sorted_by_lane(
    size: int, block: int, window: int, lanes: int, batch_size: int, hosts: int, epoch: int, pinned: bool
) -> None:
    """Up to the end, where some lanes have run out."""
    order = BlockShuffled(Sequential(size), 3, block, window, lanes, pinned)
    plan = BatchPlan(order, batch_size, None, "pad")
    for step in epoch_steps(plan, epoch):
        check_lanes(order, plan, step, hosts)


def test_a_long_tail_of_few_lanes_is_sorted_too() -> None:
    order = BlockShuffled(Sequential(31 * 100), 0, 100, 2, 16)  # 15 lanes of two blocks, one of one
    plan = BatchPlan(order, 160)
    for step in range(plan.steps_per_epoch):
        check_lanes(order, plan, step, 4)


def test_shorter_last_step_is_not_sorted_as_the_one_before() -> None:
    """Both begin with lane 0."""
    plan = BatchPlan(BlockShuffled(Sequential(48), 0, 2, 2, 2), 10, 1, "pad")
    alone = [plan.visits(step).rows for step in range(5)]
    np.testing.assert_array_equal(plan.visits_of(range(5), np.arange(10)).rows, np.concatenate(alone))


@settings(deadline=None)
@given(**BLOCKED, seed=st.integers(0, 99))
def test_positions_in_any_order_have_the_rows_of_the_whole_step(
    size: int, block: int, window: int, lanes: int, batch_size: int, hosts: int, epoch: int, pinned: bool, seed: int
) -> None:
    plan = BatchPlan(BlockShuffled(Sequential(size), 3, block, window, lanes, pinned), batch_size, None, "pad")
    asked = np.random.default_rng(seed).integers(0, batch_size, hosts * 3)
    for step in epoch_steps(plan, epoch):
        whole = plan.visits(step)
        for positions in (asked, np.sort(asked), asked[:0]):
            some = plan.visits(step, positions)
            np.testing.assert_array_equal(some.rows, whole.rows[positions])


def test_a_host_with_a_contiguous_share_meets_its_lanes_blocks_only() -> None:
    order = BlockShuffled(Sequential(64 * 100), 0, 100, 2, 16)
    plan = BatchPlan(order, 320)
    met: list[set[int]] = [set() for _ in range(4)]
    for step in range(plan.steps_per_epoch):
        for host in range(4):
            mine = plan.visits(step, np.arange(host * 80, (host + 1) * 80)).rows
            met[host] |= set((mine // 100).tolist())
    assert [len(blocks) for blocks in met] == [16] * 4
    assert sorted(block for blocks in met for block in blocks) == list(range(64))


@settings(deadline=None, max_examples=examples(300))
@given(st.data())
def test_slices_of_lanes_that_are_repeated_serve_each_visit_once(data: st.DataObject) -> None:
    """A slice may begin in the middle of the lanes, and the next turn begins there again."""
    draw = data.draw
    order: Order = BlockShuffled(
        Sequential(draw(st.integers(4, 60))),
        0,
        draw(st.integers(1, 5)),
        draw(st.integers(1, 3)),
        draw(st.integers(2, 6)),
        draw(st.booleans()),
    )
    for _ in range(draw(st.integers(1, 2))):
        start = draw(st.integers(0, order.size - 1))
        order = Sliced(order, start, 1, draw(st.integers(1, order.size - start)))
    times = draw(st.integers(2, 4))
    order = Repeated(order, times)
    plan = BatchPlan(order, draw(st.integers(1, order.size)), None, "pad")
    for epoch in range(2):
        steps = range(epoch * plan.steps_per_epoch, (epoch + 1) * plan.steps_per_epoch)
        visits = plan.visits_of(steps, np.arange(plan.batch_size_of(0)))
        alone = [plan.visits(step) for step in steps]
        np.testing.assert_array_equal(visits.rows, np.concatenate([step.rows for step in alone]))
        there = visits.rows >= 0
        pairs = set(zip(visits.rows[there].tolist(), visits.epochs[there].tolist(), strict=True))
        assert len(pairs) == there.sum() == order.size
