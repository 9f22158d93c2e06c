"""Parts of a shuffle: the rows of epoch 0 in every epoch, in an order of its own in each."""

from typing import Any

import numpy as np
import pytest

from loadax.errors import ArgumentError
from loadax.plan.block_shuffle import BlockShuffled
from loadax.plan.concat import Concatenated
from loadax.plan.fixed_part import as_before, fixed_part, parts_in
from loadax.plan.flat_map import FlatMapped
from loadax.plan.mix import Mixed, Segment
from loadax.plan.repeat import Repeated
from loadax.plan.sample import Sampled
from loadax.plan.select import Selected
from loadax.plan.sequential import Sequential
from loadax.plan.shuffle import Shuffled
from loadax.plan.slice import Sliced
from loadax.plan.split import split
from loadax.plan.zip import Zipped
from loadax.protocols import Order
from tests.plan.visited import epoch, rows

PARENTS: dict[str, Order] = {
    "shuffle": Shuffled(Sequential(40), 3),
    "two shuffles": Shuffled(Shuffled(Sequential(40), 3), 4),
    "a slice": Shuffled(Sliced(Sequential(90), 80, -2, 40), 3),
    "concat": Concatenated((Shuffled(Sequential(15), 1), Sequential(25)), (15, 25)),
    "flat_map": FlatMapped(Shuffled(Sequential(20), 3), 2, "fn"),
    "a split": split(Shuffled(Sequential(100), 0), 0.4, 1)[0],
    "once": Repeated(Shuffled(Sequential(40), 3), 1),
    "a part": fixed_part(Sliced(Shuffled(Sequential(60), 3), 5, 1, 40)),
}


def selected(parent: Order, positions: Any) -> Selected:
    return Selected(parent, np.array(positions, np.int64), ("select", "digest"))


CUTS: dict[str, Any] = {
    "[:k]": lambda parent: Sliced(parent, 0, 1, 11),
    "[k:]": lambda parent: Sliced(parent, 11, 1, parent.size - 11),
    "[::-3]": lambda parent: Sliced(parent, parent.size - 1, -3, 10),
    "a list": lambda parent: selected(parent, [7, 2, 5, 0]),
    "a list with repeats": lambda parent: selected(parent, [7, 2, 7, 0]),
}


@pytest.mark.parametrize("parent", PARENTS.values(), ids=PARENTS)
@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_rows_are_those_of_epoch_0_in_every_epoch(parent: Order, cut: Any) -> None:
    part = fixed_part(cut(parent))
    first = rows(cut(parent))
    assert epoch(part, 0) == [(row, 0) for row in first]
    orders = [rows(part, number) for number in range(4)]
    assert all(sorted(order) == sorted(first) for order in orders)
    assert len({tuple(order) for order in orders}) > 2
    assert [visited for _, visited in epoch(part, 7)] == [7] * part.size
    assert part.varies
    assert not part.lane_assignments(0, 0, part.size)
    mixed = part.visits(np.array([2, 0, 1]), np.array([1, 1, 0]))
    assert mixed.rows.tolist() == [orders[2][1], orders[0][1], orders[1][0]]


@pytest.mark.parametrize("parent", PARENTS.values(), ids=PARENTS)
@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_the_inverse_finds_every_position(parent: Order, cut: Any) -> None:
    part = fixed_part(cut(parent))
    asked = np.repeat(np.arange(100), 3)
    epochs = np.tile([0, 1, 5], 100)
    hits = part.inverse(asked, epochs, (0, part.size))
    found = sorted((int(asked[at]), int(epochs[at]), int(position)) for at, position in zip(*hits, strict=True))
    expected = [(row, number, at) for number in (0, 1, 5) for at, row in enumerate(rows(part, number))]
    assert found == sorted(expected)
    below = part.inverse(asked, epochs, (2, 5))
    wanted = [hit for hit in expected if 2 <= hit[2] < 5]
    assert {*zip(asked[below.asked].tolist(), epochs[below.asked].tolist(), below.positions.tolist(), strict=True)} >= {
        *wanted
    }


def test_slices_of_a_shuffle_are_disjoint_and_complete_in_every_epoch() -> None:
    parent = Shuffled(Sequential(1000), 42)
    parts = [fixed_part(Sliced(parent, 0, 1, 200)), fixed_part(Sliced(parent, 200, 1, 800))]
    for number in range(3):
        seen = [set(rows(part, number)) for part in parts]
        assert not seen[0] & seen[1]
        assert seen[0] | seen[1] == set(range(1000))


def test_golden_orders() -> None:
    part = fixed_part(Sliced(Shuffled(Sequential(20), 0), 2, 1, 6))
    assert [rows(part, number) for number in range(3)] == [
        [8, 2, 17, 1, 13, 18],
        [13, 8, 17, 1, 18, 2],
        [17, 8, 2, 18, 13, 1],
    ]
    assert part.describe() == [
        ["rows", 20],
        ["shuffle", 0],
        ["first epoch"],
        ["slice", 2, 1, 6],
        ["reorder", 11858542036118318355],
    ]
    assert part.text() == [
        "20 rows",
        "shuffle(0)",
        "[rows fixed: those of epoch 0]",
        "[2:8]",
        "[another order in each later epoch]",
    ]


