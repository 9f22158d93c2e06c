"""Keep-lists: they go below shuffles and repeats, and a short list of absent rows equals a long one of present rows."""

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
from loadax.plan.subset import Excluding, Subset, keep_rows, leave_out_rows, met_rows
from loadax.protocols import Order
from tests.plan.visited import rows

ROWS = 60
KEPT = np.array([0, 3, 4, 9, 17, 18, 19, 20, 31, 40, 41, 58, 59])
GONE = np.setdiff1d(np.arange(ROWS), KEPT)
VERBS: dict[str, Callable[[Order], Order]] = {
    "kept": lambda order: keep_rows(order, KEPT, ("filter", "x")),
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
    monkeypatch.setattr(module, "_CHUNK", 7)
    assert rows(verb(build())) == whole


@fixed
def test_the_rows_that_are_met(build: Callable[[], Order], monkeypatch: pytest.MonkeyPatch) -> None:
    order = build()
    expected = [row in set(rows(order)) for row in range(ROWS)]
    assert met_rows(order, "filter", ROWS).tolist() == expected
    monkeypatch.setattr(module, "_CHUNK", 7)
    assert met_rows(Repeated(Shuffled(order, 1), 2), "filter", ROWS).tolist() == expected


def test_a_list_of_plain_rows_is_not_copied() -> None:
    """It may be a file that is mapped: processes then share it."""
    order = keep_rows(Sequential(ROWS), KEPT, ("filter", "x"))
    assert isinstance(order, Subset)
    assert np.shares_memory(order.positions, KEPT)


def test_an_empty_list() -> None:
    none = np.empty(0, np.int64)
    assert rows(keep_rows(Sliced(Sequential(ROWS), 1, 2, 9), none, ("filter", "x"))) == []
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
