"""`loadax.testing.disjoint`: whether two datasets share rows of the data, beside the values that they read."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loadax
from loadax.errors import ArgumentError, ConformanceError
from loadax.testing import disjoint

ROWS = np.arange(60)


def data() -> loadax.Dataset:
    return loadax.from_arrays({"x": ROWS})


DATA = data()
DOCUMENTS = loadax.from_source([np.arange(length % 5 + 1) for length in range(40)])
SHARED: dict[str, tuple[Callable[[], Any], str]] = {
    "slices": (
        lambda: (DATA[:20], DATA[19:]),
        r"1 row of arrays in memory in both within 1 epoch: \[19\]; row 19 is read",
    ),
    "places": (
        lambda: (DATA[10:20], DATA[15:]),
        r"5 rows .*: \[15, 16, 17, 18, 19\]; row 15 is read at position 5 of epoch 0 of a and .* of b; ",
    ),
    "windows": (lambda: (DATA.windows(4)[:20], DATA.windows(4)[20:]), r"3 rows .*: \[20, 21, 22\]"),
    "windows of zip": (lambda: (DATA.zip(DATA).windows(4)[:20], DATA.windows(4)[20:]), r"3 rows .*: \[20, 21, 22\]"),
    "targets": (lambda: (DATA[:20].windows(2, lead=3), DATA[19:]), r"1 row .*: \[19\]"),
    "flat_map": (lambda: (DATA.flat_map(lambda row: [row] * 2, 2)[:21], DATA[10:]), r"1 row .*: \[10\]"),
    "flat_map by counts": (
        lambda: (DATA.flat_map(lambda row: [row] * 2, counts=[2] * 60)[:21], DATA[10:]),
        r"1 row .*: \[10\]",
    ),
    "packs": (lambda: (DOCUMENTS.pack(4)[:2], DOCUMENTS.pack(4)[2:]), r"1 row of list object in both"),
    "groups": (lambda: (DATA.group(2, sizes=lambda _: 1)[:5], DATA[9:]), r"1 row .*: \[9\]"),
    "concat": (lambda: (loadax.concat([DATA[:20], DATA[40:]]), DATA[41:45]), r"4 rows .*: \[41, 42, 43, 44\]"),
    "mix": (lambda: (loadax.mix([DATA[:20], DATA[40:]], [1, 1]), DATA[59:]), r"1 row .*: \[59\]"),
    "zip": (lambda: (DATA[:20].zip(DATA[20:40]), DATA[39:]), r"1 row .*: \[39\]"),
    "columns": (lambda: (DATA.keep("x")[:20], DATA[19:]), r"1 row .*: \[19\]"),
    "the same arrays": (lambda: (data()[:20], data()[19:]), r"1 row .*: \[19\]"),
    "maps": (lambda: (DATA.map(lambda row: row)[:20], DATA.map_batch(lambda rows: rows)[19:]), r"1 row .*: \[19\]"),
}


@pytest.mark.parametrize(("make", "message"), SHARED.values(), ids=SHARED)
def test_rows_in_both_are_shown(make: Callable[[], Any], message: str) -> None:
    one, other = make()
    with pytest.raises(ConformanceError, match=r"the pair breaks the law 'parts share no row': " + message):
        disjoint(one, other)
    with pytest.raises(ConformanceError, match="parts share no row"):
        disjoint(other, one)


def test_epochs_are_searched_up_to_the_last() -> None:
    shuffled = DATA.shuffle(0)
    one, other = (shuffled.subset_per_epoch(rows) for rows in (range(2), range(2, 4)))
    seen = [[set(part.read(range(2), epoch)["x"].tolist()) for epoch in range(40)] for part in (one, other)]
    first = next(n for n in range(1, 41) if set().union(*seen[0][:n]) & set().union(*seen[1][:n]))
    disjoint(one, other, epochs=first - 1)
    with pytest.raises(ConformanceError, match=rf"within {first} epochs: .* of epoch {first - 1} of "):
        disjoint(one, other, epochs=first)


def test_files_are_known_by_their_paths(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", ROWS)
    np.save(tmp_path / "others.npy", ROWS)
    one, same, other = (loadax.from_npy(tmp_path / name) for name in ("rows.npy", "rows.npy", "others.npy"))
    disjoint(one[:20], same[20:])
    with pytest.raises(ConformanceError, match=r"1 row of .*: \[19\]"):
        disjoint(one[:20], same[19:])
    with pytest.raises(ArgumentError, match="they have no source in common, so that row numbers can't be compared"):
        disjoint(one, other)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((DATA.to_stream(2), DATA), r"a is a stream, whose rows have no numbers"),
        ((DATA, loadax.mix([DATA], [1], stop="never")), r"b never ends; check its parts, or b\.subset_per_epoch\("),
        (
            (DATA, {"x": ROWS.copy()}),
            r"a reads arrays in memory, and b arrays in memory: they have no source in common",
        ),
        ((DATA, 3), r"the data is an int"),
    ],
)
def test_what_can_not_be_compared_is_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        disjoint(*arguments)


def test_the_advice_of_endless_mixtures_works() -> None:
    endless = loadax.mix([DATA[:20], DATA[20:30]], [1, 1], stop="never")
    disjoint(endless.subset_per_epoch(range(50)), DATA[30:], epochs=2)
    with pytest.raises(ConformanceError):
        disjoint(endless.subset_per_epoch(range(50)), DATA[29:], epochs=2)
