"""A scan reads whole chunks, each once, and ends when it is told to."""

import threading
from typing import Any

import numpy as np
import pytest

from loadax import Dataset, concat, from_arrays, from_source
from loadax.errors import ArgumentError
from loadax.protocols import ArraySpec, Integers
from loadax.row_index import scan
from loadax.row_index.scan import plan_runs, read_run, threads_for
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
def test_runs_hold_every_row_that_is_met_once(size: int, chunks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadax.row_index.scan._RUN_ROWS", size)
    reader = (from_arrays({"x": VALUES}) if chunks is None else chunked(chunks)[0]).reader
    met = np.zeros(2000, bool)
    met[[5, 6, 7, 1200, 1999]] = True
    runs = plan_runs(reader, met, 2)
    found = np.concatenate([start + np.flatnonzero(met[start:end]) for start, end in runs.tolist()])
    assert found.tolist() == np.flatnonzero(met).tolist()
    assert all(met[start:end].any() for start, end in runs.tolist())


def test_few_rows_are_dealt_to_all_threads_and_large_ones_read_a_few_at_a_time() -> None:
    all_met = np.ones(100, bool)
    assert len(plan_runs(from_arrays(VALUES[:100]).reader, all_met, 4)) > 12
    large = from_source([{"x": np.zeros(1 << 20)}] * 3).reader
    assert plan_runs(large, all_met[:3], 1).tolist() == [[0, 1], [1, 2], [2, 3]]
    assert plan_runs(large, np.empty(0, bool), 1).shape == (0, 2)


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
        self.barrier = threading.Barrier(together)

    def __len__(self) -> int:
        return 1000

    def read(self, rows: Integers) -> Integers:
        if rows[0] < 64:  # 8 runs
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
        return read_run(reader, rows, over)

    monkeypatch.setattr(scan, "read_run", watched)
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
