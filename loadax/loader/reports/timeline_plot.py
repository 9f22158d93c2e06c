"""Writes a timeline to a file: an HTML page, a Chrome trace or an image."""

import json
import os
from html import escape
from pathlib import Path
from typing import Any

from loadax.core.arguments import path as checked_path
from loadax.errors import ArgumentError
from loadax.loader.metrics.timeline import Timeline
from loadax.loader.reports.bottleneck import Report
from loadax.loader.reports.chrome_trace import write_trace
from loadax.loader.reports.figure import new_figure
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
        UnsupportedError: If matplotlib is not installed, for an image.
    """
    target = local_path(checked_path("path", path, "the name of a .html, .json or .png file"))
    suffix = "" if target is None else target.suffix.lower()
    if target is None or suffix not in (".html", ".json", ".png"):
        raise ArgumentError(
            f"path={os.fspath(path)!r}: name it .html for a page, .json for a Chrome trace, or .png for an image"
        )
    bars = [bar for lane in timeline.bars().values() for bar in lane]
    begin = min((bar.began for bar in bars), default=0.0) if timeline.forgotten else 0.0
    end = max((bar.began + bar.seconds for bar in bars), default=timeline.until)
    title = f"{report.verdict}."
    if timeline.forgotten:
        title += f" (The last {end - begin:.1f} s; {timeline.forgotten:,} earlier events are not kept.)"
    with writing_file(path):
        if suffix == ".html":
            target.write_text(_page(timeline, (begin, end), title), encoding="utf-8")
        elif suffix == ".json":
            write_trace(timeline, title, target)
        else:
            _image(timeline, (begin, end), title, target)


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


def _image(timeline: Timeline, span: tuple[float, float], title: str, target: Path) -> None:
    lanes, ready = timeline.bars(), timeline.ready()
    figure = new_figure(14, 2.6 + 0.45 * len(lanes), f"name it .html or .json in place of {target.name}")
    work, queue = figure.subplots(2, 1, sharex=True, height_ratios=[len(lanes), 1.6])
    for index, bars in enumerate(lanes.values()):
        for stage, colour in reversed(_COLOURS.items()):  # draw work of the training thread above its waiting
            spans = [(bar.began, bar.seconds) for bar in bars if bar.stage == stage]
            if spans:
                work.broken_barh(spans, (index - 0.38, 0.76), facecolors=colour, linewidth=0, label=stage)
    work.set_yticks(range(len(lanes)), list(lanes))
    work.set_ylim(len(lanes) - 0.5, -0.5)
    work.set_title(title, loc="left", fontsize=11, wrap=True)
    handles = dict(zip(*reversed(work.get_legend_handles_labels()), strict=True))
    stages = [stage for stage in _COLOURS if stage in handles]
    figure.legend(
        [handles[stage] for stage in stages], stages, ncols=len(_COLOURS), loc="outside lower center", frameon=False
    )
    queue.step([at for at, _ in ready], [count for _, count in ready], where="post", color="#555b61", linewidth=1)
    queue.set_ylabel("ready batches")
    queue.set_ylim(bottom=0)
    queue.yaxis.get_major_locator().set_params(integer=True)
    queue.set_xlabel("seconds since the run began")
    queue.set_xlim(*span)
    for axes in (work, queue):
        spines: Any = axes.spines
        spines[["top", "right"]].set_visible(False)
    figure.savefig(target, format="png", dpi=130)
