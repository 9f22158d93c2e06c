"""Writes a timeline as a Chrome trace for Perfetto and chrome://tracing.

The format is trace event JSON: complete events ("X"), counters ("C") and metadata ("M"), in microseconds.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from loadax.loader.metrics.timeline import Timeline

_TRAINER = 0  # process number: worker processes follow


def write_trace(timeline: Timeline, title: str, path: Path) -> None:
    """Writes the trace, with a title in its metadata."""
    trace = {"traceEvents": list(_events(timeline)), "displayTimeUnit": "ms", "otherData": {"title": title}}
    path.write_text(json.dumps(trace, separators=(",", ":")), encoding="utf-8")


def _events(timeline: Timeline) -> Iterator[dict[str, Any]]:
    yield _name("process", _TRAINER, 0, "loadax")
    for index, (lane, bars) in enumerate(timeline.bars().items()):
        # A worker process is shown as a process, every other lane as a thread of the training process.
        process, thread = (index, 0) if lane.startswith("process") else (_TRAINER, index)
        if process != _TRAINER:
            yield _name("process", process, thread, f"loadax {lane}")
        yield _name("thread", process, thread, lane)
        for began, seconds, stage, step, rows in bars:
            arguments = {"step": step, "rows": rows} if rows else {"step": step}
            times = {"ts": _microseconds(began), "dur": _microseconds(seconds)}
            yield {"ph": "X", "name": stage, "cat": "loadax", "pid": process, "tid": thread, **times, "args": arguments}
    for at, count in timeline.ready():
        counter = {"ph": "C", "name": "ready batches", "pid": _TRAINER, "tid": 0}
        yield {**counter, "ts": _microseconds(at), "args": {"batches": count}}


def _name(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": f"{kind}_name", "pid": process, "tid": thread, "args": {"name": name}}


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 3)
