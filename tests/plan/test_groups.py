"""Orders of groups: splits without a common group, shuffles of whole groups, draws of groups; how groups are found."""

import json
import pickle
import tracemalloc
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from jax.sharding import Mesh

from loadax import Dataloader, Dataset, concat, from_arrays
from loadax.errors import ArgumentError
from loadax.plan.groups.chosen import ChosenGroups
from loadax.plan.groups.finder import GroupFinder
from loadax.plan.groups.shuffled import GroupsShuffled
from loadax.sharding import plan_mesh
from loadax.testing import disjoint
from tests.limits import examples
from tests.plan.visited import rows

LENGTHS = [3, 0, 1, 5, 2, 0, 7]
OFFSETS = np.append(0, np.cumsum(LENGTHS))
ROWS = int(OFFSETS[-1])
NUMBERS = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
GROUPS = [list(range(low, high)) for low, high in zip(OFFSETS[:-1].tolist(), OFFSETS[1:].tolist(), strict=True)]


ONE = Mesh(np.array(jax.devices()[:1]), ("data",))


def data() -> Dataset:
    return from_arrays({"group": NUMBERS, "row": np.arange(ROWS)})


def read(part: Dataset, epoch: int = 0, leaf: str = "row") -> list[int]:
    return part.read(range(len(part)), epoch)[leaf].tolist()


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=60), st.data())
def test_finder_is_a_binary_search(lengths: list[int], drawn: st.DataObject) -> None:
    ends = np.cumsum(np.array(lengths) ** drawn.draw(st.sampled_from([1, 4])))
    if not ends[-1]:
        return
    asked = np.array(drawn.draw(st.lists(st.integers(0, int(ends[-1]) - 1), min_size=1, max_size=20)))
    assert GroupFinder(ends)(asked).tolist() == np.searchsorted(ends, asked, side="right").tolist()


def test_finder_of_many_groups_in_one_bucket() -> None:
    ends = np.append(np.arange(1, 1001), 10**9)
    asked = np.array([0, 999, 1000, 10**9 - 1])
    assert GroupFinder(ends)(asked).tolist() == [0, 999, 1000, 1000]


@pytest.mark.parametrize("fraction", [0.3, 0.5, 0.8, 2, 3, [4, 3], [1, 2, 4]])
@pytest.mark.parametrize("contiguous", [False, True])
def test_parts_share_no_group_and_have_the_sides_of_split_by(fraction: Any, contiguous: bool) -> None:
    options: dict[str, Any] = {"contiguous": contiguous}
    parts = data().split(fraction, by=OFFSETS, **options)
    groups = [set(read(part, leaf="group")) for part in parts]
    assert sum(map(len, groups)) == len(set.union(*groups)) == len(set(NUMBERS))
    assert sorted(row for part in parts for row in read(part)) == list(range(ROWS))
    for part in parts[1:]:
        disjoint(parts[0].shuffle(0), part, epochs=2)
    if not isinstance(fraction, list):  # which counts empty groups, that a leaf has not
        named = data().split(fraction, by="group", **options)
        assert list(map(read, named)) == list(map(read, data().split_by("group", fraction, **options)))
        assert list(map(read, named)) == list(map(read, data().split(fraction, by=lambda row: row["group"], **options)))
        # offsets are as a leaf of the groups' numbers
        assert list(map(read, parts)) == list(map(read, named)) or not isinstance(fraction, float) or contiguous


def test_parts_know_their_groups_and_keep_no_rows() -> None:
    parts = data().split(0.5, by=OFFSETS)
    for part in parts:
        assert isinstance(part.order, ChosenGroups)
        numbers = read(part, leaf="group")
        wanted = [0, *(1 + at for at in np.flatnonzero(np.diff(numbers)).tolist()), len(part)]
        assert part.offsets().tolist() == part.offsets("group").tolist() == wanted
        for values in part.windows(2, within=part.offsets(), short="drop"):
            assert len(set(values["group"].tolist())) == 1
        # without within=, too: the groups are the part's runs
        assert {len(set(values["group"].tolist())) for values in part.windows(2)} == {1}
    assert rows(parts[0].order.narrow("split", lambda order, _: order), 1) == read(parts[0])


def test_a_split_means_the_same_behind_a_shuffle_and_within_concat() -> None:
    one, other = data().shuffle(2).split(0.5, by=OFFSETS), data().split(0.5, by=OFFSETS)
    assert [sorted(read(part, 3)) for part in one] == [read(part) for part in other]
    pieces = concat([data()[:6], data()[6:]])
    assert [read(part) for part in pieces.split(0.5, by=OFFSETS)] == [read(part) for part in other]
    again = [read(part) for part in other[1].split(2, by=other[1].offsets())]
    assert sorted(row for part in again for row in part) == read(other[1])


