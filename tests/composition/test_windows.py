"""Sliding windows: slices of the rows, and nothing read that no slice needs."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from jax.sharding import PartitionSpec as P

import loadax
from loadax import Dataloader, Dataset, concat, from_arrays, from_source, from_zarr, mix, write_zarr
from loadax.composition.windowed import WindowSource
from loadax.errors import ArgumentError, SourceError, StreamError
from loadax.loader.order_hash import OrderHash
from loadax.sources.adapt import as_source
from loadax.sources.base import BaseSource, Child
from loadax.sources.checks import chunk_starts
from loadax.sources.zarr.array import StoredArray
from tests.limits import examples
from tests.loader.oracle import mesh_of
from tests.sources.chunked import ChunkedSource

ROWS = 40
FIELD = np.arange(ROWS * 6, dtype=np.float32).reshape(ROWS, 2, 3)
HOUR = np.arange(ROWS, dtype=np.int32)
TREE = {"field": FIELD, "hour": HOUR}


def negative(batch: Any) -> Any:
    return {name: -values for name, values in batch.items()}


def counting(into: bool = True, chunks: Any = None) -> ChunkedSource:
    return ChunkedSource(TREE, chunks, into)


def sliced(values: Any, begins: Any, count: int, every: int = 1) -> Any:
    """The oracle: one slice a window."""
    return np.stack([values[begin : begin + count * every : every] for begin in begins])


class TestWhatIsRead:
    @settings(max_examples=examples(150), deadline=None)
    @given(st.data())
    def test_windows_are_slices(self, data: st.DataObject) -> None:
        low = data.draw(st.integers(0, 10))
        high = data.draw(st.integers(30, ROWS))
        length, stride = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 11))
        every = data.draw(st.integers(1, 3))
        lead = data.draw(st.none() | st.integers((1 - length) * every, 6) | st.just(10))
        targets = 1 if lead is None else data.draw(st.integers(1, 2))
        source = from_source(counting(data.draw(st.booleans()))) if data.draw(st.booleans()) else from_arrays(TREE)
        dataset = source[low:high].windows(length, stride, lead, targets, every)
        ahead = 0 if lead is None else (length - 1) * every + lead
        span = 1 + max((length - 1) * every, 0 if lead is None else ahead + (targets - 1) * every)
        begins = [begin for begin in range(low, high, stride) if begin + span <= high]
        assert len(dataset) == len(begins)
        chosen = np.array(data.draw(st.lists(st.integers(0, len(begins) - 1), max_size=8)), np.int64)
        read = dataset.read(chosen)
        where = np.array(begins, np.int64)[chosen].tolist()
        inputs = read if lead is None else read["inputs"]
        for name, values in TREE.items():
            if len(where):
                np.testing.assert_array_equal(inputs[name], sliced(values, where, length, every))
                if lead is not None:
                    np.testing.assert_array_equal(read["targets"][name], sliced(values[ahead:], where, targets, every))
            assert inputs[name].shape == (len(where), length, *values.shape[1:])
            assert inputs[name].dtype == values.dtype

    @settings(max_examples=examples(150), deadline=None)
    @given(st.data())
    def test_columns_may_cut_the_window_too_and_only_those_rows_are_read(self, data: st.DataObject) -> None:
        length, stride, every = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))
        lead = data.draw(st.none() | st.integers((1 - length) * every, 3))
        mapped = data.draw(st.booleans())
        source = counting()
        rows_before = from_source(source).map_batch(negative, elementwise=True) if mapped else from_source(source)
        windows = rows_before.windows(length, stride, lead, 1 if lead is None else 2, every).source
        source.forget()  # the row that was read for the spec
        parts = [(0, length)] if lead is None else [(0, length), ((length - 1) * every + lead, 2)]
        rows = np.array(data.draw(st.lists(st.integers(0, len(windows) - 1), min_size=1, max_size=5)), np.int64)
        boxes: list[Any] = []
        out: list[Any] = []
        wanted = [np.zeros(values.shape, np.int64) for values in TREE.values()]
        expected: list[Any] = []
        for first, count in parts:
            for leaf, values in enumerate(TREE.values()):
                if data.draw(st.integers(0, 3)) == 0:
                    boxes.append(None)
                    out.append(None)
                    expected.append(None)
                    continue
                low = data.draw(st.integers(0, count - 1))
                box = (
                    (low, data.draw(st.integers(low + 1, count))),
                    *((0, 1 + extent // 2) for extent in values.shape[1:]),
                )
                cut = tuple(slice(*each) for each in box)
                boxes.append(box)
                expected.append(sliced(values, (rows * stride + first).tolist(), count, every)[(slice(None), *cut)])
                shape = expected[-1].shape
                within = np.full((*shape[:-1], shape[-1] + 1), -1, values.dtype)
                out.append(within[..., :-1] if data.draw(st.booleans()) else np.empty(shape, values.dtype))
                for row in rows * stride + first:
                    wanted[leaf][(slice(row + box[0][0] * every, row + box[0][1] * every, every), *cut[1:])] += 1
        assert isinstance(windows, WindowSource)
        assert windows.read_into is not None
        windows.read_into(rows, boxes, out)
        for values, right in zip(out, expected, strict=True):
            if right is not None:
                np.testing.assert_array_equal(values, -right if mapped else right)
        for read, needed in zip(source.elements, wanted, strict=True):
            np.testing.assert_array_equal(read, needed > 0)  # windows share the rows of a user's source

    def test_a_source_without_a_spec(self) -> None:
        windows = from_source([{"x": float(hour)} for hour in range(10)]).windows(2, stride=4)
        assert windows.read([2, 0])["x"].tolist() == [[8.0, 9.0], [0.0, 1.0]]

    def test_windows_of_slices_share_no_row(self) -> None:
        data = from_source(counting())
        first, rest = data[:30].windows(4), data[30:].windows(4)
        assert set(np.unique(first.read(range(len(first)))["hour"])) == set(range(30))
        assert set(np.unique(rest.read(range(len(rest)))["hour"])) == set(range(30, 40))
        inner = data[5:30][2:][:-3].windows(19, lead=1)
        assert len(inner) == 1
        assert inner[0]["inputs"]["hour"].tolist() == list(range(7, 26))
        assert inner[0]["targets"]["hour"].tolist() == [26]
        assert data[::-1][::-1].windows(2)[0]["hour"].tolist() == [0, 1]


class TestThroughALoader:
    @pytest.mark.parametrize("into", [True, False])
    def test_with_the_time_axis_sharded_over_the_mesh(self, into: bool) -> None:
        data = from_source(counting(into)).windows(8, stride=2, lead=1, targets=4).shuffle(3)
        mesh = mesh_of({"data": 2, "time": 4}, seed=1)
        loader = Dataloader(data, 4, mesh=mesh, partition=P("data", "time"), num_epochs=2)
        with iter(loader) as batches:
            for step, batch in enumerate(batches):
                begins = (loader.rows(step) * 2).tolist()
                for name, values in TREE.items():
                    assert batch["inputs"][name].sharding.spec == P("data", "time")
                    np.testing.assert_array_equal(batch["inputs"][name], sliced(values, begins, 8))
                    np.testing.assert_array_equal(batch["targets"][name], sliced(values[8:], begins, 4))
        assert step + 1 == len(loader)

    @pytest.mark.parametrize("chunks", [8, np.array([0, 3, 20, 21])])
    def test_with_its_chunks_open(self, chunks: Any) -> None:
        data = from_source(counting(chunks=chunks)).windows(5, lead=2).shuffle(3, block="chunks", window=2, lanes=2)
        loader = Dataloader(data, 8, mesh=mesh_of({"data": 4, "time": 1, "x": 2}), partition=P("data", "time"))
        with iter(loader) as batches:
            for step, batch in enumerate(batches):
                np.testing.assert_array_equal(batch["inputs"]["field"], sliced(FIELD, loader.rows(step).tolist(), 5))
                np.testing.assert_array_equal(batch["targets"]["hour"][:, 0], loader.rows(step) + 6)

    def test_a_state_belongs_to_windows_of_that_kind(self) -> None:
        hashes = {
            OrderHash(from_arrays(TREE).windows(*arguments))(0, 0)
            for arguments in ((3,), (4,), (3, 2), (3, 1, 1), (3, 1, 1, 2), (3, 1, None, 1, 2), (3, 1, 1, 1, 2))
        }
        assert len(hashes) == 7


def windows_of(chunks: Any, length: int, stride: int, low: int = 0, lead: int | None = None) -> Dataset:
    return from_source(counting(chunks=chunks))[low:].windows(length, stride, lead)


class TestChunks:
    @settings(max_examples=examples(150), deadline=None)
    @given(st.data())
    def test_are_the_windows_that_begin_in_the_same_chunk(self, data: st.DataObject) -> None:
        chunks = data.draw(
            st.one_of(
                st.integers(2, ROWS + 3),
                st.sets(st.integers(1, ROWS - 1), min_size=1).map(lambda inner: np.array(sorted({0, *inner}))),
            )
        )
        low, stride = data.draw(st.sampled_from([0, 0, 4, 8, 13])), data.draw(st.integers(1, 9))
        dataset = windows_of(chunks, data.draw(st.integers(1, 5)), stride, low)
        bounds = list(counting(chunks=chunks).chunks)
        owner = [sum(bound <= low + window * stride for bound in bounds) for window in range(len(dataset))]
        begins = [window for window in range(len(dataset)) if window == 0 or owner[window] != owner[window - 1]]
        found = chunk_starts(dataset.source)
        assert begins == (list(range(len(dataset))) if found is None else list(found))

    def test_stay_a_range_where_they_are_equal(self) -> None:
        assert windows_of(8, 3, 2).source.chunks == range(0, 19, 4)
        assert windows_of(8, 3, 1, low=16).source.chunks == range(0, 22, 8)

    def test_of_a_source_that_has_none(self) -> None:
        assert windows_of(None, 3, 1).source.chunks is None
        assert windows_of(4, 3, 4).source.chunks is None
        with pytest.raises(
            ArgumentError, match=r"block='chunks': windows \(length=3, stride=4\) of chunked arrays has no chunks"
        ):
            windows_of(4, 3, 4).shuffle(0, block="chunks")

    @pytest.mark.parametrize(
        ("length", "stride", "lead", "times"), [(4, 1, None, 4.0), (4, 2, 1, 2.5), (2, 8, None, 1.0), (3, 1, -1, 4.0)]
    )
    def test_what_is_wrapped_around_its_source_hears_how_often_rows_are_asked_for(
        self, length: int, stride: int, lead: int | None, times: float
    ) -> None:
        windows = windows_of(8, length, stride, lead=lead).source
        heard = []
        inner = ChunkedSource({name: -values for name, values in TREE.items()}, 8)

        def wrap(child: Child) -> BaseSource:
            heard.append(child)
            return as_source(inner)

        assert isinstance(windows, WindowSource)
        again = windows.map_children(wrap)
        assert heard == [("", windows._reader.source, None, times, ())]
        assert (repr(again), len(again)) == (repr(windows), len(windows))
        one, other = again.read(np.array([3])), windows.read(np.array([3]))
        np.testing.assert_array_equal(
            (one if lead is None else one["inputs"])["hour"], -(other if lead is None else other["inputs"])["hour"]
        )


def hours(first: int, stop: int) -> Dataset:
    return from_arrays({name: values[first:stop] for name, values in TREE.items()})


def shifted(batch: Any) -> Any:
    return {**batch, "hour": batch["hour"] + 1000}


def twice(row: Any) -> Any:
    return {**row, "hour": row["hour"] * 2}


class TestBehindOtherVerbs:
    """Runs of consecutive rows: begin and values of `hour` of each part, as lists."""

    @pytest.mark.parametrize(
        ("make", "runs"),
        [
            (lambda one, two: concat([one, two]), [range(15), range(15, 40)]),
            (lambda one, two: concat([one[2:], two])[::3], [range(2, 15, 3), range(17, 40, 3)]),
            (lambda one, two: concat([one, two])[5:24], [range(5, 15), range(15, 24)]),
            (lambda one, two: concat([one, two]).map(twice), [range(0, 30, 2), range(30, 80, 2)]),
            (lambda one, two: concat([one.map(twice), two]), [range(0, 30, 2), range(15, 40)]),
            (lambda one, two: concat([concat([one, two[:0]]), two[::2]]), [range(15), range(15, 40, 2)]),
            (
                lambda one, two: concat([one, two]).map_batch(shifted, elementwise=True),
                [range(1000, 1015), range(1015, 1040)],
            ),
            (lambda one, two: concat([one, two]).map_batch(shifted), [range(1000, 1015), range(1015, 1040)]),
            (
                lambda one, two: loadax.zip({"hour": concat([one, two]), "other": hours(0, 40)}).map(
                    lambda row: row["hour"]
                ),
                [range(15), range(15, 40)],
            ),
            (lambda one, two: concat([one, two]).select(range(1, 39, 2)), [range(1, 15, 2), range(15, 39, 2)]),
            (
                lambda one, two: concat([one, two]).zip(hours(0, 40))[1:39:2].map(lambda pair: pair[0]),
                [range(1, 15, 2), range(15, 39, 2)],
            ),
            (
                lambda one, two: concat([one, two]).zip(hours(0, 40))[::-1][::-1].map(lambda pair: pair[0]),
                [range(15), range(15, 40)],
            ),
            (lambda one, _: one[::-1][::-1], [range(15)]),
            (lambda one, two: concat([one, two])[5:][::-1][1:][::-1], [range(5, 15), range(15, 39)]),
        ],
    )
    @pytest.mark.parametrize("seams", ["avoid", "cross"])
    def test_windows_contain_rows_of_one_run_unless_they_may_cross_seams(
        self, make: Any, runs: Any, seams: Any
    ) -> None:
        dataset = make(hours(0, 15), hours(15, 40)).windows(2, 3, 1, 2, every=2, seams=seams)
        runs = [[value for run in runs for value in run]] if seams == "cross" else [list(run) for run in runs]
        windows = [run[begin : begin + 7] for run in runs for begin in range(0, len(run) - 5, 3)]
        read = dataset.read(range(len(dataset)))
        assert read["inputs"]["hour"].tolist() == [[window[0], window[2]] for window in windows]
        assert read["targets"]["hour"].tolist() == [[window[3], window[5]] for window in windows]

    @pytest.mark.parametrize("place", ["whole", "part", "zip"])
    def test_rows_that_windows_of_a_read_share_are_mapped_once(self, place: str) -> None:
        seen: list[int] = []

        def noted(row: Any) -> Any:
            seen.append(int(row["hour"]))
            return row

        parts = [hours(0, 15), hours(15, 40)]
        rows = {
            "whole": lambda: concat(parts).map(noted),
            "part": lambda: concat([part.map(noted) for part in parts]),
            "zip": lambda: concat(parts).map(noted).zip(hours(0, 40)).map(lambda pair: pair[0]),
        }[place]()
        windows = rows.windows(3, lead=1, targets=2, every=2, seams="cross")
        seen.clear()
        windows.read(range(6))
        assert seen == list(range(13))

    def test_random_maps_are_keyed_by_row_and_epoch(self) -> None:
        noisy = from_arrays(HOUR).map(lambda hour, rng: hour + rng.random(), rng=True)
        windows = noisy.windows(3, every=4)
        for epoch in (0, 1):
            rows = noisy.read(range(ROWS), epoch)
            np.testing.assert_array_equal(windows.read([2, 3, 7], epoch), sliced(rows, [2, 3, 7], 3, 4))

    def test_elementwise_maps_see_only_the_columns_of_this_host(self) -> None:
        source = counting()
        data = from_source(source).map_batch(negative, elementwise=True).windows(4, every=2, lead=1)
        windows = data.source
        source.forget()  # the row that was read for the spec
        out = np.empty((2, 2, 2, 1), np.float32)
        windows.read_into(np.array([0, 9]), [((2, 4), (0, 2), (1, 2)), None, None, None], [out, None, None, None])
        np.testing.assert_array_equal(out, -sliced(FIELD, [4, 13], 2, 2)[..., 1:2])
        assert np.flatnonzero(source.elements[0].sum((1, 2))).tolist() == [4, 6, 13, 15]
        assert source.elements[0].sum() == 4 * 2
        assert not source.elements[1].any()


class TestZarr:
    def test_inputs_and_targets_read_each_chunk_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write_zarr(from_arrays({"field": FIELD}), tmp_path / "a", chunk_rows=8)
        data = from_zarr(tmp_path / "a").windows(3, lead=2, targets=2, every=2)
        asked: list[list[int]] = []
        start = StoredArray.start

        def noted(array: Any, rows: Any, columns: Any, out: Any) -> Any:
            asked.append(rows.tolist())
            return start(array, rows, columns, out)

        monkeypatch.setattr(StoredArray, "start", noted)
        read = data.read([1, 2, 20])
        np.testing.assert_array_equal(read["inputs"]["field"], sliced(FIELD, [1, 2, 20], 3, 2))
        np.testing.assert_array_equal(read["targets"]["field"], sliced(FIELD, [7, 8, 26], 2, 2))
        assert asked == [[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 22, 24, 26, 28]]

    @pytest.mark.processes
    def test_a_loader_of_yearly_stores_resumed_in_a_worker_process(self, tmp_path: Path) -> None:
        for year, (first, stop) in enumerate([(0, 15), (15, 40)]):
            write_zarr(hours(first, stop), tmp_path / f"{year}.zarr", chunk_rows=5)
        years = concat([from_zarr(tmp_path / f"{year}.zarr") for year in range(2)])
        windows = years.map(twice).windows(3, lead=1, every=2)
        begins = [*range(10), *range(15, 35)]
        assert [begins[first] for first in np.asarray(windows.source.chunks)] == [0, 5, 15, 20, 25, 30]
        loader = Dataloader(
            windows.shuffle(1, block="chunks", window=1, lanes=2),
            8,
            mesh=mesh_of({"data": 8}),
            num_workers=1,
            worker_type="process",
        )
        with loader.iterate(1) as batches:
            for step in range(1, len(loader)):
                rows = [begins[row] for row in loader.rows(step).tolist()]
                batch = next(batches)
                np.testing.assert_array_equal(batch["inputs"]["hour"], 2 * sliced(HOUR, rows, 3, 2))
                np.testing.assert_array_equal(batch["targets"]["field"][:, 0], FIELD[np.array(rows) + 5])
        row = next(row for row in loader.rows(1).tolist() if begins[row] >= 15)
        (place,) = loader.find(row, epochs=0)
        record = loader.trace(place.step)[place.position]
        assert (place.step, record.row) == (1, row)
        assert record.where is not None
        assert all("1.zarr" in Path(location.file).parts for location in record.where)
        assert "every=2) of concatenation of 2.map(twice" in str(loader.explain(2))


STATES: dict[str, Callable[[], Dataset]] = {
    "rows": lambda: from_arrays(HOUR)[:30].windows(3),
    "spaced": lambda: from_arrays(HOUR)[:32].windows(3, every=2),
    "every second": lambda: from_arrays(np.arange(60))[::2].windows(3),
    "avoid": lambda: concat([from_arrays(HOUR[:12]), from_arrays(HOUR[:20])]).windows(3),
    "cross": lambda: concat([from_arrays(HOUR[:10]), from_arrays(HOUR[:20])]).windows(3, seams="cross"),
    "other seam": lambda: concat([from_arrays(HOUR[:15]), from_arrays(HOUR[:17])]).windows(3),
    "mapped": lambda: from_arrays(HOUR)[:30].map(lambda row: row).windows(3),
    "other lead": lambda: from_arrays(HOUR)[:32].windows(3, every=2, lead=1),
}


def test_two_recipes_never_share_a_state_and_old_windows_keep_theirs() -> None:
    made = {name: make() for name, make in STATES.items()}
    hashes = {name: OrderHash(each)(0, 0) for name, each in made.items()}
    assert len(set(hashes.values())) == len(STATES)
    assert made["rows"].source.describe() == []
    pair = loadax.zip((from_arrays(HOUR), from_arrays(HOUR)))
    assert pair.windows(3).source.describe() == pair.source.describe()
    assert from_arrays(HOUR).windows(3, seams="cross").source.describe() == []


@pytest.mark.parametrize(
    ("before", "advice", "follow"),
    [
        (
            lambda ds: ds.shuffle(0),
            r"call windows\(2\) before shuffle\(0\), not after it$",
            lambda ds: ds.windows(2).shuffle(0),
        ),
        (
            lambda ds: ds.shuffle(0)[3:],
            r"split into runs of rows instead of shuffle\(0\), .*: split\(0.8, contiguous=True\)\[0\].windows\(2\)$",
            lambda ds: ds.split(0.8, contiguous=True)[0].windows(2),
        ),
        (
            lambda ds: concat([ds, ds.shuffle(0)]),
            r"call windows\(2\) before shuffle\(0\), not after it$",
            lambda ds: concat([ds.windows(2), ds.windows(2).shuffle(0)]),
        ),
        (
            lambda ds: mix([ds, ds], [1, 1]),
            r"make windows of each dataset, then mix those: mix\(\{name: ds\.windows\(2\), …\}, weights\)$",
            lambda ds: mix({"a": ds.windows(2), "b": ds.windows(2)}, [1, 1]),
        ),
        *(
            (
                verb,
                rf"split into runs of rows instead of {name}, .*: split\(0.8, contiguous=True\)\[0\].windows\(2\)$",
                lambda ds: ds.split(0.8, contiguous=True)[0].windows(2),
            )
            for verb, name in (
                (lambda ds: ds.split(0.5)[0], r"split\(.*\)"),
                (lambda ds: ds.split_by("hour", 0.5)[0], r"split_by\(.*\)"),
                (lambda ds: ds[[3, 1, 2]], r"select\(.*\)"),
            )
        ),
        *(
            (
                verb,
                rf"call windows\(2\) before {name}, not after it$",
                lambda ds, verb=verb: verb(ds.windows(2)),
            )
            for verb, name in (
                (lambda ds: ds.filter(lambda row: row["hour"].sum() % 3 > 0), r"filter\(.*\)"),
                (lambda ds: ds.exclude([3]), r"exclude\(.*\)"),
                (lambda ds: ds.repeat(2), r"repeat\(2\)"),
                (lambda ds: ds[::-1], r"\[39::-1\]\[:40\]"),
                (lambda ds: ds.flat_map(lambda row: [row], 1), r"flat_map\(.*\)"),
            )
        ),
    ],
)
def test_advice_where_rows_are_not_consecutive_works(before: Any, advice: str, follow: Any) -> None:
    rows = from_arrays(TREE)
    with pytest.raises(ArgumentError, match=r"windows\(\) needs consecutive rows; " + advice):
        before(rows).windows(2)
    assert np.shape(follow(rows)[0]["hour"]) == (2,)


def test_streams_are_told_where_windows_can_be_made() -> None:
    rows = from_arrays(HOUR)
    with pytest.raises(StreamError, match=r"call windows\(2\) before to_stream\(\), or make them in open_lane\(\)"):
        rows.to_stream(lanes=2).windows(2)
    assert rows.windows(2).to_stream(lanes=2).is_stream


@pytest.mark.parametrize(
    ("verb", "message"),
    [
        (lambda ds: ds.windows(3, lead=-3), "lead=-3: the first target would be before the window; pass -2 or more"),
        (lambda ds: ds.windows(3, lead=-9, every=4), "lead=-9: the first target would be before .*; pass -8 or more"),
        (lambda ds: ds.windows(2, seams="keep"), "seams='keep': pass 'avoid', or 'cross' for windows over the seams"),
    ],
)
def test_what_is_refused(verb: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        verb(from_arrays(TREE))


@pytest.mark.parametrize(
    ("verb", "message"),
    [
        (
            lambda ds: ds.windows(41),
            r"a window needs 41 rows \(length=41, stride=1\), but there are only 40; pass a smaller length",
        ),
        (
            lambda ds: ds[:5].windows(4, 2, 2),
            r"needs 6 rows \(length=4, stride=2, lead=2, targets=1\), but there are only 5",
        ),
        (lambda ds: ds[:0].windows(1), "needs 1 row .* but there are only 0"),
        (
            lambda ds: concat([ds, ds[:5]]).windows(21, every=2, seams="avoid"),
            r"needs 41 rows .*every=2\), but there are only 40 between two seams; .* smaller length, or seams='cross'$",
        ),
        (lambda ds: concat([ds, ds]).windows(90), "only 40 between two seams; pass a smaller length$"),
    ],
)
def test_too_few_rows(verb: Any, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        verb(from_arrays(TREE))


def test_a_window_that_just_fits() -> None:
    assert len(from_arrays(TREE).windows(ROWS)) == 1
    assert len(concat([hours(0, 40), hours(0, 5)]).windows(21, every=2, seams="cross")) == 5
    assert len(from_arrays(TREE)[:6].windows(4, 2, 2)) == 1
    assert math.prod(from_arrays(TREE).windows(ROWS)[0]["field"].shape) == FIELD.size


def test_targets_need_a_lead() -> None:
    with pytest.raises(ArgumentError, match=r"targets=2 needs lead=, .*; pass lead=1$"):
        from_arrays(HOUR).windows(3, targets=2)
    assert from_arrays(HOUR).windows(3, lead=1, targets=2)[0].keys() == {"inputs", "targets"}
