"""Mixtures of orders: exact shares in every block, each part in its own order and epochs, any position at once."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fractions import Fraction
from itertools import islice
from math import gcd
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from loadax import seeds
from loadax.errors import ArgumentError, ScheduleError
from loadax.plan import mix as module
from loadax.plan.batches import BatchPlan
from loadax.plan.find import find
from loadax.plan.mix import ENDLESS, Mixed, Segment, Stop, whole_weights
from loadax.plan.sequential import Sequential
from loadax.plan.shuffle import Shuffled
from loadax.plan.slice import Sliced
from loadax.protocols import Order
from tests.laws.chain_verbs import draws, end_of
from tests.limits import HANG
from tests.plan.even_patterns import even_block


def mixed(
    sizes: list[int],
    *segments: tuple[int, tuple[int, ...]],
    seed: int = 0,
    stop: Stop = "never",
    version: int = 1,
) -> Mixed:
    # Every third part is no plain shuffle of a source, and every fourth has a seed that no word holds.
    parts: list[Order] = [
        Shuffled(
            Sliced(Sequential(size), 0, 1, size) if number % 3 == 2 else Sequential(size),
            number - (number % 4 == 3) * 10**30,
        )
        for number, size in enumerate(sizes)
    ]
    names = tuple("abcdefgh"[: len(sizes)])
    scheduled = tuple(Segment(*each) for each in segments)
    return Mixed(tuple(parts), tuple(sizes), names, scheduled, seed, stop, version=version)


def walk(order: Mixed, positions: int) -> list[tuple[int, int, int]]:
    """(part, row of that part, epoch of that part) at the first positions."""
    visits = order.visits(np.zeros(positions, np.int64), np.arange(positions))
    ends = np.cumsum(order.rows)
    part = np.searchsorted(ends, visits.rows, side="right")
    return list(
        zip(part.tolist(), (visits.rows - (ends - order.rows)[part]).tolist(), visits.epochs.tolist(), strict=True)
    )


def size_unless_refused(order: Mixed) -> float:
    """Its size; infinity for a mixture that is refused because it would not end."""
    try:
        return order.size
    except ArgumentError:
        return float("inf")


def in_lowest_terms(weights: list[int]) -> tuple[int, ...]:
    return tuple(weight // gcd(*weights) for weight in weights)


@st.composite
def mixtures(choose: st.DrawFn) -> Mixed:
    count = choose(st.integers(1, 4))
    weights = st.lists(st.integers(0, 5), min_size=count, max_size=count).filter(any).map(in_lowest_terms)
    starts = [0, *sorted(choose(st.sets(st.integers(1, 60), max_size=3)))]
    sizes = [choose(st.integers(1, 20)) for _ in range(count)]
    segments = ((start, choose(weights)) for start in starts)
    return mixed(sizes, *segments, seed=choose(st.integers(-2, 2)), version=choose(st.sampled_from([1, 2, 3])))


@settings(deadline=None)
@given(mixtures())
def test_draws_and_ends_of_epochs_are_those_of_a_list(order: Mixed) -> None:
    segments = {segment.start: segment.weights for segment in order.segments}
    listed = list(islice(draws(segments, order.seed, order.version), 300))
    rows, counts = [np.empty(0, np.int64)] * len(order.parts), [0] * len(order.parts)
    for position, (part, row, epoch) in enumerate(walk(order, 120)):
        size = order.parts[part].size
        if counts[part] % size == 0:
            rows[part] = order.parts[part].visits(np.full(size, epoch), np.arange(size)).rows
        assert (part, epoch * size + counts[part] % size) == listed[position]
        assert row == rows[part][counts[part] % size]
        assert order.counts(position).tolist() == counts
        assert order.positions_of_draws(np.array([part]), np.array([counts[part]])).tolist() == [position]
        counts[part] += 1
    stops: list[Stop] = ["first", "all"]
    for stop in stops:
        try:
            end = end_of(iter(listed), [part.size for part in order.parts], stop)
        except AssertionError:  # later, or never
            assert size_unless_refused(replace(order, stop=stop)) >= 300
        else:
            assert replace(order, stop=stop).size == end
    assert order.size == ENDLESS


@settings(deadline=None)
@given(mixtures(), st.integers(1, 100))
def test_what_is_scheduled_later_changes_nothing_before(order: Mixed, changed: int) -> None:
    other = tuple(range(1, len(order.parts) + 1))
    future = mixed(
        list(order.rows),
        *(each for each in order.segments if each.start < changed),
        (changed, other),
        seed=order.seed,
        version=order.version,
    )
    assert walk(future, changed) == walk(order, changed)
    assert future.until(0, changed).describe() == order.until(0, changed).describe()
    # Each part goes on where it was.
    assert future.counts(changed).tolist() == order.counts(changed).tolist()


@settings(deadline=None)
@given(mixtures(), st.integers(1, 60), st.integers(0, 2))
def test_schedule_before_a_position_of_an_epoch_determines_it(order: Mixed, position: int, epoch: int) -> None:
    finite = replace(order, stop="first")
    past = finite.until(epoch, position)
    assert finite.until(0, 0).segments == finite.segments[:1]
    epochs = np.full(position, epoch)
    assert past.begin(epoch) == finite.begin(epoch)
    expected = finite.visits(epochs, np.arange(position))
    assert [values.tolist() for values in past.visits(epochs, np.arange(position))] == [
        values.tolist() for values in expected
    ]


def test_the_turns_are_random_and_follow_the_seed() -> None:
    weights = (0, (10, 10))
    one, again, other = (mixed([10**6, 10**6], weights, seed=seed) for seed in (0, 0, 1))
    parts = [part for part, _, _ in walk(one, 4000)]
    assert parts == [part for part, _, _ in walk(again, 4000)] != [part for part, _, _ in walk(other, 4000)]
    blocks = {tuple(parts[start : start + 20]) for start in range(0, 4000, 20)}
    assert len(blocks) > 30  # of 64 patterns
    following = np.mean(np.diff(parts) != 0)
    assert 0.45 < following < 0.6  # neither runs nor strict alternation


def test_a_mixture_of_large_sources_is_computed_like_any_other() -> None:
    order = mixed([10**9 + part for part in range(8)], (0, tuple(range(1, 9))), stop="first")
    rows = BatchPlan(order, 4096).visits(123_456).rows
    assert len(set(rows.tolist())) == 4096
    assert rows.max() < sum(order.rows)


def test_mixture_golden_values() -> None:
    """The order is a promise: a run that is resumed with another release of loadax goes on with the same rows."""
    parts, rows, epochs = zip(*walk(mixed([5, 4, 9], (0, (1, 2, 3)), (7, (3, 0, 1)), seed=4), 14), strict=True)
    assert parts == (0, 2, 2, 2, 1, 1, 2, 0, 0, 0, 2, 2, 0, 0)
    assert rows == (2, 6, 7, 5, 1, 0, 1, 0, 1, 3, 4, 2, 4, 2)
    assert epochs == (0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1)


def test_weights_by_step_wait_for_a_batch_size() -> None:
    order = Mixed(
        (Sequential(50), Sequential(50)),
        (50, 50),
        ("a", "b"),
        (Segment(0, (1, 0)), Segment(3, (0, 1))),
        0,
        "first",
        True,
    )
    with pytest.raises(
        ScheduleError, match=r"scheduled by step.*pass it to a Dataloader as it is, without another verb after"
    ):
        _ = order.size
    with pytest.raises(TypeError):
        _ = Sliced(order, 0, 1, 3).parent.size
    assert order.at_positions([(0, 4)], 1).segments == (Segment(0, (1, 0)), Segment(12, (0, 1)))
    visits: Any = order.at_positions([(0, 4)], 1).visits(np.zeros(20, np.int64), np.arange(20))
    assert visits.rows.tolist() == [*range(12), *range(50, 58)]
    assert order.at_positions([(0, 40)], 1).size == 50  # what is scheduled later than the end never comes
    with pytest.raises(ArgumentError, match="from step 3 on, which is example 120, but an epoch has only 50 examples"):
        order.at_positions([(0, 40)], 2)


def test_weights_by_step_change_at_the_positions_of_a_batch_size_schedule() -> None:
    sizes = {0: 4, 2: 6, 5: 1}
    order = replace(mixed([50, 50], *((start, (1, 1)) for start in (0, 1, 2, 4, 7))), by_step=True)
    known = order.at_positions(list(sizes.items()), 1)
    of_step = [4, 4, 6, 6, 6, 1, 1]
    assert [segment.start for segment in known.segments] == [sum(of_step[:step]) for step in (0, 1, 2, 4, 7)]


@pytest.mark.parametrize("rows", [3, 4])
def test_last_weights_by_step_reach_a_whole_batch_of_a_run_of_epochs(rows: int) -> None:
    """An epoch of 12 rows of the first part, and then all rows of the second."""
    order = replace(mixed([50, rows], (0, (1, 0)), (3, (0, 1)), stop="first"), by_step=True)
    if rows == 4:
        assert order.at_positions([(0, 4)], 2).size == 16
        return
    with pytest.raises(ArgumentError, match="from step 3 on, which is example 12, but an epoch has only 15 examples"):
        order.at_positions([(0, 4)], 2)


@pytest.mark.parametrize("stop", ["never", "first"])
def test_a_slice_of_what_never_ends_has_any_number_of_epochs(stop: Stop) -> None:
    endless = mixed([5, 7], (0, (1, 2)), (4, (2, 1)))
    order = Sliced(
        endless if stop == "never" else Mixed((endless,), (12,), ("only",), (Segment(0, (1,)),), 0, stop), 0, 1, 6
    )
    met = []
    for epoch in (0, 1, 2, 4, 8, (1 << 21) - 1):
        visits = order.visits(np.full(6, epoch), np.arange(6))
        assert (visits.epochs >= 0).all()
        assert set(visits.rows.tolist()) <= set(range(12))
        found = find(BatchPlan(order, 6, None), int(visits.rows[3]), range(epoch, epoch + 1))
        assert (epoch, 3) in found
        met.append(tuple(visits.rows.tolist()))
    assert len(set(met)) == len(met)


def test_golden_epochs_of_an_endless_mixture() -> None:
    endless = mixed([50, 70], (0, (1, 2)), (4, (2, 1)), version=3)
    golden = {
        1: [2, 51, 0, 56, 9, 15],
        2: [45, 88, 62, 48, 44, 29],
        1 << 21: endless.visits(np.zeros(6, np.int64), np.arange(6)).rows.tolist(),  # begins again
    }
    assert {epoch: endless.visits(np.full(6, epoch), np.arange(6)).rows.tolist() for epoch in golden} == golden


def test_last_position_of_a_window_is_found_in_a_mixture_of_mixtures() -> None:
    inner = mixed([5, 7], (0, (1, 2)), stop="first", version=3)
    order = Mixed((inner, Sequential(20)), (12, 20), ("inner", "other"), (Segment(0, (1, 1)),), 0, "all", version=3)
    rows = order.visits(np.zeros(order.size, np.int64), np.arange(order.size)).rows
    for position in range(order.size):
        for window in ((0, position + 1), (position, position + 1)):
            hits = order.inverse(rows[[position]], np.zeros(1, np.int64), window)
            assert position in hits.positions.tolist()


def shares_by_place(order: Mixed, blocks: int, size: int) -> Any:
    """The share of the last part at every place of a block."""
    part, _ = order.draws(np.arange(blocks * size))
    return (part.reshape(blocks, size) == len(order.parts) - 1).mean(axis=0)


@pytest.mark.parametrize("weights", [(9, 1), (7, 3), (1, 1), (50, 13, 1)])
@pytest.mark.parametrize("version", [2, 3])
def test_every_place_of_a_block_has_its_share_from_version_2_on(weights: tuple[int, ...], version: int) -> None:
    blocks, size = 40_000, sum(weights)
    sizes = [10**9] * len(weights)
    share = weights[-1] / size
    limit = 5 * (share * (1 - share) / blocks) ** 0.5
    assert abs(shares_by_place(mixed(sizes, (0, weights), version=version), blocks, size) - share).max() < limit
    if size > 2:
        assert abs(shares_by_place(mixed(sizes, (0, weights)), blocks, size) - share).max() > limit


def test_versions_are_told_apart() -> None:
    orders = [mixed([9, 9], (0, (2, 1)), version=version, stop="first") for version in (1, 2, 3)]
    assert [order.describe()[0][-1] for order in orders] == [1, 3, 4]
    assert [replace(order, stop="never").describe()[0][-1] for order in orders] == [2, 3, 4]
    texts = [order.text()[0] for order in orders]
    assert texts[0].startswith("mix(seed=0, stop='first', version=1) ")
    assert texts[1].startswith("mix(seed=0, stop='first', version=2) ")
    assert texts[2].startswith("mix(seed=0, stop='first') ")


def test_golden_version_2() -> None:
    order = mixed([9, 9, 9], (0, (3, 2, 1)), (10, (1, 1, 1)), version=2)
    assert [part for part, _, _ in walk(order, 24)] == [
        *(0, 0, 2, 1, 1, 0, 1, 0, 0, 2, 0, 1, 2, 0, 1, 2, 1, 0, 2, 0, 1, 2, 0, 1),
    ]


def test_golden_version_3() -> None:
    order = mixed([9, 9, 9], (0, (3, 2, 1)), (10, (1, 1, 1)), version=3)
    assert [part for part, _, _ in walk(order, 24)] == [
        0,
        1,
        0,
        1,
        0,
        2,
        0,
        1,
        0,
        1,
        1,
        0,
        2,
        2,
        0,
        1,
        2,
        0,
        1,
        1,
        0,
        2,
        0,
        1,
    ]
    large = mixed([10**9] * 4, (0, (70_001, 30_000, 9, 0)), version=3)
    parts, drawn = large.draws(np.arange(10**6, 10**6 + 20))
    assert parts.tolist() == [0, 0, 1, 0, 0, 1, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 1, 0, 0, 1]
    assert drawn[:4].tolist() == [699_940, 699_941, 299_970, 699_942]


@pytest.mark.parametrize("version", [1, 2])
def test_large_blocks_of_early_versions_have_few_patterns(version: int) -> None:
    weights = (30_001, 20_002, 15_533)
    order = mixed([10**9] * 3, (0, weights), version=version)
    for block in range(6):
        first = block * sum(weights) + 40_000
        parts, drawn = order.draws(np.arange(first, first + 8))
        listed = list(islice(draws({0: weights}, order.seed, version, first), 8))
        assert list(zip(parts.tolist(), drawn.tolist(), strict=True)) == listed


def weights_of(random: np.random.Generator) -> tuple[int, ...]:
    """Weights of a few or of many parts, alike or not, with a sum of up to some 20,000."""
    parts, most = int(random.integers(1, 40)), int(random.choice([3, 30, 1000]))
    weights = random.integers(0, most, parts)
    weights[random.integers(parts)] += int(random.choice([1, 200, 5000]))
    return tuple(weights.tolist())


@pytest.mark.parametrize("number", range(17))
def test_blocks_of_version_3_are_those_of_the_recursion(number: int) -> None:
    random = np.random.default_rng(number)
    # The last one is of the largest blocks that rotate one of a few patterns.
    weights = weights_of(random) if number < 16 else (4000, 96)
    size, block = sum(weights), int(random.integers(5))
    order = mixed([10**9] * len(weights), (0, weights), seed=number, version=3)
    parts, drawn = order.draws(np.arange(block * size, (block + 1) * size))
    listed = even_block(number, weights, block)
    assert parts.tolist() == listed
    for part, weight in enumerate(weights):
        own = np.flatnonzero(parts == part)
        assert drawn[own].tolist() == [block * weight + rank for rank in range(weight)]
        found = order.positions_of_draws(np.full(weight, part), drawn[own])
        assert found.tolist() == (block * size + own).tolist()
    begun = int(random.integers(size))
    counted = [listed[:begun].count(part) + block * weight for part, weight in enumerate(weights)]
    assert order.counts(block * size + begun).tolist() == counted


LARGE = [
    (1, 10**13, 5),
    (1, (1 << 44) - 3, 2),
    (70_001_000, 30_000_001),
    tuple(range(1, 300)),
    (1 << 43, 1, (1 << 43) - 1),
]


@pytest.mark.parametrize("weights", LARGE)
def test_every_run_of_positions_has_nearly_its_share_in_version_3(weights: tuple[int, ...]) -> None:
    """With Python's integers, anywhere in a run of any length: within 7 rows."""
    order, size = mixed([1 << 61] * len(weights), (0, weights), version=3), sum(weights)
    far = min((1 << 60) // size, 10**6) * size
    for start in (0, max(size - 10_000, 0), 3 * size + 12_345, far + size // 3):
        parts, drawn = order.draws(np.arange(start, start + 20_000))
        assert (order.counts(start + 20_000) - order.counts(start)).tolist() == np.bincount(
            parts, minlength=len(weights)
        ).tolist()
        assert order.positions_of_draws(parts, drawn).tolist() == list(range(start, start + 20_000))
        for part in {*parts[:20].tolist()}:
            counted = np.concatenate([[0], np.cumsum(parts == part)])
            assert np.ptp(counted - np.arange(20_001) * (weights[part] / size)) < 7
            expected = [start * weights[part] // size, (start + 20_000) * weights[part] // size]
            assert abs(order.counts(start)[part] - expected[0]) < 7
            assert abs(order.counts(start + 20_000)[part] - expected[1]) < 7


def test_places_of_large_blocks_have_their_share_in_version_3() -> None:
    """A place in the batch, which may be a device, is not of one dataset for many steps."""
    order = mixed([10**12] * 2, (0, (7_000_001, 3_000_000)), version=3)
    parts, _ = order.draws(np.arange(400_000))
    assert abs(parts.reshape(-1, 10).mean(axis=0) - 0.3).max() < 0.02
    assert abs(parts.reshape(-1, 64).mean(axis=0) - 0.3).max() < 0.04


def test_block_beyond_all_positions_is_never_met() -> None:
    order = mixed([1 << 40, 1 << 40], (0, (1, (1 << 44) - 1)), version=3)
    assert order.positions_of_draws(np.array([0, 1]), np.array([1 << 30, 1 << 30])).tolist()[0] == -1
    assert replace(order, stop="first").size < 1 << 41
    with pytest.raises(ArgumentError, match="stop='all': the weights never draw all of 'a'"):
        _ = replace(order, stop="all").size


def test_all_of_an_endless_part_is_never_drawn() -> None:
    endless = mixed([5, 7], (0, (1, 2)))
    with pytest.raises(ArgumentError, match="stop='all': the weights never draw all of 'only', or it is endless"):
        _ = Mixed((endless,), (12,), ("only",), (Segment(0, (1,)),), 0, "all").size


@pytest.mark.parametrize("version", [1, 2, 3])
def test_positions_of_large_blocks_do_not_depend_on_what_was_read_before(version: int) -> None:
    weights = ((0, (30_001, 20_002, 15_533)), (100_000, (1, 40_000, 25_535)), (100_300, (65_535, 0, 1)))
    order = mixed([10**6] * 3, *weights, version=version)
    module.patterns_of.cache_clear()
    some = [order.draws(np.arange(start, start + 50)) for start in (99_980, 70_000, 5, 240_000, 100_290)]
    module.patterns_of.cache_clear()
    parts, draws = order.draws(np.arange(241_000))
    for start, found in zip((99_980, 70_000, 5, 240_000, 100_290), some, strict=True):
        assert [values.tolist() for values in found] == [
            values[start : start + 50].tolist() for values in (parts, draws)
        ]
    for part in range(3):
        own = np.flatnonzero(parts == part)
        assert draws[own].tolist() == list(range(len(own)))  # each part's rows in order, none left out
        assert order.positions_of_draws(np.full(len(own), part), draws[own]).tolist() == own.tolist()
    for position in (0, 1, 40_000, 99_999, 100_000, 100_299, 100_300, 240_000):
        assert order.counts(position).tolist() == np.bincount(parts[:position], minlength=3).tolist()


def test_schedule_of_decimal_weights_computes_few_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block of decimal weights has 65,536 slots, of which a short segment needs as many as it is long."""
    computed = []

    def counting(function: Any) -> Any:
        def count(index: Any, *arguments: Any) -> Any:
            computed.append(np.size(index))
            return function(index, *arguments)

        return count

    for name in ("permute", "permute_by"):
        monkeypatch.setattr(seeds, name, counting(getattr(seeds, name)))
    segments = [(1000 * index, (30_000 + index, 20_000, 15_536 - index)) for index in range(200)]
    order = mixed([10**6] * 3, *segments, stop="first")
    assert order.counts(199_500).sum() == 199_500
    assert sum(computed) <= 200 * 1000
    order.visits(np.zeros(256, np.int64), np.arange(150_900, 151_156))
    assert sum(computed) <= 200 * 1000 + 4096


def test_pattern_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    order = mixed([10**6] * 3, (0, (300, 200, 155)), version=2)
    parts, drawn = order.draws(np.arange(2000))
    assert order.positions_of_draws(parts, drawn).tolist() == list(range(2000))
    monkeypatch.setattr(seeds, "permute", lambda *_: pytest.fail("the patterns are known"))
    assert order.positions_of_draws(parts, drawn).tolist() == list(range(2000))
    assert order.draws(np.arange(2000))[1].tolist() == drawn.tolist()


def test_mixture_of_many_parts_needs_one_lookup_for_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    lookups, slots = [], module.Patterns.slots

    def counted(*given: Any) -> Any:
        lookups.append(given)
        return slots(*given)

    monkeypatch.setattr(module.Patterns, "slots", counted)
    assert Mixed((Sequential(10),) * 500, (10,) * 500, ("a",) * 500, (Segment(0, (1,) * 500),), 0, "first").size > 4500
    assert len(lookups) == 1


def test_threads_fill_one_table_of_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads make the table at the same time: what either fills in is there for both."""
    patterns, alone = (module.Patterns(0, (300, 500, 224)) for _ in range(2))
    every, repeat, both = np.arange(patterns.count), np.repeat, threading.Barrier(2, timeout=HANG)

    def repeated(*args: Any, **options: Any) -> Any:
        made = repeat(*args, **options)
        both.wait()
        return made

    def before(asked: module.Patterns, chosen: Any) -> list[int]:
        part, slot = np.ones_like(chosen), np.full_like(chosen, 100)
        return [int(count) for count in asked.before(chosen, part, slot)]

    with monkeypatch.context() as patch, ThreadPoolExecutor(2) as threads:
        patch.setattr(np, "repeat", repeated)
        list(threads.map(lambda first: before(patterns, every[first::2]), range(2)))
    assert before(patterns, every) == before(alone, every)


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=20).filter(any), st.integers(50, 5000))
def test_rounded_weights_have_the_largest_remainders(weights: list[int], most: int) -> None:
    whole = whole_weights(weights, most)
    total = sum(weights)
    if total // gcd(*weights) <= most:
        assert [part * total for part in whole] == [weight * sum(whole) for weight in weights]
        return
    exact = [Fraction(weight * most, total) for weight in weights]
    lifted = [0 < share < 1 for share in exact]  # to 1, so others may have less
    assert all(part == 0 for part, weight in zip(whole, weights, strict=True) if not weight)
    assert all(part >= 1 for part, weight in zip(whole, weights, strict=True) if weight)
    if any(lifted):
        return
    assert sum(whole) == most
    assert all(abs(part - share) < 1 for part, share in zip(whole, exact, strict=True))
    up = [share % 1 for part, share in zip(whole, exact, strict=True) if part > share]
    down = [share % 1 for part, share in zip(whole, exact, strict=True) if part <= share and share % 1]
    assert not up or not down or min(up) >= max(down)