def test_positions_of_one_row_are_not_split() -> None:
    twice = data().select([0, 1, 0, 1])
    with pytest.raises(ArgumentError, match=r"split\(by=\) after repeated rows: row 0 .* in parts 0 and 1"):
        twice.split(2, by=[0, 2, 4])
    assert len(twice.split(2, by=[0, 2, 4], allow_shared_rows=True)) == 2


def test_gaps_are_groups() -> None:
    first, second = data().split(0.5, by=OFFSETS, contiguous=True, gap=1)
    assert (read(first), read(second)) == (list(range(4)), list(range(9, 18)))


def test_rows_of_a_group_need_not_be_together_to_be_split() -> None:
    mixed = from_arrays({"group": np.arange(20) % 4, "row": np.arange(20)})
    assert list(map(read, mixed.split(2, by="group"))) == list(map(read, mixed.split_by("group", 2)))


class TestShuffle:
    def test_whole_groups_with_rows_in_order(self) -> None:
        shuffled = data().shuffle(3, by=OFFSETS)
        orders = [read(shuffled, epoch) for epoch in range(4)]
        assert len({tuple(order) for order in orders}) > 1
        for order in orders:
            cut = np.flatnonzero(np.diff(NUMBERS[order])) + 1
            assert sorted(part.tolist() for part in np.split(np.array(order), cut)) == [each for each in GROUPS if each]
        named = data().shuffle(3, by="group")
        assert sorted(read(named, 1)) == list(range(ROWS))

    def test_each_group_is_everywhere_equally_often(self) -> None:
        shuffled = data().shuffle(0, by=OFFSETS)
        firsts = np.bincount([NUMBERS[read(shuffled, epoch)[0]] for epoch in range(300)], minlength=7)
        assert firsts[[1, 5]].tolist() == [0, 0]
        assert (firsts[[0, 2, 3, 4, 6]] > 30).all()  # of 60 expected each

    def test_golden_order(self) -> None:
        assert read(data().shuffle(3, by=OFFSETS), 1)[:6] == [0, 1, 2, 11, 12, 13]

    def test_a_filter_means_the_same_behind_it(self) -> None:
        def is_kept(row: Any) -> bool:
            return bool(row["row"] % 3)

        behind = data().shuffle(3, by=OFFSETS).filter(is_kept, workers=1)
        for epoch in range(3):
            wanted = [row for row in read(data().shuffle(3, by=OFFSETS), epoch) if row % 3]
            assert read(behind, epoch) == wanted

    @pytest.mark.filterwarnings("ignore:split\\(")
    def test_nothing_is_left_of_repeated_rows_behind_it(self) -> None:
        few = from_arrays(np.arange(2)).repeat(3).shuffle(1, by=[0, 3, 6])
        sizes = [len(part) for seed in range(9) for part in few.split(0.5, seed)]
        assert {*sizes} == {0, 3, 6}

    def test_find_resume_hosts_and_pickles(self) -> None:
        shuffled = data().shuffle(3, by="group")
        loader = Dataloader(shuffled, 4, mesh=ONE, num_epochs=3)
        steps = [loader.rows(step).tolist() for step in range(len(loader))]
        for row in (0, 5, 17):
            wanted = [(step, at.index(row)) for step, at in enumerate(steps) if row in at]
            assert [(place.step, place.position) for place in loader.find(row)] == wanted
        for hosts in (1, 2, 4):
            meshes = [plan_mesh({"data": 4}, hosts=hosts, process=host) for host in range(hosts)]
            shares = [Dataloader(shuffled, 4, mesh=mesh, num_epochs=3).local_rows(5) for mesh in meshes]
            assert np.concatenate(shares).tolist() == steps[5]
        with loader.iterate(3) as batches:
            state = json.loads(json.dumps(batches.get_state()))
        with Dataloader(shuffled, 2, mesh=ONE, num_epochs=3).iterate(state) as batches:
            assert next(batches)["row"].tolist() == steps[3][:2]
        copied = pickle.loads(pickle.dumps(shuffled))
        assert read(copied, 2) == read(shuffled, 2)
        assert copied.order.describe() == shuffled.order.describe()

    def test_only_some_epochs_are_kept(self) -> None:
        order = data().shuffle(3, by=OFFSETS).order
        assert isinstance(order, GroupsShuffled)
        for epoch in range(9):
            rows(order, epoch)
        assert [*order._finders] == [7, 8]


