"""Steps that are left out: numbers as a list gives them."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from loadax.core.intervals import merge
from loadax.errors import ArgumentError
from loadax.loader.skip import step_ranges
from loadax.plan.batches import BatchPlan, Remainder
from loadax.plan.sequential import Sequential
from loadax.plan.shuffle import Shuffled
from loadax.plan.skips import Skips

RANGES = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)).map(lambda each: (each[0], sum(each))), max_size=6)


@given(RANGES)
def test_joined_ranges_are_the_same_numbers_with_gaps_between(ranges: list[tuple[int, int]]) -> None:
    found = merge(ranges)
    assert [number for start, stop in found for number in range(start, stop)] == sorted(
        {number for start, stop in ranges for number in range(start, stop)}
    )
    assert all(one[1] < other[0] for one, other in pairwise(found))


@given(RANGES, RANGES)
def test_numbers_are_those_of_a_list(ranges: list[tuple[int, int]], more: list[tuple[int, int]]) -> None:
    skips = Skips(merge(ranges))
    skipped = {number for start, stop in ranges for number in range(start, stop)}
    left = [number for number in range(80) if number not in skipped]
    assert skips.count == len(skipped)
    assert skips.whole_steps(np.arange(len(left))).tolist() == left
    for number in range(80):
        assert skips.left(number) == sum(each < number for each in left)
        assert skips.holds(number) == (number in skipped)
        assert skips.before(number) == Skips(merge((each, each + 1) for each in skipped if each < number))
    both = skipped | {number for start, stop in more for number in range(start, stop)}
    assert skips.and_also(more) == Skips(merge((each, each + 1) for each in both))


@settings(deadline=None)
@given(
    st.integers(1, 60),
    st.lists(st.tuples(st.integers(1, 8), st.integers(1, 12)), max_size=2),
    st.integers(1, 3),
    st.sampled_from(["drop", "pad"]),
    RANGES,
    st.data(),
)
def test_a_plan_that_skips_is_the_list_of_the_steps_that_are_left(
    rows: int,
    schedule: list[tuple[int, int]],
    epochs: int,
    remainder: Remainder,
    ranges: list[tuple[int, int]],
    data: st.DataObject,
) -> None:
    order = Shuffled(Sequential(rows), 1)
    whole: Any = BatchPlan(order, min(4, rows), epochs, remainder)
    if schedule and schedule[0][0] < whole.num_steps and (remainder == "pad" or schedule[0][1] <= rows):
        whole = BatchPlan(order, ((0, min(4, rows)), schedule[0]), epochs, remainder)
    skips = Skips(merge((start, min(stop, whole.num_steps)) for start, stop in ranges))
    plan = BatchPlan(order, whole.batch_size, epochs, remainder, skips)
    left = [number for number in range(whole.num_steps) if not skips.holds(number)]
    assert plan.num_steps == len(left)
    for step, number in enumerate(left):
        assert plan.visits(step).rows.tolist() == whole.visits(number).rows.tolist()
        assert plan.position_of_step(step) == whole.position_of_step(number)
        assert plan.valid(step) == whole.valid(number)
        assert step in plan.epoch_steps(whole.position_of_step(number)[0])
        segment, end = plan.segment_of(step)
        assert segment == whole.segment_of(number)[0]
        assert end is not None
        assert {whole.segment_of(each)[0] for each in left[step:end]} == {segment}
        assert end == len(left) or whole.segment_of(left[end])[0] != segment
    assert sum(len(plan.epoch_steps(epoch)) for epoch in range(epochs)) == len(left)
    assert plan.first_steps == [
        step for step in range(len(left)) if step == 0 or plan.segment_of(step)[0] != plan.segment_of(step - 1)[0]
    ]
    if left:
        first = data.draw(st.integers(0, len(left) - 1))
        stop = plan.segment_of(first)[1]
        steps = range(first, data.draw(st.integers(first + 1, stop or first + 1)))
        positions = np.arange(plan.segment_of(first)[0].batch_size)
        together = plan.visits_of(steps, positions).rows.tolist()
        assert together == [row for step in steps for row in plan.visits(step).rows.tolist()]


@pytest.mark.parametrize(
    ("steps", "wanted"),
    [
        (0, [0]),
        (np.int64(9), [9]),
        (range(2, 5), [2, 3, 4]),
        (range(0, 10, 4), [0, 4, 8]),
        (range(4, 1, -1), [2, 3, 4]),
        (range(3, 3), []),
        (slice(2, 4), [2, 3]),
        (slice(None, 2), [0, 1]),
        (slice(8, None), [8, 9]),
        (slice(-2, None), [8, 9]),
        (slice(None, None, 5), [0, 5]),
        ([1, range(4, 6), 9], [1, 4, 5, 9]),
        ({3}, [3]),
        (np.array([1, 2]), [1, 2]),
    ],
)
def test_steps_are_named_by_numbers_ranges_slices_and_lists_of_these(steps: Any, wanted: list[int]) -> None:
    named = [step for start, stop in step_ranges(steps, 10) for step in range(start, stop)]
    assert sorted(named) == wanted


@pytest.mark.parametrize(
    ("steps", "num_steps", "message"),
    [
        (-1, 10, "step -1 can't be skipped: steps are at least 0 and below 10"),
        (10, 10, "step 10 can't be skipped: steps are at least 0 and below 10"),
        (range(8, 12), 10, "step 11 can't be skipped"),
        (-1, None, "step -1 can't be skipped: steps are at least 0$"),
        (slice(0, 11), 10, r"steps=slice\(0, 11, None\): the run has only 10 steps; pass 10 or less"),
        (slice(2, None), None, r"steps=slice\(2, None, None\): the run is endless; pass a stop"),
        (slice(-2, 4), None, r"steps=slice\(-2, 4, None\): the run is endless; pass a stop, and no negative numbers"),
    ],
)
def test_steps_that_are_not_in_the_run_are_refused(steps: Any, num_steps: int | None, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        step_ranges(steps, num_steps)


def test_an_endless_run_takes_slices_with_a_stop() -> None:
    assert step_ranges(slice(0, 3), None) == [(0, 3)]
    assert step_ranges(range(1, 3), None) == [(1, 3)]
