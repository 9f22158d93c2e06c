"""Bucketed orders and their plans, against NumPy."""

from typing import Any

import numpy as np
import pytest

from loadax import concat, from_arrays, mix
from loadax.errors import ArgumentError
from loadax.plan.buckets import Bucketed, BucketPlan, interleaved, split as split_or_none
from loadax.plan.find import find
from loadax.plan.skips import Skips
from loadax.plan.subset import only_rows

ROWS, BOUNDS, SIZES = 1000, (32, 64, 512), (64, 32, 16)
LENGTHS = np.random.default_rng(0).geometric(1 / 40, ROWS)
BUCKET = np.searchsorted(BOUNDS, LENGTHS)


def split(*arguments: Any) -> list[Any]:
    return list(split_or_none(*arguments))


def order_of(remainder: Any) -> Any:
    parent = from_arrays(np.arange(ROWS)).shuffle(seed=3).order
    parts = tuple(only_rows(parent, np.flatnonzero(bucket == BUCKET), ("bucket", bucket)) for bucket in range(3))
    return Bucketed(parent, parts, BOUNDS, SIZES, remainder)


def test_steps_of_buckets_are_spread_in_proportion() -> None:
    generator = np.random.default_rng(1)
    for _ in range(300):
        steps = [1, *generator.integers(0, 60, generator.integers(1, 9)).tolist()]
        order = interleaved(steps)
        assert np.bincount(order, minlength=len(steps)).tolist() == steps
        for bucket, count in enumerate(steps):
            exact = np.arange(1, len(order) + 1) * count / len(order)
            assert np.abs(np.cumsum(order == bucket) - exact).max() < 2


