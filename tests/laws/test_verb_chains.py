"""Law: any chain of verbs is what the verbs do to plain lists, one after another.

The oracle below writes every epoch out as a list of visits and applies each verb to lists. It shares nothing with `loadax.plan`
but the permutations themselves, which `tests/test_seeds.py` is about.
"""

from collections.abc import Callable
from functools import cache
from itertools import chain as joined
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadax import Dataset, concat, from_arrays
from loadax.errors import ArgumentError
from loadax.seeds import derive, permute
from loadax.transforms import generator
from tests.limits import examples

pytestmark = pytest.mark.filterwarnings("ignore:split\\(")  # chains of few rows have empty parts

MOST = 150  # positions an epoch


class Visit(NamedTuple):
    row: int
    epoch: int
    value: int


Keep = Callable[[int], bool]
Epoch = Callable[[int, tuple[Keep, ...]], list[Visit]]
"""The list of an epoch, of the rows that the splits above it keep: those look at rows, so they go below shuffles."""


def shuffled(items: list[Any], key: int) -> list[Any]:
    return [items[index] for index in permutation(len(items), key)]


@cache
def permutation(size: int, key: int) -> list[int]:
    return permute(np.arange(size), size, key).tolist() if size else []


def block_shuffled(items: list[Any], key: int, block: int, window: int, lanes: int) -> list[Any]:
    blocks = [items[start : start + block] for start in range(0, len(items), block)]
    last = id(blocks[-1]) if blocks else None  # the one that may lack rows: it counts as the last of its window
    blocks = shuffled(blocks, key)
    queues = []
    lanes = min(lanes, len(blocks))
    for lane, place in enumerate(by_reversed_bits(lanes)):
        mine, queue = blocks[lane::lanes], []
        bounds = [0, *range(window - place % window, len(mine), window), len(mine)]
        for number, (start, stop) in enumerate(pairwise(bounds)):
            group = sorted(mine[start:stop], key=lambda each: id(each) == last)
            queue += shuffled(list(joined(*group)), derive(key, "window", lane, number))
        queues.append(queue)
    return [queue[turn] for turn in range(max(map(len, queues), default=0)) for queue in queues if turn < len(queue)]


def by_reversed_bits(count: int) -> list[int]:
    bits = max(0, count - 1).bit_length()
    turned = [int(f"{number:0{bits}b}"[::-1], 2) if bits else 0 for number in range(1 << bits)]
    return [number for number in turned if number < count]


class Chain(NamedTuple):
    """A dataset and its oracle."""

    dataset: Dataset
    epoch: Epoch
    maps: int
    rows: int
    splittable: bool  # no slice stands behind a shuffle
    varies: bool
    splits: int = 0  # so often was it split: each asks another question of a row
    random: bool = False  # a map draws numbers
    group_splits: int = 0


def rows(count: int, offset: int) -> Chain:
    def epoch(number: int, keep: tuple[Keep, ...]) -> list[Visit]:
        return [Visit(row, number, offset + row) for row in range(count) if all(each(row) for each in keep)]

    return Chain(from_arrays(np.arange(count, dtype=np.int64) + offset), epoch, 0, count, True, False)


def shuffle(chain: Chain, seed: int) -> Chain:
    def epoch(number: int, keep: tuple[Keep, ...]) -> list[Visit]:
        return shuffled(chain.epoch(number, keep), derive(seed, "shuffle", number))

    return chain._replace(dataset=chain.dataset.shuffle(seed), epoch=epoch, varies=True)


def shuffle_blocks(chain: Chain, seed: int, block: int, window: int, lanes: int) -> Chain:
    def epoch(number: int, keep: tuple[Keep, ...]) -> list[Visit]:
        return block_shuffled(chain.epoch(number, keep), derive(seed, "blocks", number), block, window, lanes)

    return chain._replace(dataset=chain.dataset.shuffle(seed, block=block, window=window, lanes=lanes), epoch=epoch, varies=True)


def cut(chain: Chain, start: int | None, stop: int | None, step: int | None) -> Chain:
    def epoch(number: int, keep: tuple[Keep, ...]) -> list[Visit]:
        return [visit for visit in chain.epoch(number, ())[start:stop:step] if all(each(visit.row) for each in keep)]

    return chain._replace(dataset=chain.dataset[start:stop:step], epoch=epoch, splittable=not chain.varies)


def repeat(chain: Chain, times: int) -> Chain:
    def epoch(number: int, keep: tuple[Keep, ...]) -> list[Visit]:
        return [visit for turn in range(times) for visit in chain.epoch(number * times + turn, keep)]

    return chain._replace(dataset=chain.dataset.repeat(times), epoch=epoch)


