"""The timeline records events in bounded memory and is drawn to scale."""

import json
import re
import tracemalloc
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadax import Dataloader, from_arrays, from_source
from loadax.errors import ArgumentError
from loadax.loader.metrics.stats import Stats, Timing
from loadax.loader.metrics.timeline import Bar, Event, Recorder, Timeline
from loadax.loader.reports.bottleneck import LoaderInfo, report
from loadax.loader.reports.timeline_plot import write_timeline
from loadax.protocols import ArraySpec, Integers
from tests.clocks import Machine
from tests.work import lines_of


class Slow:
    spec = ArraySpec((2,), np.dtype(np.float32))

    def __init__(self, machine: Machine):
        self.machine = machine

    def __len__(self) -> int:
        return 4000

    def read(self, rows: Integers) -> Any:
        self.machine.sleep(0.003)
        return np.zeros((len(rows), 2), np.float32)


def page_data(path: Path) -> dict[str, Any]:
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', path.read_text(), re.DOTALL)
    assert found is not None
    return dict(json.loads(found[1]))


def test_the_last_events_are_kept_and_no_more() -> None:
    recorder = Recorder(kept=4)
    for step in range(10):
        recorder.taken(1.0 + step, 0.5, step, step % 3)
    timeline = recorder.timeline()
    assert [event.step for event in timeline.events] == [6, 7, 8, 9]
    assert [event.amount for event in timeline.events] == [0, 1, 2, 0]
    assert timeline.forgotten == 6


def test_events_are_what_was_told() -> None:
    recorder = Recorder()
    zero = recorder._began
    recorder.piece(Timing(read=0.25, transform=0.5, assemble=0.125, rows=7, began=zero + 1), zero + 9, 3)
    recorder.piece(Timing(read=0.25, rows=8, worker=111, began=zero + 2), zero + 9, 4)
    recorder.piece(Timing(read=0.25, rows=9, worker=222), zero + 9, 5)
    recorder.placed(Timing(place=0.0625, began=zero + 3), 3)
    recorder.taken(zero + 4, 0.5, 3, 2)
    lanes, events, forgotten, until = recorder.timeline()
    assert lanes == ("training", "process 0", "process 1")  # this thread is none of the loader's
    near = [(event._replace(began=round(event.began, 6))) for event in events]
    assert near == [
        Event("piece", 0, 1.0, (0.25, 0.5, 0.125), 3, 7),
        Event("piece", 1, 2.0, (0.25, 0.0, 0.0), 4, 8),
        Event("piece", 2, 8.75, (0.25, 0.0, 0.0), 5, 9),
        Event("placed", 0, 3.0, (0.0625, 0.0, 0.0), 3, 0),
        Event("taken", 0, 4.0, (0.5, 0.0, 0.0), 3, 2),
    ]
    assert forgotten == 0
    assert until >= 0


def test_bars_lie_end_to_end() -> None:
    events = (
        Event("piece", 1, 0.5, (0.25, 0.5, 0.125), 0, 8),
        Event("taken", 0, 1.0, (0.5, 0.0, 0.0), 0, 1),
        Event("placed", 0, 1.25, (0.125, 0.0, 0.0), 0, 0),
        Event("taken", 0, 2.0, (0.25, 0.0, 0.0), 1, 0),
    )
    timeline = Timeline(("thread 0", "process 0"), events, 0, 3.0)
    assert timeline.bars() == {
        "training": [(1.0, 0.5, "waiting", 0, 0), (1.5, 0.5, "training", 0, 0), (2.0, 0.25, "waiting", 1, 0)],
        "thread 0": [(1.25, 0.125, "place", 0, 0)],
        "process 0": [(0.5, 0.25, "read", 0, 8), (0.75, 0.5, "transform", 0, 8), (1.25, 0.125, "assemble", 0, 8)],
    }
    assert timeline.ready() == [(1.5, 1), (2.25, 0)]