class TestSample:
    def test_groups_in_proportion_and_rows_evenly(self) -> None:
        weights = np.array([2, 0, 1, 1, 0, 0, 4])
        drawn = np.array(read(data().sample(weights, 40_000, by=OFFSETS)))
        shares = np.bincount(NUMBERS[drawn], minlength=7) / len(drawn)
        np.testing.assert_allclose(shares, weights / 8, atol=0.01)
        within = np.bincount(drawn[NUMBERS[drawn] == 6] - 11, minlength=7)
        np.testing.assert_allclose(within / within.sum(), 1 / 7, atol=0.01)

    def test_golden_draws(self) -> None:
        assert read(data().sample([2, 0, 1, 1, 0, 0, 4], 8, by=OFFSETS)) == [16, 0, 11, 11, 7, 15, 11, 7]

    def test_find(self) -> None:
        loader = Dataloader(data().sample([1, 0, 1, 1, 1, 0, 1], 40, by=OFFSETS), 8, mesh=ONE, num_epochs=2)
        steps = [loader.rows(step).tolist() for step in range(len(loader))]
        wanted = [(step, at) for step, listed in enumerate(steps) for at, row in enumerate(listed) if row == 3]
        assert [(place.step, place.position) for place in loader.find(3)] == wanted

    def test_a_leaf_has_only_groups_with_rows(self) -> None:
        assert set(read(data().sample([0, 1, 0, 0, 0], 9, by="group"), leaf="group")) == {2}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda ds: ds.sample(np.ones(7), by=OFFSETS), r"weights\[1\]=1\.0: that group has no rows to draw; pass 0"),
        (lambda ds: ds.sample(np.ones(18), by=OFFSETS), "weights has 18 entries; pass 7, one a group"),
        (lambda ds: ds.sample(np.zeros(7), by=OFFSETS), "give at least one group a positive weight"),
        (lambda ds: ds.shuffle(0, by=OFFSETS, block=3), "block=3 is for shuffles of blocks, .*; leave it out"),
        (lambda ds: ds.shuffle(0, by=OFFSETS, lanes=2), "lanes=2 is for shuffles of blocks, .*; leave it out"),
        (
            lambda ds: ds.shuffle(1).shuffle(0, by=OFFSETS),
            r"shuffle\(by=\) needs the same order .* before shuffle\(1\)",
        ),
        (lambda ds: ds.shuffle(0, by=[0, 3]), "by goes from 0 to 3, and the dataset has 18 rows"),
        (lambda ds: ds.split(0.5, by=[0, 3]), "by goes from 0 to 3, and the dataset has 18 rows"),
        (lambda ds: ds.split(0.5, by="none"), "by='none' is not the name of one leaf"),
        (lambda ds: ds.split(1.5, by=OFFSETS), r"fraction=1\.5: pass a number between 0 and 1"),
        (lambda ds: ds.split(9, by=OFFSETS), "9 parts of 7 groups would leave some empty; pass at most 7"),
        (lambda ds: ds.split([3, 3], by=OFFSETS), "the counts add up to 6, and the dataset has 7 groups"),
        (lambda ds: ds.split(0.5, 1, by=OFFSETS, contiguous=True), "a contiguous split draws nothing; leave seed= out"),
        (lambda ds: ds.split(0.5, by=OFFSETS, gap=1), "gap=1 is for runs of groups; pass contiguous=True as well"),
        (lambda ds: ds.shuffle(0, by=OFFSETS)[:4], r"slice \[0:4\] behind shuffle\(by=\) .*split\(by=\)"),
    ],
)
def test_what_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make(data())


def test_many_groups_take_no_list_of_rows() -> None:
    """Of 30 million rows, 60 bytes a group at most, and nothing a row."""
    count = 100_000
    offsets = np.arange(0, 300 * count + 1, 300)
    source = from_arrays(np.broadcast_to(np.float32(0), (300 * count,)))
    tracemalloc.start()
    for make in (
        lambda: source.windows(16, within=offsets),
        lambda: source.split(0.9, by=offsets),
        lambda: source.shuffle(0, by=offsets),
        lambda: source.sample(np.ones(count, np.int8), by=offsets),
    ):
        before = tracemalloc.get_traced_memory()[0]
        made = make()
        (made[0] if isinstance(made, tuple) else made).order.visits(np.zeros(9, np.int64), np.arange(9))
        assert tracemalloc.get_traced_memory()[0] - before < 60 * count
        del made
    tracemalloc.stop()
