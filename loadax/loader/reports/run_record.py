"""RunRecord: the data of the page of a run, saved as JSON."""

import json
import os
from dataclasses import asdict, dataclass, fields
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, final

from loadax.core.formatting import percent_text, size_text
from loadax.errors import ArgumentError
from loadax.loader.metrics.stats import Stats
from loadax.loader.metrics.timeline import Bin, Piece, Recording
from loadax.loader.trace import Trace

_FORMAT = "loadax run 1"
if TYPE_CHECKING:
    from loadax.loader.reports.bottleneck import Report

# Bars of the timeline: more of them zoom slowly in a browser.
_BARS = 5000
# rows to name of each piece
_ROWS = 8


@final
@dataclass(frozen=True)
class RunRecord:
    """What a page shows of a run on one host. Times are in seconds, from the start of the run.

    Attributes:
        verdict: Sentence of the report.
        advice: What would help; None if nothing would.
        process: Index of the process.
        numbers: Names and values of the most important numbers, as text.
        shares: Share of each stage of the loader's work.
        bin_seconds: Time of a bin.
        bins: Steps, seconds waited, seconds trained, sum of ready batches, rows of global batches, and bytes
            of memory of each bin.
        lanes: Names of the threads and workers.
        bars: Lane, start, seconds, stage, step and rows of the last events.
        forgotten: Number of events before those of `bars`.
        slowest: Pieces that took longest: seconds, first step, number of steps and of rows, and the first rows by
            dataset, row, epoch and file.
        hosts: Process, next step, and share of the time that it waits for data, of each host that told of them.
    """

    verdict: str
    advice: str | None
    process: int
    numbers: list[list[str]]
    shares: dict[str, float]
    bin_seconds: float
    bins: list[list[float]]
    lanes: list[str]
    bars: list[list[Any]]
    forgotten: int
    slowest: list[dict[str, Any]]
    hosts: list[list[float]]

    def write(self, path: Path) -> None:
        """Writes a file that `read_record` reads."""
        text = json.dumps({"format": _FORMAT, **asdict(self)}, separators=(",", ":"))
        path.write_text(text, encoding="utf-8")


def read_record(path: str | os.PathLike[str]) -> RunRecord:
    """Reads a file that `Report.save` wrote.

    Raises:
        ArgumentError: If it can't be read, or was not written by `Report.save`.
    """
    try:
        saved = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ArgumentError(
            f"{os.fspath(path)!r} can't be read: {error.strerror or error}; pass the "
            "path of a file that batches.report().save('run.json') wrote"
        ) from error
    except ValueError:
        saved = None
    names = {field.name for field in fields(RunRecord)}
    if (
        not isinstance(saved, dict)
        or saved.pop("format", None) != _FORMAT
        or set(saved) != names
    ):
        raise ArgumentError(
            f"{os.fspath(path)!r} is not a saved run; pass the path of a file that "
            "batches.report().save('run.json') wrote"
        )
    return RunRecord(**saved)


class Snapshot(NamedTuple):
    """The events of a run when its report was made.

    Attributes:
        recording: Last events, and the whole run in bins.
        process: Index of this process.
        slowest: Slowest pieces, as in a `RunRecord`.
        hosts: As in a `RunRecord`.
    """

    recording: Recording
    process: int
    slowest: list[dict[str, Any]]
    hosts: list[list[float]]


def run_record(report: "Report", snapshot: Snapshot) -> RunRecord:
    """The record of a run."""
    recording = snapshot.recording
    timeline = recording.timeline()
    lanes = timeline.bars()
    numbered = [
        (bar.began, index, bar)
        for index, bars in enumerate(lanes.values())
        for bar in bars
    ]
    numbered.sort()
    latest = numbered[-_BARS:]
    history = recording.history
    return RunRecord(
        str(report),
        report.advice,
        snapshot.process,
        _numbers(report.stats, history.bins),
        dict(report.shares),
        history.seconds,
        [_bin_values(span) for span in history.bins],
        list(lanes),
        [
            [
                index,
                round(bar.began, 6),
                round(bar.seconds, 6),
                bar.stage,
                bar.step,
                bar.rows,
            ]
            for _, index, bar in latest
        ],
        timeline.forgotten + len(numbered) - len(latest),
        snapshot.slowest,
        snapshot.hosts,
    )


def _bin_values(span: Bin) -> list[float]:
    waited = round(span.waited, 6)
    trained = round(span.trained, 6)
    return [span.steps, waited, trained, span.ready, span.rows, span.memory]


def _numbers(stats: Stats, bins: list[Bin]) -> list[list[str]]:
    numbers = [
        ["steps", f"{stats.steps:,}"],
        ["rows read here", f"{stats.rows:,}"],
        ["rows per second", f"{stats.rows_per_second:,.0f}"],
        ["waited for data", percent_text(stats.waited_share)],
        ["time of a step", f"{stats.step_seconds * 1000:,.2f} ms"],
        ["first batch after", f"{stats.first:,.2f} s"],
        ["longest wait", f"{stats.longest:,.3f} s at step {stats.longest_step:,}"],
        ["workers", f"{stats.at_work} of {stats.workers} ({stats.worker_type})"],
    ]
    memory = max((span.memory for span in bins), default=0)
    if memory:
        numbers.append(["most memory", size_text(memory)])
    if stats.masked:
        numbers.append(["rows masked", f"{stats.masked:,}"])
    return numbers


def slow_piece(piece: Piece, origin: Trace | None) -> dict[str, Any]:
    """A slow piece for a `RunRecord`.

    Args:
        piece: The piece.
        origin: Trace of its rows of the first step. None: unknown, as for streams.
    """
    rows = []
    for record in islice(origin or (), _ROWS):
        if not record.padding:
            files = [location.file for location in record.where or ()]
            row = {
                "dataset": record.dataset,
                "row": record.row,
                "epoch": record.epoch,
                "file": ", ".join(files),
            }
            rows.append(row)
    return {
        "seconds": round(piece.seconds, 6),
        "step": piece.step,
        "steps": piece.steps,
        "rows": rows,
        "count": (piece.high - piece.low) * piece.steps,
    }