def split(chain: Chain, fraction: float, seed: int, side: int) -> Chain:
    def inside(row: int) -> bool:
        depth = [chain.splits] if chain.splits else []
        return (int(derive(seed, "split", *depth, row)) < fraction * 2**64) == (side == 0)

    def epoch(number: int, keep: tuple[Keep, ...]) -> list[Visit]:
        return chain.epoch(number, (*keep, inside))

    return chain._replace(dataset=chain.dataset.split(fraction, seed)[side], epoch=epoch, splits=chain.splits + 1)


def keep(chain: Chain, rest: int) -> Chain:
    """Those whose value leaves another rest than this; what the filter sees is epoch 0."""
    kept = {visit.row for visit in chain.epoch(0, ()) if visit.value % 3 != rest}
    if not kept:
        with pytest.raises(ArgumentError, match="keeps none of"):
            chain.dataset.filter(lambda value: value % 3 != rest)
        return chain

    def epoch(number: int, keep: tuple[Keep, ...]) -> list[Visit]:
        return chain.epoch(number, (*keep, kept.__contains__))

    return chain._replace(dataset=chain.dataset.filter(lambda value: value % 3 != rest, workers=2), epoch=epoch)


def split_groups(chain: Chain, fraction: float, seed: int, side: int) -> Chain:
    """Groups are values that leave the same rest."""
    depth = [chain.group_splits] if chain.group_splits else []

    def inside(value: int) -> bool:
        word = int(derive(0, "group", value % 7))
        return (int(derive(seed, "split_by", *depth, word)) < fraction * 2**64) == (side == 0)

    kept = {visit.row for visit in chain.epoch(0, ()) if inside(visit.value)}

    def epoch(number: int, keep: tuple[Keep, ...]) -> list[Visit]:
        return chain.epoch(number, (*keep, kept.__contains__))

    sides = chain.dataset.split_by(lambda value: value % 7, fraction, seed, workers=2)
    return chain._replace(dataset=sides[side], epoch=epoch, group_splits=chain.group_splits + 1)


def exclude(chain: Chain, gone: list[int]) -> Chain:
    def epoch(number: int, keep: tuple[Keep, ...]) -> list[Visit]:
        return chain.epoch(number, (*keep, lambda row: row not in gone))

    if not epoch(0, ()):
        with pytest.raises(ArgumentError, match="leaves none of"):
            chain.dataset.exclude(gone)
        return chain
    return chain._replace(dataset=chain.dataset.exclude(gone), epoch=epoch)


def join(one: Chain, two: Chain) -> Chain:
    def moved(keep: Keep) -> Keep:
        return lambda row: keep(row + one.rows)

    def epoch(number: int, keep: tuple[Keep, ...]) -> list[Visit]:
        second = two.epoch(number, tuple(map(moved, keep)))
        return one.epoch(number, keep) + [visit._replace(row=visit.row + one.rows) for visit in second]

    rows, maps = one.rows + two.rows, max(one.maps, two.maps)
    return Chain(
        concat([one.dataset, two.dataset]),
        epoch,
        maps,
        rows,
        one.splittable and two.splittable,
        one.varies or two.varies,
        max(one.splits, two.splits),
        one.random or two.random,
        max(one.group_splits, two.group_splits),
    )


def add(chain: Chain, number: int) -> Chain:
    def epoch(which: int, keep: tuple[Keep, ...]) -> list[Visit]:
        return [visit._replace(value=visit.value * 3 + number) for visit in chain.epoch(which, keep)]

    return chain._replace(
        dataset=chain.dataset.map_batch(lambda x: x * 3 + number, spec=np.zeros((), np.int64)), epoch=epoch, maps=chain.maps + 1
    )


def draw(chain: Chain, seed: int) -> Chain:
    def noisy(value: Any, rng: np.random.Generator) -> Any:
        return value + rng.integers(1 << 20)

    def epoch(number: int, keep: tuple[Keep, ...]) -> list[Visit]:
        return [
            visit._replace(value=int(noisy(visit.value, generator(seed, chain.maps, visit.epoch, visit.row))))
            for visit in chain.epoch(number, keep)
        ]

    mapped = chain.dataset.map(noisy, rng=True, seed=seed, spec=np.zeros((), np.int64))
    return chain._replace(dataset=mapped, epoch=epoch, maps=chain.maps + 1, random=True)


ENDS = st.none() | st.integers(-12, 30)
STEPS = st.sampled_from([None, 1, 2, 3, 7, -1, -2, -5])
SEEDS = st.integers(-2, 2)