@pytest.mark.parametrize("remainder", ["drop", "pad"])
def test_an_epoch_has_each_row_once_in_steps_of_one_bucket(remainder: Any) -> None:
    order = order_of(remainder)
    for epoch in (0, 1, 7):
        rows = order.visits(np.full(order.size, epoch), np.arange(order.size)).rows
        assert len(np.unique(rows)) == order.size
        for step, bucket in enumerate(order.bucket_of):
            assert (BUCKET[rows[order.starts[step] : order.starts[step + 1]]] == bucket).all()
        counts = np.bincount(BUCKET[rows], minlength=3)
        whole = np.bincount(BUCKET, minlength=3)
        assert counts.tolist() == (whole if remainder == "pad" else whole // SIZES * SIZES).tolist()
        hits = order.inverse(np.arange(ROWS), np.full(ROWS, epoch), (0, order.size))
        assert len(hits.asked) == order.size
        assert (rows[hits.positions] == hits.asked).all()


@pytest.mark.parametrize("remainder", ["drop", "pad"])
def test_the_plan_cuts_the_order_into_its_steps(remainder: Any) -> None:
    order = order_of(remainder)
    plan = BucketPlan(order, 3)
    for step in range(plan.end):
        epoch, position = plan.position_of_step(step)
        rows = plan.visits(step).rows
        assert len(rows) == plan.batch_size_of(step)
        valid = rows[rows >= 0]
        assert len(valid) == plan.valid(step)
        expected = order.visits(np.full(len(valid), epoch), position + np.arange(len(valid))).rows
        assert np.array_equal(valid, expected)
        assert plan.step_at(epoch, position) == (step, 0)
    assert {plan.batch_size_of(step) for step in plan.first_steps} == set(SIZES)


def test_remainder_error_takes_buckets_that_divide_and_names_one_that_does_not() -> None:
    parent = from_arrays(np.arange(96)).shuffle(seed=3).order
    halves = [
        only_rows(parent, np.arange(start, start + count), ("bucket", start)) for start, count in ((0, 64), (64, 32))
    ]
    plan = BucketPlan(Bucketed(parent, tuple(halves), (8, 16), (16, 8), "error"))
    assert (plan.num_steps, plan.left_over(0)) == (8, 0)
    assert sorted(np.concatenate([plan.visits(step).rows for step in range(8)]).tolist()) == list(range(96))
    with pytest.raises(
        ArgumentError, match=r"the bucket of length 16 has 32 rows, of which 8 are left over after batches of 12"
    ):
        BucketPlan(Bucketed(parent, tuple(halves), (8, 16), (16, 12), "error"))


@pytest.mark.parametrize("skips", [(), ((0, 3), (5, 6))])
@pytest.mark.parametrize("remainder", ["drop", "pad"])
@pytest.mark.parametrize("joined", [False, True])
def test_find_is_the_inverse_of_steps_that_are_sorted_by_lane(joined: bool, remainder: Any, skips: Any) -> None:
    data = from_arrays(np.arange(ROWS)).shuffle(seed=3, block=4, window=2, lanes=4)
    data = concat([data, data]) if joined else data
    bucket = np.tile(BUCKET, 2) if joined else BUCKET
    parts = tuple(only_rows(data.order, np.flatnonzero(bucket == number), ("bucket", number)) for number in range(3))
    plan = BucketPlan(Bucketed(data.order, parts, BOUNDS, SIZES, remainder), 2, Skips(skips))
    steps = range(plan.end)
    rows = [plan.visits(step).rows for step in steps]
    for row in range(0, len(bucket), 23):
        met = [(step, position) for step in steps for position in np.flatnonzero(rows[step] == row).tolist()]
        assert find(plan, row, steps) == met
        assert find(plan, row, steps[5:20]) == [each for each in met if 5 <= each[0] < 20]


@pytest.mark.parametrize("skips", [(), ((0, 20),), ((3, 9), (30, 31)), ((1, 90),)], ids=str)
@pytest.mark.parametrize("num_epochs", [1, 3, None])
def test_first_steps_and_steps_of_one_bucket_are_those_of_a_list(num_epochs: int | None, skips: Any) -> None:
    order = order_of("drop")
    size = len(order.bucket_of)
    last = size * (num_epochs or 4)
    skipped = [step for low, high in skips for step in range(low, min(high, last))]
    if len(skipped) == last:
        return
    plan = BucketPlan(order, num_epochs, Skips(tuple((low, min(high, last)) for low, high in skips)))
    whole = [step for step in range(last) if step not in skipped]
    buckets = [(step // size, int(order.bucket_of[step % size])) for step in whole]
    first = {bucket: index for index, (_, bucket) in reversed([*enumerate(buckets)])}
    assert plan.first_steps == sorted(first.values())
    for step in range(0, len(whole), 5):
        assert plan.alike(step) == [index for index, bucket in enumerate(buckets) if bucket == buckets[step]]


def test_a_bucket_with_rows_left_over_is_an_error() -> None:
    with pytest.raises(ArgumentError, match=r"bucket of length 32 has \d+ rows, of which \d+ are left over"):
        BucketPlan(order_of("error"), 1)


def test_buckets_that_fill_no_batch_are_an_error() -> None:
    order = order_of("drop")
    with pytest.raises(ArgumentError, match="no bucket fills a batch"):
        BucketPlan(Bucketed(order.parent, order.buckets, BOUNDS, (5000,) * 3, "drop"), 1)


def mixture_of(sizes: Any, weights: Any, stop: Any, **options: Any) -> Any:
    parts = [from_arrays(np.arange(size)) for size in sizes]
    parts = [part.shuffle(seed=index) if index % 2 else part for index, part in enumerate(parts)]
    return mix(parts, weights, stop=stop, **options).order


@pytest.mark.parametrize("stop", ["first", "all"])
@pytest.mark.parametrize("seed", range(20))
def test_a_mixture_keeps_its_shares_in_every_bucket(stop: Any, seed: int) -> None:
    generator = np.random.default_rng(seed)
    sizes = generator.integers(30, 400, 3)
    order = mixture_of(sizes.tolist(), generator.integers(1, 9, 3).tolist(), stop, seed=seed)
    owner, bucket = np.repeat(np.arange(3), sizes), generator.integers(0, 3, sizes.sum())
    bucket[: sizes[0]] = np.minimum(bucket[: sizes[0]], 1)  # the first part has no rows in the last bucket
    parts = split(order, [np.flatnonzero(bucket == number) for number in range(3)], [("bucket", n) for n in range(3)])
    draws = order.counts(order.size)
    for epoch in range(3):
        for number, part in enumerate(parts):
            rows = part.visits(np.full(part.size, epoch), np.arange(part.size)).rows
            assert (bucket[rows] == number).all()
            own = np.bincount(owner[bucket == number], minlength=3)
            assert np.bincount(owner[rows], minlength=3).tolist() == (draws * own // sizes).tolist()
            if stop == "first":  # no dataset begins again
                again = np.bincount(rows, minlength=len(owner))[owner == np.argmin(sizes / draws)]
                assert again.max() <= 1
            elif epoch == 0:
                assert (np.bincount(rows, minlength=len(owner))[bucket == number] >= 1).all()


def test_a_schedule_of_weights_applies_to_every_bucket() -> None:
    order = mixture_of([4000, 4000], {0: [1, 0], 1000: [1, 3]}, "first")
    bucket = np.arange(8000) % 4 == 0
    parts = split(order, [np.flatnonzero(~bucket), np.flatnonzero(bucket)], [("bucket", 0), ("bucket", 1)])
    for part, share in zip(parts, (0.75, 0.25), strict=True):
        rows = part.visits(np.zeros(part.size, np.int64), np.arange(part.size)).rows
        begin = int(1000 * share)
        assert (rows[:begin] < 4000).all()
        assert 0.7 < (rows[begin:] >= 4000).mean() < 0.8
        assert abs(part.size - order.size * share) <= 2


def test_mixtures_of_mixtures_and_of_concatenations_are_split_too() -> None:
    inner = mix([from_arrays(np.arange(100)), from_arrays(np.arange(50))], [2, 1], stop="all")
    joined = concat([from_arrays(np.arange(30)), from_arrays(np.arange(60)).shuffle(seed=2)])
    order = mix([inner, joined], [1, 1], stop="first").order
    chosen = [np.arange(0, 240, 2), np.arange(1, 240, 2)]
    parts = split(order, chosen, [("bucket", 0), ("bucket", 1)])
    drawn = [part.visits(np.zeros(part.size, np.int64), np.arange(part.size)).rows for part in parts]
    assert all((rows % 2 == number).all() for number, rows in enumerate(drawn))
    assert abs(sum(map(len, drawn)) - order.size) <= 4
    hits = parts[0].inverse(drawn[0], np.zeros_like(drawn[0]), (0, parts[0].size))
    assert (drawn[0][hits.positions] == drawn[0][hits.asked]).all()
    assert set(hits.positions.tolist()) == set(range(parts[0].size))