def test_parts_of_equal_size_have_orders_of_their_own() -> None:
    parent = Shuffled(Sequential(60), 0)
    parts = [fixed_part(Sliced(parent, start, 1, 30)) for start in (0, 30)]
    moves = [[rows(part, 0).index(row) for row in rows(part, 1)] for part in parts]
    assert moves[0] != moves[1]
    other = fixed_part(Sliced(Shuffled(Sequential(60), 1), 0, 1, 30))
    assert [rows(other, 0).index(row) for row in rows(other, 1)] != moves[0]


def test_a_billion_rows_keep_no_list() -> None:
    parent = Shuffled(Sequential(10**12), 0)
    part = fixed_part(Sliced(parent, 10**9, 1, 10**11))
    positions = np.array([0, 5, 10**11 - 1])
    later = part.visits(np.full(3, 9), positions)
    hits = part.inverse(later.rows, np.full(3, 9), (0, part.size))
    assert hits.positions[np.argsort(hits.asked)].tolist() == positions.tolist()
    outside = Sliced(parent, 0, 1, 10**9).visits(np.zeros(3, np.int64), np.array([0, 1, 2]))
    assert not len(part.inverse(outside.rows, np.full(3, 9), (0, part.size)).asked)


@pytest.mark.parametrize("verb", ["split", "filter"])
def test_verbs_that_look_at_rows_go_below(verb: str) -> None:
    part = fixed_part(Sliced(Shuffled(Sequential(60), 0), 0, 1, 30))
    kept = part.narrow(verb, lambda fixed, first: Sliced(fixed, 0, 2, 15))
    for number in range(3):
        assert sorted(rows(kept, number)) == sorted(rows(part, 0)[::2])


def test_whole_and_empty_parts_and_fixed_orders_stay_as_they_are() -> None:
    parent = Shuffled(Sequential(9), 0)
    segments = (Segment(0, (1,)),)
    for cut in (
        Sliced(parent, 0, 1, 9),
        Sliced(parent, 8, -1, 9),
        Sliced(parent, 4, 1, 0),
        Sliced(Mixed((parent,), (9,), ("a",), segments, 0, "first"), 0, 1, 9),
        Sliced(Repeated(Sequential(9), 2), 0, 1, 9),
        selected(parent, [8, 7, 6, 5, 4, 3, 2, 1, 0]),
        selected(Sequential(9), [1, 1]),
    ):
        assert fixed_part(cut) is cut


ENDS = np.cumsum(np.ones(9, np.int64))


@pytest.mark.parametrize(
    ("parent", "message"),
    [
        (
            Mixed((Shuffled(Sequential(9), 0),), (9,), ("a",), (Segment(0, (1,)),), 0, "first"),
            r"the slice \[1:4\] behind mix\(\) would have other rows .*mix\(\{name: ds\[:n\], …\}, weights\); or, ",
        ),
        (
            Sampled(Sequential(9), ENDS, 9, 0, "digest"),
            r"\[1:4\] behind sample\(\) has draws .*: ds\[:n\]\.sample\(weights\[:n\]\); or, ",
        ),
        (
            Repeated(Shuffled(Sequential(9), 0), 2),
            r"\[1:4\] behind a shuffle of repeated rows: .*: ds\[:n\]\.repeat\(times\)\.shuffle\(seed\); or, ",
        ),
        (Shuffled(selected(Sequential(9), [1, 1, 2, 3, 4]), 0), r"\[1:4\] behind a shuffle of repeated rows: "),
        (
            BlockShuffled(Sequential(90), 0, 3, 2, 2),
            r"\[1:4\] behind a block shuffle has rows of all blocks, .*: ds\.split\(\[3, 87\]\); or take the part ",
        ),
        (
            Zipped((Shuffled(Sequential(9), 0),), ("a",)),
            r"\[1:4\] needs the same rows in every epoch, .*; zip the datasets before they are shuffled or mixed, and ",
        ),
        (
            Sequential(9, own_epochs=True),
            r"\[1:4\] needs the same rows in every epoch, .*; pass the Grain dataset without that step, and shuffle ",
        ),
    ],
)
def test_parts_that_could_share_rows_are_refused(parent: Order, message: str) -> None:
    with pytest.raises(ArgumentError, match=message + r".*for other rows in every epoch, ds\.subset_per_epoch\(range"):
        fixed_part(Sliced(parent, 1, 1, 3))
    with pytest.raises(ArgumentError, match=r"select\(2 rows\) .* ds\.subset_per_epoch\(rows\)$"):
        fixed_part(selected(parent, [1, 3]))


def test_a_part_of_a_part_with_repeats_is_refused() -> None:
    part = fixed_part(selected(Shuffled(Sequential(9), 0), [0, 0, 1]))
    with pytest.raises(ArgumentError, match=r"\[0:1\] behind a shuffle of repeated rows"):
        fixed_part(Sliced(part, 0, 1, 1))


def test_descriptions_tell_parts_as_they_were_before() -> None:
    parent = Shuffled(Sequential(40), 3)
    part = fixed_part(Sliced(fixed_part(selected(parent, [7, 2, 5, 0])), 1, 1, 2))
    both = Concatenated((part, fixed_part(Sliced(parent, 30, -2, 5))), (40, 40))
    before = Concatenated((Sliced(selected(parent, [7, 2, 5, 0]), 1, 1, 2), Sliced(parent, 30, -2, 5)), (40, 40))
    assert as_before(both.describe()) == before.describe()
    assert parts_in(both.describe()) == [
        ".subset_per_epoch(rows).subset_per_epoch(range(1, 3))",
        ".subset_per_epoch(range(30, 20, -2))",
    ]
    assert parts_in(before.describe()) == []