@st.composite
def chains(choose: st.DrawFn, depth: int = 2) -> Chain:
    chain = rows(choose(st.integers(0, 24)), choose(st.integers(0, 3)) * 1000)
    for _ in range(choose(st.integers(1, 6))):
        verb = choose(
            st.sampled_from(
                ["shuffle", "blocks", "slice", "repeat", "split", "split_by", "filter", "exclude", "concat", "map", "rng"]
            )
        )
        size = len(chain.dataset)
        if verb == "shuffle":
            chain = shuffle(chain, choose(SEEDS))
        elif verb == "blocks":
            small = st.integers(1, 7)
            chain = shuffle_blocks(chain, choose(SEEDS), choose(small), choose(small), choose(small))
        elif verb == "slice":
            chain = cut(chain, choose(ENDS), choose(ENDS), choose(STEPS))
        elif verb == "repeat" and size * 3 <= MOST:
            chain = repeat(chain, choose(st.integers(1, 3)))
        elif verb == "split" and chain.splittable:
            chain = split(chain, choose(st.sampled_from([0.1, 0.5, 0.9])), choose(SEEDS), choose(st.integers(0, 1)))
        elif verb == "split_by" and chain.splittable and not chain.random:
            chain = split_groups(chain, choose(st.sampled_from([0.3, 0.7])), choose(SEEDS), choose(st.integers(0, 1)))
        elif verb == "filter" and chain.splittable and not chain.random:
            chain = keep(chain, choose(st.integers(0, 2)))
        elif verb == "exclude" and chain.splittable:
            chain = exclude(chain, choose(st.lists(st.integers(0, chain.rows - 1), max_size=5)) if chain.rows else [])
        elif verb == "concat" and depth and size <= MOST:
            chain = join(chain, choose(chains(depth=depth - 1)))
        elif verb == "map":
            chain = add(chain, choose(st.integers(0, 9)))
        elif verb == "rng" and chain.maps < 3:
            chain = draw(chain, choose(SEEDS))
    return chain


@settings(max_examples=examples(400), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(chains(), st.sampled_from([0, 1, 2, 50]))
def test_a_chain_of_verbs_is_what_the_verbs_do_to_lists(chain: Chain, epoch: int) -> None:
    expected = chain.epoch(epoch, ())
    dataset = chain.dataset
    assert len(dataset) == len(expected)
    size = len(expected)
    visits = dataset.order.visits(np.full(size, epoch), np.arange(size))
    assert visits.rows.tolist() == [visit.row for visit in expected]
    assert visits.epochs.tolist() == [visit.epoch for visit in expected]
    if size:
        assert dataset.read(np.arange(size), epoch).tolist() == [visit.value for visit in expected]


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(chains(), st.data())
def test_any_positions_of_any_epochs_may_be_asked_for_at_once(chain: Chain, data: st.DataObject) -> None:
    size = len(chain.dataset)
    if not size:
        return
    pairs = data.draw(st.lists(st.tuples(st.integers(0, 3), st.integers(0, size - 1)), max_size=12))
    expected = {epoch: chain.epoch(epoch, ()) for epoch in range(4)}
    epochs, positions = (
        (np.array(column, np.int64) for column in zip(*pairs, strict=True)) if pairs else np.zeros((2, 0), np.int64)
    )
    visits = chain.dataset.order.visits(epochs, positions)
    assert visits.rows.tolist() == [expected[epoch][position].row for epoch, position in pairs]
    assert visits.epochs.tolist() == [expected[epoch][position].epoch for epoch, position in pairs]


@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(chains())
def test_a_chain_can_be_split_unless_a_slice_follows_a_shuffle(chain: Chain) -> None:
    try:
        sides = chain.dataset.split(0.5)
    except ArgumentError:
        assert not chain.splittable
        return
    assert chain.splittable
    size = len(chain.dataset)
    both = [side.order.visits(np.full(len(side), 1), np.arange(len(side))).rows.tolist() for side in sides]
    assert not set(both[0]) & set(both[1])
    whole = chain.dataset.order.visits(np.full(size, 1), np.arange(size)).rows.tolist()
    assert sorted(both[0] + both[1]) == sorted(whole)


@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(chains())
def test_an_order_that_says_it_never_varies_never_does(chain: Chain) -> None:
    """And one that a shuffle went into says that it does, whatever it is."""
    order = chain.dataset.order
    if not order.varies:
        one, two = (order.visits(np.full(order.size, epoch), np.arange(order.size)).rows for epoch in (0, 3))
        assert one.tolist() == two.tolist()
    assert chain.varies == order.varies
