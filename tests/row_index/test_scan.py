"""A scan reads whole chunks, each once, and ends when it is told to."""

import itertools
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from loadax import Dataset, concat, from_arrays, from_source
from loadax.errors import ArgumentError
from loadax.kept import kept_pass
from loadax.protocols import ArraySpec, Integers
from loadax.reader import Reader
from loadax.row_index import scan
from loadax.row_index.scan import RowWork, read_span, row_spans, threads_for
from tests.limits import HANG, until
from tests.sources.chunked import ChunkedSource

VALUES = np.arange(2000)


def chunked(chunks: Any) -> tuple[Dataset, list[Integers]]:
    reads: list[Integers] = []
    return from_source(ChunkedSource({"x": VALUES}, chunks, before=reads.append)), reads


@pytest.mark.parametrize("chunks", [3, 700, 2000, np.array([0, 1, 2, 500, 1999]), np.array([0, 1234])], ids=str)
def test_no_chunk_is_in_two_runs(chunks: Any) -> None:
    dataset, reads = chunked(chunks)
    assert len(dataset.filter(lambda example: example["x"] >= 0)) == 2000
    starts = np.arange(0, 2000, chunks) if isinstance(chunks, int) else chunks
    owners = [np.unique(np.searchsorted(starts, rows, side="right")).tolist() for rows in reads]
    met = [chunk for chunks_of_a_read in owners for chunk in chunks_of_a_read]
    assert sorted(met) == sorted(set(met))
    assert sorted(np.concatenate(reads).tolist()) == VALUES.tolist()


@pytest.mark.parametrize("size", [1, 7, 1024, 5000])
@pytest.mark.parametrize("chunks", [None, 10, np.array([0, 3, 900])], ids=str)
def test_parts_have_every_selected_row_once(size: int, chunks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadax.row_index.scan.SPAN_ROWS", size)
    reader = (from_arrays({"x": VALUES}) if chunks is None else chunked(chunks)[0]).reader
    met = np.zeros(2000, bool)
    met[[5, 6, 7, 1200, 1999]] = True
    parts = rows_of_parts(reader, met)
    assert np.concatenate(parts).tolist() == np.flatnonzero(met).tolist()
    assert all(map(len, parts))


def rows_of_parts(reader: Reader, met: Any) -> list[Any]:
    work = RowWork(row_spans(reader, met), lambda run: run.rows, np.int64, "rows")
    parts = [work.compute(part, threading.Event())["values"] for part in range(len(work.sizes))]
    assert list(map(len, parts)) == work.sizes
    return parts


def test_few_rows_make_many_parts_and_large_rows_are_read_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    all_met = np.ones(100, bool)
    assert len(rows_of_parts(from_arrays(VALUES[:100]).reader, all_met)) > 12
    large = from_source([{"x": np.zeros(1 << 20)}] * 3).reader
    reads: list[int] = []

    def counted(reader: Reader, rows: Integers, over: threading.Event) -> Any:
        reads.append(len(rows))
        return read_span(reader, rows, over)

    monkeypatch.setattr(scan, "read_span", counted)
    assert list(map(len, rows_of_parts(large, all_met[:3]))) == [1, 1, 1] == reads
    assert rows_of_parts(large, np.empty(0, bool)) == []


@given(
    total=st.integers(0, 300), few=st.integers(1, 9), many=st.integers(1, 9), most=st.integers(1, 50), data=st.data()
)
def test_parts_depend_on_numbers_alone(total: int, few: int, many: int, most: int, data: st.DataObject) -> None:
    met = np.array(data.draw(st.lists(st.booleans(), min_size=total, max_size=total)), bool)
    reader = from_arrays(np.arange(max(1, total))).reader
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("FEW_PARTS", few), ("MANY_PARTS", many), ("PART_ROWS", most)):
            patch.setattr(kept_pass, name, value)
        parts = rows_of_parts(reader, met)
    assert np.concatenate([np.empty(0, np.int64), *parts]).tolist() == np.flatnonzero(met).tolist()


def test_rows_that_are_never_stacked_need_no_spec_in_common() -> None:
    unlike = concat([from_source(["a", "bb"]), from_source([np.arange(3)])])
    assert [len(row) for row in unlike.filter(lambda row: len(row) > 1)] == [2, 3]
    ragged = from_arrays(np.arange(5)).map_batch(lambda rows: rows + 1).map(np.arange)
    assert [len(row) for row in ragged.filter(lambda row: len(row) % 2 == 1)] == [1, 3, 5]


def test_where_no_row_is_met_nothing_is_asked_of_one() -> None:
    empty = from_source([1, 2])[:0].map(lambda row: row)
    assert [len(side) for side in empty.split_by(lambda row: 0, 0.5)] == [0, 0]
    with pytest.raises(ArgumentError, match="keeps none of 0 rows"):
        empty.filter(lambda row: True)


class Remote:
    spec = ArraySpec((), np.dtype(np.int64))
    concurrent_reads = 64

    def __init__(self, together: int):
        self.barrier, self.reads = threading.Barrier(together), itertools.count()

    def __len__(self) -> int:
        return 1000

    def read(self, rows: Integers) -> Integers:
        if next(self.reads) < 2 * self.barrier.parties:
            self.barrier.wait(HANG)
        return rows


def test_a_source_that_waits_is_read_by_many_threads() -> None:
    assert threads_for(from_source(Remote(2)).reader, None) == 32
    assert threads_for(from_source(Remote(2)).reader, 5) == 5
    assert threads_for(from_arrays(VALUES).reader, None) == 4
    assert len(from_source(Remote(4)).filter(lambda row: row > 9)) == 990


def test_an_error_stops_what_was_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads in the middle of a run end at their next row."""
    events: list[threading.Event] = []

    def watched(reader: Any, rows: Integers, over: threading.Event) -> Any:
        events.append(over)
        return read_span(reader, rows, over)

    monkeypatch.setattr(scan, "read_span", watched)
    calls: list[int] = []
    begun = threading.Barrier(3)

    def fails(row: Any) -> bool:
        if row % 250 == 0 and row < 750:
            begun.wait(HANG)
        if row == 0:
            raise KeyError("broken")
        calls.append(int(row))
        until(events[0].is_set)
        return True

    with pytest.raises(KeyError):
        from_source(ChunkedSource(np.arange(1000), 250)).filter(fails, workers=3)
    assert sorted(calls)[:2] == [250, 500]
    assert len(calls) <= 3  # whoever failed may have begun another run meanwhile
