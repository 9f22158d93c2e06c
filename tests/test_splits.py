"""Splits of datasets: runs of rows, gaps, what would leak and is refused, and the advice of these errors."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import loadax
from loadax import Dataloader, Dataset
from loadax.errors import ArgumentError, RowIndexError, StateError, StreamError
from loadax.testing import disjoint
from tests.sources.chunked import ChunkedSource

SERIES = np.arange(200)


def series() -> Dataset:
    return loadax.from_arrays({"t": SERIES, "day": SERIES // 10})


def values(dataset: Dataset, epoch: int = 0) -> list[int]:
    return dataset.read(range(len(dataset)), epoch)["t"].tolist()


def documents() -> Dataset:
    return loadax.from_source([np.arange(length % 7 + 1) for length in range(100)])


series_twice = series()
series_folds = series().split(5)
documents_once = documents()


# Runs of rows


@pytest.mark.parametrize(
    ("fraction", "gap", "bounds"),
    [
        (0.8, 0, [(0, 160), (160, 200)]),
        (0.8, 10, [(0, 152), (162, 200)]),
        (0.001, 0, [(0, 1), (1, 200)]),
        (0.999, 3, [(0, 196), (199, 200)]),
        ([120, 50, 30], 0, [(0, 120), (120, 170), (170, 200)]),
        ([120, 50, 20], 5, [(0, 120), (125, 175), (180, 200)]),
        (3, 0, [(0, 67), (67, 134), (134, 200)]),
        (3, 1, [(0, 66), (67, 133), (134, 200)]),
        (np.int64(2), 0, [(0, 100), (100, 200)]),
    ],
)
def test_contiguous_parts_are_runs_of_rows(fraction: Any, gap: int, bounds: list[tuple[int, int]]) -> None:
    parts = series().split(fraction, contiguous=True, gap=gap)
    assert [values(part) for part in parts] == [list(range(*each)) for each in bounds]
    shuffled = series().shuffle(3).split(fraction, contiguous=True, gap=gap)
    for part, (start, stop) in zip(shuffled, bounds, strict=True):
        assert [sorted(values(part, epoch)) for epoch in range(3)] == [list(range(start, stop))] * 3
        assert values(part, 0) != values(part, 1) or stop - start < 3


def test_contiguous_parts_keep_no_list_and_are_slices() -> None:
    class Long:
        spec = np.zeros((), np.int64)

        def __len__(self) -> int:
            return 10**12

        def read(self, rows: Any) -> Any:
            return np.asarray(rows)

    past, future = loadax.from_source(Long()).shuffle(0).split(0.9, contiguous=True, gap=5)
    assert (len(past), len(future)) == (900_000_000_000 - 4, 100_000_000_000 - 1)
    assert past.read(range(100)).max() < len(past) < len(past) + 5 <= future.read(range(100)).min()
    assert series().split([120, 80], contiguous=True)[0].order_facts == series()[:120].order_facts


def test_contiguous_parts_go_by_position_below_a_shuffle() -> None:
    by_time = series().select(np.argsort(-SERIES))
    past, future = by_time.shuffle(1).split(0.8, contiguous=True)
    assert sorted(values(past)) == list(range(40, 200))
    assert sorted(values(future)) == list(range(40))
    both = loadax.concat([series().shuffle(0), series()[:20].repeat(2)])
    first, rest = both.split([190, 30], contiguous=True, allow_shared_rows=True)
    assert (sorted(values(first)), len(rest)) == (list(range(190)), 50)
    assert values(series().repeat(2).split(0.5, contiguous=True)[0]) == [*range(100)] * 2


@pytest.mark.parametrize(
    ("split", "message"),
    [
        (lambda ds: ds.split(0.8, gap=3), r"gap=3 is for runs of rows; pass contiguous=True as well"),
        (lambda ds: ds.split(0.8, seed=1, contiguous=True), r"seed=1: a contiguous split draws nothing; leave seed= "),
        (lambda ds: ds.split(1.5, contiguous=True), r"fraction=1.5: pass a number between 0 and 1"),
        (lambda ds: ds.split(0.5, contiguous=True, gap=199), r"gap=199: 2 parts of 200 rows .*; pass a smaller gap"),
        (lambda ds: ds.split(201, contiguous=True), r"fraction=201: 201 parts of 200 rows would leave some empty"),
        (lambda ds: ds[:1].split(0.5, contiguous=True), r"fraction=0.5: 2 parts of 1 row would leave some empty"),
        (lambda ds: ds.split([100, 99], contiguous=True), r"the counts add up to 199, and the dataset has 200 rows"),
        (
            lambda ds: ds.split([100, 99], contiguous=True, gap=2),
            r"add up to 199 with gaps of 2, 201 in all, and the dataset has 200 rows; pass counts that add up to it",
        ),
        (
            lambda ds: loadax.mix([ds], [1]).split(0.5, contiguous=True),
            r"split\(\) after mix\(\) .*: ds\.split\(…\)\[0\]",
        ),
        (lambda ds: ds.split_by("day", 0.5, gap=1), r"gap=1 is for runs of groups; pass contiguous=True as well"),
        (lambda ds: ds.split_by("day", 0.5, 2, contiguous=True), r"seed=2: a contiguous split draws nothing"),
        (
            lambda ds: ds.split_by("day", 0.5, contiguous=True, gap=19),
            r"gap=19: .* of 20 groups .*; pass a smaller gap",
        ),
        (lambda ds: ds[:5].split_by("day", 0.5, contiguous=True), r"of 1 group would .*; split a dataset of 2 groups "),
        (
            lambda ds: ds[:50].split_by("day", 6),
            r"fraction=6: 6 parts of 5 groups would leave some empty; pass at most 5",
        ),
        (lambda ds: ds[:5].split_by("day", 2), r"fraction=2: 2 parts of 1 group .*; split a dataset of 2 or more"),
        (
            lambda ds: ds.split_by("day", [10, 9]),
            r"the counts add up to 19, and the dataset has 20 groups; pass counts",
        ),
        (
            lambda ds: ds.split_by("day", [20, 0]),
            r"fraction\[1\]=0: pass a number, at least 1; for fractions, split twice",
        ),
        (
            lambda ds: ds.split_by("day", 3, contiguous=True, gap=9),
            r"gap=9: 3 parts of 20 groups .*; pass a smaller gap",
        ),
        (
            lambda ds: ds.split_by("day", True),
            r"fraction=True: pass a number between 0 and 1.*; a number of equal parts",
        ),
    ],
)
def test_what_contiguous_splits_refuse(split: Callable[[Dataset], Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        split(series())


def test_streams_are_not_split() -> None:
    for contiguous in (False, True):
        with pytest.raises(StreamError, match=r"split\(\)"):
            series().to_stream(4).split(0.5, contiguous=contiguous)
    with pytest.raises(StreamError, match=r"subset_per_epoch\(\)"):
        series().to_stream(4).subset_per_epoch(range(3))


def test_runs_of_groups() -> None:
    past, future = series().split_by("day", 0.75, contiguous=True, gap=2)
    assert (values(past), values(future)) == (list(range(140)), list(range(160, 200)))
    assert past.windows(24).read([0, 3])["t"].shape == (2, 24)
    shuffled = series().shuffle(1).split_by("day", 0.75, contiguous=True, gap=2)
    assert [sorted(values(part)) for part in shuffled] == [values(past), values(future)]
    # Groups that come by turns are in the order of their first rows.
    by_turns = series().map(lambda row: {**row, "day": row["t"] % 5})
    first, rest = by_turns.split_by(lambda row: int(row["day"]), 0.4, contiguous=True)
    assert {each % 5 for each in values(first)} == {0, 1}
    assert {each % 5 for each in values(rest)} == {2, 3, 4}
    drawn = by_turns.split_by(lambda row: int(row["day"]), 0.4)
    assert len({str(part.order_facts) for part in (first, rest, *drawn)}) == 4


# Splits that would leak


def windows(ds: Dataset) -> Dataset:
    return ds.windows(24)


def halves(ds: Dataset) -> Dataset:
    return ds.flat_map(lambda row: [row, row], fan_out=2)


BEFORE = r"call split\(fraction, contiguous=True\) before windows\(\), and make windows of each"
LEAKS: dict[str, tuple[Callable[[], Any], str]] = {
    "windows": (
        lambda: windows(series()).split(0.8),
        r"split\(0\.8\) after windows\(length=24, stride=1\): row \d+ of arrays in memory is in rows \d+ and \d+, .*"
        + BEFORE,
    ),
    "windows, counts": (lambda: windows(series()).split([100, 77]), r"split\(\[100, 77\]\) after windows\("),
    "windows, folds": (lambda: windows(series()).split(5), r"split\(5\) after windows\("),
    "windows and targets": (lambda: series().windows(1, lead=6).split(0.5), r"after windows\(length=1, .*lead=6"),
    "windows without a gap": (
        lambda: windows(series()).split(0.5, contiguous=True),
        r"; pass gap=23, with which they ",
    ),
    "windows, a small gap": (
        lambda: windows(series()).split(0.5, contiguous=True, gap=22),
        r"; pass gap=23, with which",
    ),
    "windows of a group": (
        lambda: windows(series()).split_by(lambda row: int(row["day"][0]), 0.5),
        r"split_by\(\) after",
    ),
    "shuffled windows": (
        lambda: windows(series()).shuffle(0)[:50],
        r"the slice \[0:50\] behind a shuffle of windows\(.*\): row .* so that two parts share rows; "
        + BEFORE
        + r" part, and shuffle each; or, for other rows in every epoch, ds\.subset_per_epoch\(range\(0, 50\)\)$",
    ),
    "a list of shuffled windows": (
        lambda: windows(series()).shuffle(0)[[1, 5]],
        r"select\(2 rows\) behind a shuffle of",
    ),
    "flat_map": (
        lambda: halves(series()).split(0.5),
        r"after flat_map\(\): .*; call split\(fraction\) before flat_map\(\)",
    ),
    "flat_map by counts": (
        lambda: series().flat_map(lambda row: [row] * 3, counts=[3] * 200).split(0.5),
        r"after flat_map\(\): .*; call split\(fraction\) before flat_map\(\), and flat map each part",
    ),
    "flat_map, cut within a row": (
        lambda: halves(series()).split([101, 299], contiguous=True),
        r"; pass gap=1, with wh",
    ),
    "a shuffle of flat_map": (lambda: halves(series()).shuffle(0)[:9], r"\[0:9\] behind a shuffle of flat_map\(\)"),
    "flat_map of a shuffle": (lambda: halves(series().shuffle(0))[:9], r"\[0:9\] behind a shuffle of flat_map\(\)"),
    "pack": (
        lambda: documents().pack(4).split(0.5),
        r"after pack\(\): .*; call split\(fraction\) before pack\(\), and pack",
    ),
    "pack, cut documents": (
        lambda: documents().pack(3, method="best_fit", long="cut").split(0.5),
        r"after pack\(\): row \d+ of list object is in rows",
    ),
    "a shuffle of packs": (lambda: documents().pack(4).shuffle(0)[:9], r"behind a shuffle of pack\(\)"),
    "packs of repeated documents": (
        lambda: documents().repeat(2).pack(9, method="best_fit").split(0.5),
        r"after pack\(\)",
    ),
    "groups of repeated rows": (lambda: documents().repeat(2).group(9, sizes=len).split(0.5), r"after group\(\)"),
    "concat of the same": (
        lambda: loadax.concat([series(), series_twice.map(lambda row: row), series_twice]).split(0.5),
        r"after concat\(\): .*; split each dataset before concat\(\), and concat the parts",
    ),
    "a shuffle of concat": (
        lambda: loadax.concat([series_twice] * 2).shuffle(0)[:9],
        r"behind a shuffle of concat\(\)",
    ),
    "concat of columns of the same": (
        lambda: loadax.concat([series_twice.keep("t"), series_twice.drop("day")]).split(0.5),
        r"after concat\(\)",
    ),
    "zip with what is shifted": (
        lambda: series_twice[:-1].zip(series_twice[1:]).split(0.5),
        r"split each dataset before z",
    ),
    "zip of windows": (lambda: loadax.zip((windows(series_twice),) * 2).split(0.5), r"after windows\("),
    "rows that are listed twice": (
        lambda: series().select([0, 1, 1, 2]).split(0.5, contiguous=True),
        r"after repeated rows: row 1 .* split before rows are listed several times",
    ),
    "windows of windows": (lambda: series().windows(2, stride=2).windows(3).split(0.5), r"after windows\(length=3"),
}


@pytest.mark.parametrize(("make", "message"), LEAKS.values(), ids=LEAKS)
def test_splits_that_would_leak_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: series().windows(24, stride=24).split(0.5),
        lambda: windows(series()).split(0.5, contiguous=True, gap=23),
        lambda: series().windows(24, lead=6, targets=3, stride=2).split(0.5, contiguous=True, gap=15),
        lambda: [part.windows(24) for part in series().split(0.8, contiguous=True)],
        lambda: [part.windows(24).shuffle(0) for part in series().split([150, 50], contiguous=True)],
        lambda: halves(series()).split(0.5, contiguous=True),
        lambda: halves(series()).split([101, 298], contiguous=True, gap=1),
        lambda: halves(series()).split_by("t", 0.5),
        lambda: [halves(part) for part in series().split(0.5)],
        lambda: [part.pack(4) for part in documents_once.split(0.5)],
        lambda: documents().pack(8, method="best_fit").split(0.5),
        lambda: documents().group(20, sizes=len).split(0.5),
        lambda: [loadax.concat([part, part.map(lambda row: row)]) for part in series().split(0.5)],
        lambda: loadax.concat(series().split(5)[1:]).split(0.5),
        lambda: (loadax.concat(series_folds[1:]).shuffle(0), series_folds[0]),
        lambda: loadax.concat(series_folds[1:]).shuffle(0)[:90].split(0.5),
        lambda: loadax.zip((series(), series().map(lambda row: row["t"]))).split(0.5),
        lambda: (series_twice.shuffle(0)[:50], series_twice.shuffle(0)[50:]),
        lambda: (series_twice.windows(4, stride=4).shuffle(0)[:9], series_twice.windows(4, stride=4).shuffle(0)[9:]),
        lambda: series().repeat(2).split(0.5),
    ],
)
def test_splits_that_share_no_row(make: Callable[[], Any]) -> None:
    one, other = make()
    disjoint(one, other, epochs=3)


def test_a_split_goes_on_as_before_where_it_is_asked_for() -> None:
    first, rest = windows(series()).split(0.8, allow_shared_rows=True)
    assert first.order.describe() == [["rows", 177], ["split", 0.8, 0, True, len(first)]]
    assert len(first) + len(rest) == 177
    assert len(halves(series()).split_by(lambda row: int(row["t"]) % 2, 0.5, allow_shared_rows=True)) == 2


# Parts of a shuffle


def test_slices_of_a_shuffled_loader_share_no_row_in_any_epoch() -> None:
    data = loadax.from_arrays({"id": np.arange(1000)}).shuffle(seed=42)
    validation, train = data[:200], data[200:]
    seen = {int(row) for step in range(24) for row in Dataloader(train, 100, num_epochs=3).rows(step)}
    held_out = {int(row) for step in range(6) for row in Dataloader(validation, 100, num_epochs=3).rows(step)}
    assert len(held_out) == 200
    assert len(seen) == 800
    assert not held_out & seen
    assert "rows fixed: those of epoch 0" in str(Dataloader(train, 80).explain())


def test_maps_of_a_part_get_the_epoch_that_is_served() -> None:
    part = (
        series().shuffle(0).map(lambda row, epoch, rng: (row["t"], epoch, rng.random()), rng=True, with_epoch=True)[:9]
    )
    by_epoch = [part.read(range(9), epoch) for epoch in range(3)]
    assert [set(epochs.tolist()) for _, epochs, _ in by_epoch] == [{0}, {1}, {2}]
    assert len({value for _, _, drawn in by_epoch for value in drawn.tolist()}) == 27
    whole = series().shuffle(0).map(lambda row, epoch, rng: (row["t"], epoch, rng.random()), rng=True, with_epoch=True)
    numbers = {row: value for row, _, value in zip(*whole.read(range(200), 2), strict=True)}
    assert all(numbers[row] == value for row, _, value in zip(*by_epoch[2], strict=True))


def test_verbs_after_a_part_see_its_rows() -> None:
    part = series().shuffle(0)[:60]
    rows = set(values(part))
    even = part.filter(lambda row: row["t"] % 2 == 0, workers=1)
    assert [set(values(even, epoch)) for epoch in range(2)] == [{row for row in rows if row % 2 == 0}] * 2
    assert set(values(part.exclude([min(rows)]))) == rows - {min(rows)}
    assert set(values(part.shuffle(9), 3)) == rows


def test_another_part_in_every_epoch_has_a_verb() -> None:
    data = series().shuffle(0)
    short = data.subset_per_epoch(range(20))
    assert [values(short, epoch) for epoch in range(3)] == [values(data, epoch)[:20] for epoch in range(3)]
    assert values(data.subset_per_epoch([5, -1]), 2) == [values(data, 2)[5], values(data, 2)[-1]]
    assert short.order.describe() == [["rows", 200], ["shuffle", 0], ["slice", 0, 1, 20]]
    endless = loadax.mix({"a": data}, {"a": 1}, stop="never")
    assert len(endless.subset_per_epoch(range(7))) == 7
    with pytest.raises(RowIndexError, match=r"positions: position 200 is out of range"):
        data.subset_per_epoch([200])
    with pytest.raises(ArgumentError, match=r"positions=3: pass a list"):
        data.subset_per_epoch(3)


@pytest.mark.parametrize(
    ("before", "now", "call"),
    [
        (
            lambda ds: ds.shuffle(0).subset_per_epoch(range(40)),
            lambda ds: ds.shuffle(0)[:40],
            r"pass \.subset_per_epoch\(range\(0, 40\)\) in its place",
        ),
        (
            lambda ds: ds.shuffle(0).subset_per_epoch(range(100, 40, -2)).map(lambda row: row),
            lambda ds: ds.shuffle(0)[100:40:-2].map(lambda row: row),
            r"pass \.subset_per_epoch\(range\(100, 40, -2\)\) in its place",
        ),
        (
            lambda ds: ds.shuffle(0).subset_per_epoch([*range(40)]).shuffle(1),
            lambda ds: ds.shuffle(0)[[*range(40)]].shuffle(1),
            r"pass \.subset_per_epoch\(rows\) in its place",
        ),
        (
            lambda ds: loadax.mix([ds.shuffle(0).subset_per_epoch(range(40)), ds], {0: [1, 1], 50: [2, 1]}),
            lambda ds: loadax.mix([ds.shuffle(0)[:40], ds], {0: [1, 1], 50: [2, 1]}),
            r"pass \.subset_per_epoch\(range\(0, 40\)\) in its place",
        ),
        (
            lambda ds: ds.shuffle(0).subset_per_epoch(range(40)).zip(ds[:40]),
            lambda ds: ds.shuffle(0)[:40].zip(ds[:40]),
            r"pass \.subset_per_epoch\(range\(0, 40\)\) in its place",
        ),
    ],
)
def test_old_states_are_refused_with_the_verb_that_goes_on(before: Any, now: Any, call: str) -> None:
    with iter(Dataloader(before(series()), 8)) as batches:
        next(batches)
        state = batches.get_state()
    with pytest.raises(StateError, match=r"whose part of the data had other rows in every epoch.*" + call):
        Dataloader(now(series()), 8).iterate(state)
    with Dataloader(before(series()), 8).iterate(state) as batches:
        assert batches.step == 1
    with iter(Dataloader(now(series()), 8)) as batches:
        next(batches)
        resumed = batches.get_state()
    assert Dataloader(now(series()), 8).iterate(resumed).step == 1


def test_packs_of_a_part_go_on_as_before() -> None:
    # They are made once, of the rows of epoch 0, which are the same as before.
    now = documents().shuffle(0)[:60].pack(9, method="best_fit")
    before = documents().shuffle(0).subset_per_epoch(range(60)).pack(9, method="best_fit")
    assert now.order_facts == before.order_facts
    np.testing.assert_array_equal(now.read(range(len(now)))["tokens"], before.read(range(len(now)))["tokens"])


def test_the_advice_for_block_shuffles_works() -> None:
    data = loadax.from_source(ChunkedSource({"t": SERIES}, 10)).shuffle(0, block="chunks", window=2, lanes=2)
    with pytest.raises(ArgumentError, match=r"behind a block shuffle .*: ds\.split\(\[30, 170\]\)"):
        data[:30]
    validation, train = data.split([30, 170])
    disjoint(validation, train, epochs=3)
    assert len(data.subset_per_epoch(range(30))) == 30


def test_rows_made_of_a_mixture_that_repeats_are_not_split() -> None:
    parts = [documents()[:10], documents()[10:]]
    once = loadax.mix(parts, [1, 1]).pack(9, method="best_fit").split(0.5)
    assert sum(map(len, once)) > 1
    with pytest.raises(ArgumentError, match=r"pack\(\)"):
        loadax.mix(parts, [1, 1], stop="all").pack(9, method="best_fit").split(0.5)


def test_parts_of_a_mixture_that_share_rows_are_told() -> None:
    data = series().shuffle(0)
    mixed = loadax.mix({"train": data[:120], "extra": data[100:]}, [1, 1])
    text = str(Dataloader(mixed, 8).explain())
    assert "train and extra share rows, such as row" in text
    apart = loadax.mix({"train": data[:120], "extra": data[120:]}, [1, 1])
    assert "share rows" not in str(Dataloader(apart, 8).explain())
