"""Keep-lists: they go below shuffles and repeats, and a short list of absent rows equals a long one of present rows."""

import pickle
from collections.abc import Callable

import numpy as np
import pytest

from loadax.errors import ArgumentError
from loadax.plan import subset as module
from loadax.plan.block_shuffle import BlockShuffled
from loadax.plan.concat import Concatenated
from loadax.plan.mix import Mixed, Segment
from loadax.plan.repeat import Repeated
from loadax.plan.sequential import Sequential
from loadax.plan.shuffle import Shuffled
from loadax.plan.slice import Sliced
from loadax.plan.split import split
from loadax.plan.subset import Ascending, Excluding, Subset, leave_out_rows, met_rows, only_rows
from loadax.protocols import Integers, Order
from tests.plan.visited import rows

ROWS = 60
KEPT = np.array([0, 3, 4, 9, 17, 18, 19, 20, 31, 40, 41, 58, 59])
GONE = np.setdiff1d(np.arange(ROWS), KEPT)
VERBS: dict[str, Callable[[Order], Order]] = {
    "kept": lambda order: only_rows(order, KEPT, ("filter", "x")),
    "left": lambda order: leave_out_rows(order, GONE, ("exclude", "x")),
}
both = pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS.keys())

FIXED: dict[str, Callable[[], Order]] = {
    "rows": lambda: Sequential(ROWS),
    "slice": lambda: Sliced(Sequential(ROWS), 2, 3, 15),
    "backwards": lambda: Sliced(Sequential(ROWS), 59, -1, 50),
    "split": lambda: Subset(Sequential(ROWS), np.arange(10, 30), ("split", 0.5, 0, True)),
    "excluded": lambda: Excluding(Sequential(ROWS), np.array([3, 30]), ("exclude", "y")),
    "parts": lambda: Concatenated((Sequential(20), Sliced(Sequential(40), 1, 2, 20)), (20, 40)),
    "a slice of parts": lambda: Sliced(Concatenated((Sequential(20), Sequential(40)), (20, 40)), 10, 1, 30),
    "nothing": lambda: Sliced(Sequential(ROWS), 0, 1, 0),
}
fixed = pytest.mark.parametrize("build", FIXED.values(), ids=FIXED.keys())


@both
@fixed
def test_many_rows_are_looked_at_in_pieces(
    build: Callable[[], Order], verb: Callable[[Order], Order], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = rows(verb(build()))
    monkeypatch.setattr(module, "CHUNK", 7)
    assert rows(verb(build())) == whole


@fixed
def test_the_rows_that_are_met(build: Callable[[], Order], monkeypatch: pytest.MonkeyPatch) -> None:
    order = build()
    expected = [row in set(rows(order)) for row in range(ROWS)]
    assert met_rows(order, "filter", ROWS).tolist() == expected
    monkeypatch.setattr(module, "CHUNK", 7)
    assert met_rows(Repeated(Shuffled(order, 1), 2), "filter", ROWS).tolist() == expected


GENERATOR = np.random.default_rng(0)
LISTS: dict[str, tuple[int, Callable[[], Integers]]] = {
    "half": (300_000, lambda: np.flatnonzero(GENERATOR.random(300_000) < 0.5)),
    "nearly all": (300_000, lambda: np.flatnonzero(GENERATOR.random(300_000) < 0.99)),
    "all": (65_536, lambda: np.arange(65_536)),
    "few": (10**6, lambda: np.flatnonzero(GENERATOR.random(10**6) < 0.002)),
    "runs with gaps": (10**7, lambda: np.add.outer(np.arange(0, 10**7, 10**6), np.arange(5000)).reshape(-1)),
    "a dense end": (10**6, lambda: np.r_[0, np.arange(10**6 - 9000, 10**6)]),
    "one": (10**6, lambda: np.array([999_999])),
}


@pytest.mark.parametrize(("stop", "build"), LISTS.values(), ids=LISTS.keys())
def test_compact_lists_equal_arrays(stop: int, build: Callable[[], Integers]) -> None:
    listed = build()
    compact = Ascending(np.array_split(listed, 7), stop)
    assert len(compact) == len(listed)
    order = GENERATOR.integers(0, len(listed), 1000)
    assert np.array_equal(compact[order], listed[order])
    assert np.array_equal(compact[np.arange(len(listed))], listed)
    assert len(compact[order[:0]]) == 0
    assert [int(compact[index]) for index in (0, len(listed) - 1)] == [listed[0], listed[-1]]
    values = np.r_[GENERATOR.integers(0, stop, 1000), listed[order], 0, stop - 1]
    assert np.array_equal(compact.searchsorted(values), np.searchsorted(listed, values))


def test_split_and_filter_keep_about_a_byte_a_row() -> None:
    rows = 1 << 20
    parts = split(Sequential(rows), 0.7, 0)
    assert len(pickle.dumps(parts)) < 1.15 * rows
    half = np.flatnonzero(np.random.default_rng(0).random(rows) < 0.5)
    assert len(pickle.dumps(only_rows(Sequential(rows), half, ("filter", "x")))) < 1.2 * len(half)
    few = half[::100]
    assert len(pickle.dumps(only_rows(Sequential(rows), few, ("filter", "x")))) < 3 * len(few)


def test_an_empty_list() -> None:
    none = np.empty(0, np.int64)
    assert rows(only_rows(Sliced(Sequential(ROWS), 1, 2, 9), none, ("filter", "x"))) == []
    assert rows(leave_out_rows(Sliced(Sequential(ROWS), 1, 2, 9), none, ("exclude", "x"))) == list(range(1, 19, 2))


def test_what_is_left_out_describes_itself_and_is_dealt_to_nobody() -> None:
    order = VERBS["left"](Sequential(ROWS))
    assert order.describe() == [["rows", ROWS], ["exclude", "x", len(KEPT)]]
    assert order.lane_assignments(0, 0, 9) == []


@both
@pytest.mark.parametrize("parent", [Shuffled(Sequential(9), 0), BlockShuffled(Sequential(9), 0, 2, 2, 2)])
def test_a_slice_of_a_shuffle_has_other_rows_each_epoch(verb: Callable[[Order], Order], parent: Order) -> None:
    message = r"(filter|exclude)\(\) after .* of a shuffle would keep other .*; call it before"
    for order in (Sliced(parent, 0, 1, 4), Shuffled(Repeated(Sliced(parent, 0, 1, 4), 2), 1)):
        with pytest.raises(ArgumentError, match=message):
            verb(order)


@both
def test_a_mixture_keeps_its_proportions(verb: Callable[[Order], Order]) -> None:
    mixed = Mixed((Sequential(9), Sequential(9)), (9, 9), ("a", "b"), (Segment(0, (1, 1)),), 0, "first")
    with pytest.raises(ArgumentError, match=r"\(\) after mix\(\) would break its proportions; call it before: mix"):
        verb(Shuffled(mixed, 0))
