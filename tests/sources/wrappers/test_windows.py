"""Sliding windows: slices of the rows, and nothing read that no slice needs."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

from loadax import Dataloader, Dataset, from_arrays, from_source
from loadax.errors import ArgumentError, SourceError
from loadax.loader.state import OrderHash
from loadax.sources.adapt import as_source
from loadax.sources.base import BaseSource, Child
from loadax.sources.checks import chunk_starts
from loadax.sources.wrappers.windows import WindowSource
from tests.limits import examples
from tests.loader.oracle import mesh_of
from tests.sources.chunked import ChunkedSource

ROWS = 40
FIELD = np.arange(ROWS * 6, dtype=np.float32).reshape(ROWS, 2, 3)
HOUR = np.arange(ROWS, dtype=np.int32)
TREE = {"field": FIELD, "hour": HOUR}


def counting(into: bool = True, chunks: Any = None) -> ChunkedSource:
    return ChunkedSource(TREE, chunks, into)


def sliced(values: Any, begins: Any, count: int) -> Any:
    """The oracle: one slice a window."""
    return np.stack([values[begin : begin + count] for begin in begins])


class TestWhatIsRead:
    @settings(max_examples=examples(150), deadline=None)
    @given(st.data())
    def test_windows_are_slices(self, data: st.DataObject) -> None:
        low = data.draw(st.integers(0, 10))
        high = data.draw(st.integers(30, ROWS))
        length, stride = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 11))
        lead = data.draw(st.none() | st.integers(2 - length, 6) | st.just(10))
        targets = data.draw(st.integers(1, 4))
        dataset = from_source(counting(data.draw(st.booleans())))[low:high].windows(length, stride, lead, targets)
        ahead = 0 if lead is None else length - 1 + lead
        span = length if lead is None else max(length, ahead + targets)
        begins = [begin for begin in range(low, high, stride) if begin + span <= high]
        assert len(dataset) == len(begins)
        chosen = np.array(data.draw(st.lists(st.integers(0, len(begins) - 1), max_size=8)), np.int64)
        read = dataset.read(chosen)
        where = np.array(begins, np.int64)[chosen].tolist()
        inputs = read if lead is None else read["inputs"]
        for name, values in TREE.items():
            if len(where):
                np.testing.assert_array_equal(inputs[name], sliced(values, where, length))
                if lead is not None:
                    np.testing.assert_array_equal(read["targets"][name], sliced(values[ahead:], where, targets))
            assert inputs[name].shape == (len(where), length, *values.shape[1:])
            assert inputs[name].dtype == values.dtype

    @settings(max_examples=examples(150), deadline=None)
    @given(st.data())
    def test_columns_may_cut_the_window_too_and_only_those_rows_are_read(self, data: st.DataObject) -> None:
        length, stride = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 4))
        lead = data.draw(st.none() | st.integers(2 - length, 3))
        source = counting()
        windows = from_source(source).windows(length, stride, lead, 2).source
        parts = [(0, length)] if lead is None else [(0, length), (length - 1 + lead, 2)]
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
                expected.append(sliced(values, (rows * stride + first).tolist(), count)[(slice(None), *cut)])
                shape = expected[-1].shape
                within = np.full((*shape[:-1], shape[-1] + 1), -1, values.dtype)
                out.append(within[..., :-1] if data.draw(st.booleans()) else np.empty(shape, values.dtype))
                for row in rows * stride + first:
                    wanted[leaf][(slice(row + box[0][0], row + box[0][1]), *cut[1:])] += 1
        assert isinstance(windows, WindowSource)
        assert windows.read_into is not None
        windows.read_into(rows, boxes, out)
        for values, right in zip(out, expected, strict=True):
            if right is not None:
                np.testing.assert_array_equal(values, right)
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
            for arguments in ((3,), (4,), (3, 2), (3, 1, 1), (3, 1, 1, 2))
        }
        assert len(hashes) == 5


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


@pytest.mark.parametrize(
    ("verb", "message"),
    [
        (lambda ds: ds.windows(0), "length=0: pass 1 or more"),
        (lambda ds: ds.windows(2.5), r"length=2\.5: pass an int"),
        (lambda ds: ds.windows(2, 0), "stride=0: pass 1 or more"),
        (lambda ds: ds.windows(2, lead="next"), "lead='next': pass an int"),
        (lambda ds: ds.windows(3, lead=-2), "lead=-2: the first target would be before the window; pass -1 or more"),
        (lambda ds: ds.windows(3, lead=1, targets=0), "targets=0: pass 1 or more"),
        *(
            (
                verb,
                (
                    r"windows\(\) needs consecutive rows of one source; "
                    r"(call windows\(2\) first, then|map the windows|make windows of each part)"
                ),
            )
            for verb in (
                lambda ds: ds.shuffle(0).windows(2),
                lambda ds: ds[::2].windows(2),
                lambda ds: ds[::-1].windows(2),
                lambda ds: ds[::2][3:].windows(2),
                lambda ds: ds.split(0.5)[0].windows(2),
                lambda ds: ds.repeat(2).windows(2),
                lambda ds: ds.map(lambda row: row).windows(2),
                lambda ds: ds.shuffle(0)[3:].windows(2),
            )
        ),
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
        (lambda ds: ds[:0].windows(1), "needs 1 rows .* but there are only 0"),
    ],
)
def test_too_few_rows(verb: Any, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        verb(from_arrays(TREE))


def test_a_window_that_just_fits() -> None:
    assert len(from_arrays(TREE).windows(ROWS)) == 1
    assert len(from_arrays(TREE)[:6].windows(4, 2, 2)) == 1
    assert math.prod(from_arrays(TREE).windows(ROWS)[0]["field"].shape) == FIELD.size
