"""The timeline records events in bounded memory, and its trace has every bar."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from loadax import Dataloader, from_arrays
from loadax.errors import ArgumentError
from loadax.loader.metrics.stats import Stats, Timing
from loadax.loader.metrics.timeline import Bar, History, Piece, Recorder, Timeline
from loadax.loader.reports.bottleneck import report
from loadax.loader.reports.chrome_trace import write_chrome_trace
from tests.clocks import Machine
from tests.work_counts import lines_of


def test_only_the_last_events_are_kept() -> None:
    recorder = Recorder(kept=4)
    for step in range(10):
        recorder.taken(1.0 + step, 0.5, step, step % 3, 8)
    timeline = recorder.timeline()
    assert [(bar.stage, bar.step) for _, bar in timeline.kept] == [
        *(("training", 7), ("waiting", 8)),
        *(("training", 8), ("waiting", 9)),
    ]
    assert [count for _, count in timeline.ready] == [2, 0]
    assert timeline.forgotten == 15


def test_recorded_events() -> None:
    recorder = Recorder()
    zero = recorder._began
    recorder.piece(
        Timing(read=0.25, transform=0.5, assemble=0.125, rows=7, began=zero + 1), zero + 9, Piece(0.875, 3, 1, 0, 7)
    )
    recorder.piece(Timing(read=0.25, rows=8, worker=111, began=zero + 2), zero + 9, Piece(0.25, 4, 1, 0, 8))
    recorder.piece(Timing(read=0.25, rows=9, worker=222), zero + 9, Piece(0.25, 5, 2, 0, 5))
    recorder.placed(Timing(place=0.0625, began=zero + 3), 3)
    recorder.taken(zero + 4, 0.5, 3, 2, 16)
    recorder.taken(zero + 5, 0.25, 4, 1, 8)
    kept, ready, forgotten, until = recorder.timeline()
    assert [(lane, bar._replace(began=round(bar.began, 6), seconds=round(bar.seconds, 6))) for lane, bar in kept] == [
        ("training", (1.0, 0.25, "read", 3, 7)),  # this thread is not the loader's
        ("training", (1.25, 0.5, "transform", 3, 7)),
        ("training", (1.75, 0.125, "assemble", 3, 7)),
        ("process 0", (2.0, 0.25, "read", 4, 8)),
        ("process 1", (8.75, 0.25, "read", 5, 9)),
        ("training", (3.0, 0.0625, "place", 3, 0)),
        ("training", (4.0, 0.5, "waiting", 3, 0)),
        ("training", (4.5, 0.5, "training", 3, 0)),
        ("training", (5.0, 0.25, "waiting", 4, 0)),
    ]
    assert [(round(at, 6), count) for at, count in ready] == [(4.5, 2), (5.25, 1)]
    assert forgotten == 0
    assert until >= 0
    *_, history, slowest = recorder.recording()
    assert [piece.step for piece in slowest] == [3, 5, 4]
    assert sum(span.rows for span in history.bins) == 24
    assert sum(span.steps for span in history.bins) == 2
    assert sum(span.waited for span in history.bins) == pytest.approx(0.75)
    assert sum(span.trained for span in history.bins) == pytest.approx(0.5)


SHORT = Timeline(
    kept=(
        ("process 0", Bar(0.5, 0.25, "read", 0, 8)),
        ("process 0", Bar(0.75, 0.5, "transform", 0, 8)),
        ("process 0", Bar(1.25, 0.125, "assemble", 0, 8)),
        ("process 1", Bar(0.25, 1e-9, "assemble", 0, 1)),
        ("training", Bar(1.5, 0.5, "training", 0, 0)),
        ("training", Bar(1.0, 0.5, "waiting", 0, 0)),
        ("thread 0", Bar(1.25, 0.125, "place", 0, 0)),
        ("training", Bar(2.0, 0.25, "waiting", 1, 0)),
    ),
    ready=((1.5, 1), (2.25, 0)),
    forgotten=7,
    until=3.0,
)


def test_bars_of_events() -> None:
    assert SHORT.bars() == {
        "training": [(1.0, 0.5, "waiting", 0, 0), (1.5, 0.5, "training", 0, 0), (2.0, 0.25, "waiting", 1, 0)],
        "thread 0": [(1.25, 0.125, "place", 0, 0)],
        "process 0": [(0.5, 0.25, "read", 0, 8), (0.75, 0.5, "transform", 0, 8), (1.25, 0.125, "assemble", 0, 8)],
        "process 1": [(0.25, 1e-9, "assemble", 0, 1)],
    }


def test_lanes_are_sorted_by_number() -> None:
    names = (*(f"process {number}" for number in range(11)), "thread 1", "thread 0", "training")
    kept = tuple((name, Bar(0.0, 1.0, "read", 0, 1)) for name in names)
    assert list(Timeline(kept, (), 0, 0.0).bars()) == ["training", "thread 0", "thread 1", *names[:11]]


def counters(path: Path) -> list[dict[str, Any]]:
    return [event for event in traced(path) if event["ph"] == "C"]


def test_timeline_continues_over_batch_sizes(tmp_path: Path) -> None:
    with Dataloader(np.zeros((64, 2), np.float32), {0: 8, 4: 16}).iterate() as batches:
        assert len(list(batches)) == 6
        batches.timeline(tmp_path / "run.json")  # of a finished run
        assert len(counters(tmp_path / "run.json")) == 6
        batches.set_state(4)
        next(batches)
        batches.timeline(tmp_path / "run.json")
    assert len(counters(tmp_path / "run.json")) == 1


def test_title_counts_dropped_events(tmp_path: Path) -> None:
    timeline = Timeline((("training", Bar(100.0, 1.5, "waiting", 9, 0)),), ((101.5, 1),), 12345, 102.0)
    write_chrome_trace(timeline, report(Stats()), tmp_path / "run.json")
    assert "(The last 1.5 s; 12,345 earlier events are not kept.)" in (tmp_path / "run.json").read_text()


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 5)), min_size=1, max_size=600), st.sampled_from([0.25, 1e-3]))
def test_history_keeps_every_event_in_at_most_256_bins(events: list[tuple[float, int]], width: float) -> None:
    history, now, oracle = History(width), 0.0, []
    for seconds, rows in events:
        now += seconds
        history.at(now).rows += rows
        oracle.append((now, rows))
    assert len(history.bins) <= 256
    assert history.seconds in {width * 2**power for power in range(20)}
    expected = [0] * len(history.bins)
    for at, count in oracle:
        expected[int(at / history.seconds)] += count
    assert [span.rows for span in history.bins] == expected


def test_history_copy_does_not_change() -> None:
    history = History()
    history.at(0.1).rows = 3
    same = history.copy()
    history.at(0.1).rows = 4
    history.at(1000.0).steps = 1
    assert [span.rows for span in same.bins] == [3]
    assert same.bins[0].memory > 0


# As a Chrome trace


def traced(path: Path) -> list[dict[str, Any]]:
    """The events of a trace, which have the fields that the trace event format requires."""
    events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    kinds = {"M": {"name"}, "X": {"ts", "dur", "cat"}, "C": {"ts"}}
    named = {(event["name"], event["pid"], event["tid"]) for event in events if event["ph"] == "M"}
    for event in events:
        assert kinds[event["ph"]] <= event.keys() >= {"name", "pid", "tid", "args"}
        assert min(event.get("ts", 0), event.get("dur", 0)) >= 0
        assert {("process_name", event["pid"], 0), ("thread_name", event["pid"], event["tid"])} <= named
    for pid, tid in {(event["pid"], event["tid"]) for event in events}:
        check_nested([event for event in events if event["ph"] == "X" and (event["pid"], event["tid"]) == (pid, tid)])
    return events


def check_nested(slices: list[dict[str, Any]]) -> None:
    """Viewers draw overlapping slices of a thread only if one is nested in the other."""
    ends: list[float] = []
    for event in sorted(slices, key=lambda event: (event["ts"], -event["dur"])):
        end = event["ts"] + event["dur"]
        while ends and ends[-1] <= event["ts"] + 0.002:  # times are rounded to a nanosecond
            ends.pop()
        assert not ends or end <= ends[-1] + 0.002
        ends.append(end)


def assert_traced(path: Path, timeline: Timeline) -> None:
    """Checks that a trace has every bar, with its numbers, and nothing else."""
    events = traced(path)
    lanes = {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["name"] == "thread_name"}
    found: dict[str, list[Bar]] = {lane: [] for lane in lanes.values()}
    for event in events:
        if event["ph"] == "X":
            times = event["ts"] / 1e6, event["dur"] / 1e6
            bar = Bar(*times, event["name"], event["args"]["step"], event["args"].get("rows", 0))
            found[lanes[event["pid"], event["tid"]]].append(bar)
    expected = timeline.bars()
    assert found.keys() == expected.keys()
    for lane, bars in expected.items():
        assert [bar[2:] for bar in found[lane]] == [bar[2:] for bar in bars]
        for drawn, bar in zip(found[lane], bars, strict=True):
            assert drawn[:2] == pytest.approx(bar[:2], abs=2e-9)
    counts = [event["args"]["batches"] for event in events if event["ph"] == "C"]
    assert counts == [count for _, count in timeline.ready]


@pytest.mark.parametrize("workers", [0, 2])
def test_trace_shows_the_run(workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    machine.tick = 2.0**-20

    def busy(row: Any) -> Any:
        machine.work(0.0005)
        return row + 1

    data = from_arrays(np.zeros((4000, 2), np.float32)).map(busy)
    with Dataloader(data, 8, num_workers=workers).iterate() as batches:
        for _ in range(30):
            next(batches)
            machine.sleep(0.002)
        with batches.ledger.monitor.lock:  # no piece is recorded between the two
            timeline = batches.ledger.monitor.timeline()
            batches.timeline(tmp_path / "run.json")
            stats = batches.stats()
    assert_traced(tmp_path / "run.json", timeline)
    assert len(timeline.ready) == 30
    lanes = timeline.bars()
    assert {"training"} <= lanes.keys() <= {"training", "thread 0", "thread 1"}
    assert (len(lanes) > 1) == (workers > 0)
    bars = [bar for lane in lanes.values() for bar in lane]
    expected = {"read": stats.read, "transform": stats.transform, "waiting": stats.wait}
    spent = {stage: sum(bar.seconds for bar in bars if bar.stage == stage) for stage in (*expected, "training")}
    assert {stage: spent[stage] for stage in expected} == pytest.approx(expected, abs=1e-6)
    assert spent["training"] == pytest.approx(stats.elapsed - stats.wait, abs=0.003)
    assert [bar.step for bar in bars if bar.stage == "waiting"] == list(range(30))
    assert sum(bar.rows for bar in bars if bar.stage == "read") >= 240


def test_worker_processes_are_processes_of_the_trace(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_chrome_trace(SHORT, report(Stats()), path)
    assert_traced(path, SHORT)
    processes = {event["args"]["name"]: event["pid"] for event in traced(path) if event["name"] == "process_name"}
    assert list(processes) == ["loadax", "loadax process 0", "loadax process 1"]
    assert len(set(processes.values())) == 3
    assert "7 earlier events are not kept" in json.loads(path.read_text())["otherData"]["title"]


@pytest.mark.parametrize("name", ["run.html", "run.png", "run"])
def test_other_endings_are_refused(name: str) -> None:
    message = rf"path='{name}': name a local \.json file, which https://ui\.perfetto\.dev shows$"
    with Dataloader(np.zeros((64, 2), np.float32), 8).iterate() as batches, pytest.raises(ArgumentError, match=message):
        batches.timeline(name)


def test_suffix_in_capitals_and_missing_folders(tmp_path: Path) -> None:
    loader = Dataloader(np.zeros((64, 2), np.float32), 8)
    with loader.iterate() as batches:
        batches.timeline(tmp_path / "run.JSON")
        assert json.loads((tmp_path / "run.JSON").read_text())["traceEvents"]
        path = tmp_path / "runs" / "run.json"
        with pytest.raises(ArgumentError, match=r"^path='.*' can't be written: No such file .* an existing folder"):
            batches.timeline(path)
        path.parent.mkdir()
        batches.timeline(path)
        assert [file.name for file in path.parent.iterdir()] == ["run.json"]


def test_recording_costs_a_constant() -> None:
    """As few lines and as little memory for each step, however long the run has been."""
    recorder, stats, timing = Recorder(kept=5000), Stats(), Timing(read=0.1, place=0.1, rows=8, began=1.0)

    def count(steps: int) -> None:
        for step in range(steps):
            recorder.piece(timing, 2.0, Piece(0.1, step, 1, 0, 8))
            recorder.placed(timing, step)
            recorder.taken(1.0, 0.1, step, 2, 8)
            stats.took(step, 0.1, 0.2, 8)

    count(10)
    first = lines_of(lambda: count(100))
    assert first < 100 * 80
    tracemalloc.start()
    try:
        count(1000)
        before, _ = tracemalloc.get_traced_memory()
        count(10_000)
        assert tracemalloc.get_traced_memory()[0] - before < 1000
    finally:
        tracemalloc.stop()
    assert lines_of(lambda: count(100)) == pytest.approx(first, rel=0.05)  # garbage collection may run callbacks