def test_lanes_stand_in_the_order_of_their_numbers() -> None:
    names = (*(f"process {number}" for number in range(11)), "thread 1", "thread 0", "training")
    assert list(Timeline(names, (), 0, 0.0).bars()) == ["training", "thread 0", "thread 1", *names[:11]]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_is_drawn_as_it_was(workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    machine.tick = 2.0**-20

    def busy(row: Any) -> Any:
        machine.work(0.0005)
        return row + 1

    data = from_source(Slow(machine)).map(busy)
    with Dataloader(data, 8, num_workers=workers).iterate() as batches:
        for _ in range(30):
            next(batches)
            machine.sleep(0.002)
        batches.timeline(tmp_path / "run.html")
        stats = batches.stats()
    drawn = page_data(tmp_path / "run.html")
    stages = list(drawn["colours"])
    lanes = {
        name: [(at, long, stages[what], step, rows) for at, long, what, step, rows in bars]
        for name, bars in drawn["lanes"]
    }
    assert {"training"} <= set(lanes) <= {"training", "thread 0", "thread 1"}
    assert (len(lanes) > 1) == (workers > 0)
    spent = {
        stage: sum(long for bars in lanes.values() for _, long, what, *_ in bars if what == stage) / 1e6
        for stage in stages
    }
    assert spent["read"] == pytest.approx(stats.read, abs=1e-3)
    assert spent["transform"] == pytest.approx(stats.transform, abs=1e-3)
    assert spent["waiting"] == pytest.approx(stats.wait, abs=1e-3)
    assert spent["training"] == pytest.approx(stats.elapsed - stats.wait, abs=0.003)
    assert spent["training"] >= 29 * 0.002
    assert [step for _, _, what, step, _ in lanes["training"] if what == "waiting"] == list(range(30))
    assert sum(rows for bars in lanes.values() for *_, what, _, rows in bars if what == "read") >= 240
    for bars in lanes.values():
        assert [bar[0] for bar in bars] == sorted(bar[0] for bar in bars)
    assert len(drawn["ready"]) == 30


def test_the_page_needs_nothing_from_elsewhere(tmp_path: Path) -> None:
    with Dataloader(np.zeros((64, 2), np.float32), 8).iterate() as batches:
        for _ in batches:
            pass
        batches.timeline(tmp_path / "run.html")  # also of a run that is over
    text = (tmp_path / "run.html").read_text()
    assert not re.search(r"(src|href)\s*=|https?:|@import|url\(", text)
    assert "{{" not in text
    assert "prefers-color-scheme: dark" in text


def test_a_name_can_t_break_the_page(tmp_path: Path) -> None:
    sentence = report(
        Stats(steps=100, measured=100, waited=1, trained=1, wait=1.0, transform=1.0), LoaderInfo(maps=("</script><b>",))
    )
    write_timeline(
        Timeline(("</script>",), (Event("placed", 0, 0.0, (1.0, 0.0, 0.0), 0, 0),), 0, 1.0),
        sentence,
        tmp_path / "run.html",
    )
    text = (tmp_path / "run.html").read_text()
    assert "<b>" not in text
    assert [name for name, _ in page_data(tmp_path / "run.html")["lanes"]] == ["training", "</script>"]


def test_batches_of_another_size_go_on_in_the_same_picture(tmp_path: Path) -> None:
    with Dataloader(np.zeros((64, 2), np.float32), {0: 8, 4: 16}).iterate() as batches:
        assert len(list(batches)) == 6
        batches.timeline(tmp_path / "run.html")
        assert len(page_data(tmp_path / "run.html")["ready"]) == 6
        batches.set_state(4)
        next(batches)
        batches.timeline(tmp_path / "run.html")
    assert len(page_data(tmp_path / "run.html")["ready"]) == 1


def test_what_is_forgotten_is_said(tmp_path: Path) -> None:
    timeline = Timeline(("thread 0",), (Event("taken", 0, 100.0, (1.5, 0.0, 0.0), 9, 1),), 12345, 102.0)
    write_timeline(timeline, report(Stats()), tmp_path / "run.html")
    assert "(The last 1.5 s; 12,345 earlier events are not kept.)" in (tmp_path / "run.html").read_text()
    assert page_data(tmp_path / "run.html")["span"] == [100.0, 101.5]


# As a Chrome trace


def checked_trace(path: Path) -> list[dict[str, Any]]:
    """The events of a trace, each of them with the fields that the trace event format demands of its kind."""
    trace = json.loads(path.read_text())
    assert trace["displayTimeUnit"] in ("ms", "ns")
    events: list[dict[str, Any]] = trace["traceEvents"]
    named = set()
    for event in events:
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert isinstance(event["args"], dict)
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name")
            assert isinstance(event["args"]["name"], str)
            named.add((event["name"], event["pid"], event["tid"]))
            continue
        assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
        else:
            assert event["ph"] == "C"
            assert all(isinstance(value, int) for value in event["args"].values())
    for event in events:
        assert ("process_name", event["pid"], 0) in named
        assert ("thread_name", event["pid"], event["tid"]) in named
    for pid, tid in {(event["pid"], event["tid"]) for event in events}:
        check_nested([event for event in events if event["ph"] == "X" and (event["pid"], event["tid"]) == (pid, tid)])
    return events


def check_nested(slices: list[dict[str, Any]]) -> None:
    """Viewers draw what a thread does at the same time only where one slice lies within another."""
    ends: list[float] = []
    for event in sorted(slices, key=lambda event: (event["ts"], -event["dur"])):
        end = event["ts"] + event["dur"]
        while ends and ends[-1] <= event["ts"] + 0.002:  # of microseconds, to which times are rounded
            ends.pop()
        assert not ends or end <= ends[-1] + 0.002
        ends.append(end)


def recorded(timeline: Timeline) -> list[tuple[str, Bar]]:
    """Lane and bar of whatever the recorder kept, one event after the other; training is between two batches."""
    bars = []
    for event in timeline.events:
        lane = timeline.lanes[event.lane] if event.kind != "taken" else "training"
        stages = {"piece": ("read", "transform", "assemble"), "placed": ("place",), "taken": ("waiting",)}[event.kind]
        for number, stage in enumerate(stages):
            if event.parts[number] or event.kind != "piece":
                began = event.began + sum(event.parts[:number])
                bars.append(
                    (lane, Bar(began, event.parts[number], stage, event.step, event.amount * (len(stages) > 1)))
                )
    taken = [event for event in timeline.events if event.kind == "taken"]
    for event, after in pairwise(taken):
        ended = event.began + event.parts[0]
        bars.append(("training", Bar(ended, after.began - ended, "training", after.step - 1, 0)))
    return bars


def assert_traced(path: Path, timeline: Timeline) -> None:
    """Every recorded event is in the trace, with its numbers, and nothing else."""
    events = checked_trace(path)
    lanes = {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["name"] == "thread_name"}
    traced = sorted(
        (lanes[event["pid"], event["tid"]], event["name"], event["ts"], event["dur"], event["args"])
        for event in events
        if event["ph"] == "X"
    )
    expected = sorted(
        (
            lane,
            bar.stage,
            bar.began * 1e6,
            bar.seconds * 1e6,
            {"step": bar.step} | ({"rows": bar.rows} if bar.rows else {}),
        )
        for lane, bar in recorded(timeline)
    )
    assert len(traced) == len(expected)
    for (*names, began, lasted, arguments), (*wanted, expected_began, expected_lasted, expected_arguments) in zip(
        traced, expected, strict=True
    ):
        assert (names, arguments) == (wanted, expected_arguments)
        assert (began, lasted) == pytest.approx((expected_began, expected_lasted), abs=0.002)
    counts = [(event["ts"], event["args"]["batches"]) for event in events if event["ph"] == "C"]
    assert [count for _, count in counts] == [event.amount for event in timeline.events if event.kind == "taken"]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_trace_has_every_recorded_event(workers: int, tmp_path: Path) -> None:
    with Dataloader(
        from_arrays(np.zeros((64, 2))).map(lambda row: row + 1), 8, num_workers=workers
    ).iterate() as batches:
        list(batches)
        batches.timeline(tmp_path / "run.json")
        timeline = batches._stretch.monitor.timeline()
    assert len([event for event in timeline.events if event.kind == "taken"]) == 8
    assert_traced(tmp_path / "run.json", timeline)


def test_worker_processes_are_processes_of_the_trace(tmp_path: Path) -> None:
    events = (
        Event("piece", 1, 0.5, (0.25, 0.5, 0.125), 0, 8),
        Event("piece", 2, 0.25, (0.0, 0.0, 1e-9), 0, 1),
        Event("placed", 0, 1.25, (0.0, 0.0, 0.0), 0, 0),
        Event("taken", 0, 1.0, (0.5, 0.0, 0.0), 0, 1),
        Event("taken", 0, 2.0, (0.25, 0.0, 0.0), 1, 0),
    )
    timeline = Timeline(("thread 0", "process 0", "process 1"), events, 7, 3.0)
    write_timeline(timeline, report(Stats()), tmp_path / "run.json")
    assert_traced(tmp_path / "run.json", timeline)
    processes = {
        event["args"]["name"]: event["pid"]
        for event in checked_trace(tmp_path / "run.json")
        if event["name"] == "process_name"
    }
    assert list(processes) == ["loadax", "loadax process 0", "loadax process 1"]
    assert len(set(processes.values())) == 3
    assert "7 earlier events are not kept" in json.loads((tmp_path / "run.json").read_text())["otherData"]["title"]


@pytest.mark.parametrize("name", ["run.svg", "run.png", "run"])
def test_other_endings_are_refused(name: str) -> None:
    message = rf"path='{name}': name it \.html for a page, or \.json for a Chrome trace$"
    with Dataloader(np.zeros((64, 2), np.float32), 8).iterate() as batches, pytest.raises(ArgumentError, match=message):
        batches.timeline(name)


def test_endings_in_capitals_and_folders_that_are_not_there(tmp_path: Path) -> None:
    loader = Dataloader(np.zeros((64, 2), np.float32), 8)
    with loader.iterate() as batches:
        batches.timeline(tmp_path / "run.JSON")
        assert json.loads((tmp_path / "run.JSON").read_text())["traceEvents"]
        for folder, write in (
            ("runs", batches.timeline),
            ("certificates", loader.certificate().save),
        ):
            path = tmp_path / folder / "run.json"
            with pytest.raises(ArgumentError, match=r"^path='.*' can't be written: No such file .* an existing folder"):
                write(path)
            path.parent.mkdir()
            write(path)
            assert len(list(path.parent.iterdir())) == 1


def test_counting_costs_next_to_nothing() -> None:
    """As few lines and as little memory for each step, however long the run has been."""
    recorder, stats, timing = Recorder(kept=500), Stats(), Timing(read=0.1, place=0.1, rows=8, began=1.0)

    def count(steps: int) -> None:
        for step in range(steps):
            recorder.piece(timing, 2.0, step)
            recorder.placed(timing, step)
            recorder.taken(1.0, 0.1, step, 2)
            stats.took(step, 0.1, 0.2)

    count(10)
    first = lines_of(lambda: count(100))
    assert first < 100 * 60
    tracemalloc.start()
    try:
        count(1000)
        before, _ = tracemalloc.get_traced_memory()
        count(10_000)
        assert tracemalloc.get_traced_memory()[0] - before < 1000
    finally:
        tracemalloc.stop()
    assert lines_of(lambda: count(100)) == first
