"""Writes a timeline to a file: an HTML page or a Chrome trace."""

import json
import os
from html import escape
from pathlib import Path

from loadax.core.arguments import path as checked_path
from loadax.errors import ArgumentError
from loadax.loader.metrics.timeline import Timeline
from loadax.loader.reports.bottleneck import Report
from loadax.loader.reports.chrome_trace import write_trace
from loadax.sources.io.paths import local_path, writing_file

# Colour-blind safe palette (Okabe and Ito, 2008).
_COLOURS = {
    "read": "#0072b2",
    "transform": "#e69f00",
    "assemble": "#009e73",
    "place": "#cc79a7",
    "waiting": "#d55e00",
    "training": "#a0a6ad",
}


def write_timeline(timeline: Timeline, report: Report, path: str | os.PathLike[str]) -> None:
    """Writes a timeline in the format of the path's suffix.

    Raises:
        ArgumentError: If the suffix is unknown, or the file can't be written.
    """
    target = local_path(checked_path("path", path, "the name of a .html or .json file"))
    suffix = "" if target is None else target.suffix.lower()
    if target is None or suffix not in (".html", ".json"):
        raise ArgumentError(f"path={os.fspath(path)!r}: name it .html for a page, or .json for a Chrome trace")
    bars = [bar for lane in timeline.bars().values() for bar in lane]
    begin = min((bar.began for bar in bars), default=0.0) if timeline.forgotten else 0.0
    end = max((bar.began + bar.seconds for bar in bars), default=timeline.until)
    title = f"{report.verdict}."
    if timeline.forgotten:
        title += f" (The last {end - begin:.1f} s; {timeline.forgotten:,} earlier events are not kept.)"
    with writing_file(path):
        if suffix == ".html":
            target.write_text(_page(timeline, (begin, end), title), encoding="utf-8")
        else:
            write_trace(timeline, title, target)


def _page(timeline: Timeline, span: tuple[float, float], title: str) -> str:
    stages = list(_COLOURS)
    data = {
        "colours": _COLOURS,
        "span": span,
        # Microseconds as integers: a third of the size.
        "lanes": [
            [
                name,
                [
                    [round(bar.began * 1e6), round(bar.seconds * 1e6), stages.index(bar.stage), bar.step, bar.rows]
                    for bar in bars
                ],
            ]
            for name, bars in timeline.bars().items()
        ],
        "ready": [[round(at * 1e6), count] for at, count in timeline.ready()],
    }
    page = Path(__file__).with_name("timeline.html").read_text(encoding="utf-8")
    # A name with "</script>" must not end the script.
    numbers = json.dumps(data, separators=(",", ":")).replace("</", "<\\/")
    return page.replace("{{title}}", escape(title)).replace("{{data}}", numbers)
