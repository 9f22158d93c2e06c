"""Writes a timeline as a Chrome trace, for Perfetto and chrome://tracing.

The format is trace event JSON: complete events ("X"), counters ("C") and metadata ("M"), in microseconds.
"""

import json
import os
from collections.abc import Iterator
from typing import Any

from loadax.core.arguments import path as checked_path
from loadax.errors import ArgumentError
from loadax.files.paths import local_path, writing_file
from loadax.loader.metrics.timeline import Timeline
from loadax.loader.reports.bottleneck import Report

_TRAINER = 0  # process number in a trace: worker processes follow


def write_chrome_trace(
    timeline: Timeline,
    report: Report,
    path: str | os.PathLike[str],
) -> None:
    """Writes a timeline to a local file.

    Raises:
        ArgumentError: If the suffix is not .json, or the file can't be written.
    """
    target = local_path(checked_path("path", path, "the name of a .json file"))
    if target is None or target.suffix.lower() != ".json":
        raise ArgumentError(
            f"path={os.fspath(path)!r}: name a local .json file, which "
            "https://ui.perfetto.dev shows"
        )
    bars = [bar for lane in timeline.bars().values() for bar in lane]
    if timeline.forgotten:
        begin = min((bar.began for bar in bars), default=0.0)
    else:
        begin = 0.0
    end = max((bar.began + bar.seconds for bar in bars), default=timeline.until)
    title = f"{report.verdict}."
    if timeline.forgotten:
        title += (
            f" (The last {end - begin:.1f} s; {timeline.forgotten:,} earlier events "
            "are not kept.)"
        )
    trace = {
        "traceEvents": list(_events(timeline)),
        "displayTimeUnit": "ms",
        "otherData": {"title": title},
    }
    with writing_file(path):
        target.write_text(json.dumps(trace, separators=(",", ":")), encoding="utf-8")


def _events(timeline: Timeline) -> Iterator[dict[str, Any]]:
    yield _name("process", _TRAINER, 0, "loadax")
    for index, (lane, bars) in enumerate(timeline.bars().items()):
        # A worker process is shown as a process, every other lane as a thread of the training process.
        if lane.startswith("process"):
            process, thread = (index, 0)
        else:
            process, thread = (_TRAINER, index)
        if process != _TRAINER:
            yield _name("process", process, thread, f"loadax {lane}")
        yield _name("thread", process, thread, lane)
        for began, seconds, stage, step, rows in bars:
            if rows:
                arguments = {"step": step, "rows": rows}
            else:
                arguments = {"step": step}
            times = {"ts": _microseconds(began), "dur": _microseconds(seconds)}
            yield {
                "ph": "X",
                "name": stage,
                "cat": "loadax",
                "pid": process,
                "tid": thread,
                **times,
                "args": arguments,
            }
    for at, count in timeline.ready:
        counter = {"ph": "C", "name": "ready batches", "pid": _TRAINER, "tid": 0}
        yield {**counter, "ts": _microseconds(at), "args": {"batches": count}}


def _name(
    kind: str,
    process: int,
    thread: int,
    name: str,
) -> dict[str, Any]:
    return {
        "ph": "M",
        "name": f"{kind}_name",
        "pid": process,
        "tid": thread,
        "args": {"name": name},
    }


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 3)
