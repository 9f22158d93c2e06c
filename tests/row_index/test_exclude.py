"""`exclude`: all rows but those in a list, wherever it comes from."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadax.errors import ArgumentError, RowIndexError
from loadax.plan.subset import Excluding
from tests.row_index.filters import data, rows_of

GONE = [3, 499, 0, 3, 17, 18]
LEFT = [row for row in range(500) if row not in GONE]


@pytest.mark.parametrize(
    "rows",
    [
        GONE,
        tuple(GONE),
        set(GONE),
        np.array(GONE),
        np.array(GONE, np.uint16),
        (row for row in GONE),
    ],
    ids=["list", "tuple", "set", "array", "unsigned", "generator"],
)
def test_a_list_of_rows(rows: Any) -> None:
    left = data().exclude(rows)
    assert len(left) == len(LEFT)
    assert rows_of(left) == LEFT


def test_a_file_of_rows(tmp_path: Path) -> None:
    np.save(tmp_path / "gone.npy", np.array(GONE, np.int32))
    (tmp_path / "gone.txt").write_text("# taken down\n3\n 499 \n\n0 # a duplicate\n3\n17\n18")
    assert rows_of(data().exclude(tmp_path / "gone.npy")) == LEFT
    assert rows_of(data().exclude(str(tmp_path / "gone.txt"))) == LEFT


def test_nothing_to_leave_out(tmp_path: Path) -> None:
    (tmp_path / "none.txt").write_text("# nothing yet\n")
    nothing: list[Any] = [[], np.empty(0), tmp_path / "none.txt"]
    for rows in nothing:
        assert rows_of(data().exclude(rows)) == list(range(500))


def test_it_costs_what_is_left_out() -> None:
    order = data().exclude(GONE).order
    assert isinstance(order, Excluding)
    assert order.positions.nbytes == 5 * 8


def test_the_state_is_of_the_rows_that_are_left_out() -> None:
    one, same, other = (data().exclude(rows).describe() for rows in ([1, 2], [2, 1, 1], [1, 3]))
    assert one == same != other
    assert repr(data().exclude([1, 2])) == "Dataset(498 rows of arrays in memory.exclude(498 rows))"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([1.5], "rows contains float64; pass row numbers, as integers"),
        (np.ones(500, bool), r"rows is a mask of True and False; pass row numbers: numpy.flatnonzero\(mask\)"),
        (3, "rows=3: pass row numbers, or the path of a .npy or .txt file of them"),
        ([[1], [2, 3]], r"rows=\[\[1\], \[2, 3\]\]: pass row numbers"),
        (
            "gone.csv",
            r"rows: .*gone.csv is neither a .npy file nor a .txt file with one row number per line",
        ),
        ("missing.npy", r"rows: .*missing.npy can't be read: .*; check the path"),
        ("missing.txt", r"rows: .*missing.txt can't be read: .*; check the path"),
        ("words.txt", "rows: line 2 of .*words.txt is 'row 4'; write one row number per line"),
        ("words.npy", r"rows: .*words.npy is not a .npy file of numbers \(.*\); write it with numpy.save"),
        ("mask.npy", "mask.npy is a mask of True and False"),
        (range(500), "leaves none of 500 rows; pass fewer than all"),
    ],
)
def test_lists_that_can_not_be_used(rows: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("words.txt").write_text("3\nrow 4\n")
    Path("words.npy").write_text("words")
    np.save("mask.npy", np.ones(500, bool))
    with pytest.raises(ArgumentError, match=message):
        data().exclude(rows)


def test_rows_that_are_not_there(tmp_path: Path) -> None:
    for row in (500, -1):
        with pytest.raises(RowIndexError, match=rf"row {row} is out of range; pass rows from 0 on, below 500"):
            data().exclude([1, row])
    (tmp_path / "gone.txt").write_text("501")
    with pytest.raises(RowIndexError, match=rf"row 501 of {tmp_path}/gone.txt is out of range"):
        data().exclude(tmp_path / "gone.txt")
