"""Draws a timeline as an HTML page or an image."""

import json
import os
from html import escape
from pathlib import Path
from typing import Any

from loadax.core.arguments import path as checked_path
from loadax.errors import ArgumentError
from loadax.loader.metrics.timeline import Event, Timeline
from loadax.loader.reports.bottleneck import Report
from loadax.sources.io.paths import local_path

# Colours that people who see few of them tell apart (Okabe and Ito, 2008).
_COLOURS = {
    "read": "#0072b2",
    "transform": "#e69f00",
    "assemble": "#009e73",
    "place": "#cc79a7",
    "waiting": "#d55e00",
    "training": "#a0a6ad",
}
_STAGES = ("read", "transform", "assemble")
Bar = tuple[float, float, str, int, int]
"""When it begins and how long it is, in seconds; what it is; its step; its rows."""


def draw(timeline: Timeline, report: Report, path: str | os.PathLike[str]) -> None:
    """Writes the picture.

    Raises:
        ArgumentError: when the name ends in neither `.html` nor `.png`, or matplotlib is not there for an image.
    """
    target = local_path(checked_path("path", path, "the name of a .html or .png file"))
    if target is None or target.suffix not in (".html", ".png"):
        raise ArgumentError(f"path={os.fspath(path)!r}: name it .html for a page, or .png for an image")
    lanes = bars_of(timeline)
    ready = [(event.began + event.parts[0], event.amount) for event in timeline.events if event.kind == "taken"]
    begin = min((bars[0][0] for bars in lanes.values() if bars), default=0.0) if timeline.forgotten else 0.0
    end = max((bar[0] + bar[1] for bars in lanes.values() for bar in bars), default=timeline.until)
    title = f"{report.verdict}."
    if timeline.forgotten:
        title += f" (The last {end - begin:.1f} s; {timeline.forgotten:,} earlier events are not kept.)"
    if target.suffix == ".html":
        target.write_text(_page(lanes, ready, (begin, end), title), encoding="utf-8")
    else:
        _image(lanes, ready, (begin, end), title, target)


def bars_of(timeline: Timeline) -> dict[str, list[Bar]]:
    """The bars of each lane from left to right: training's first, then the workers'."""
    lanes: dict[str, list[Bar]] = {"training": []}
    # Where workers were, in the order of their numbers, threads before processes.
    for name in sorted(timeline.lanes, key=lambda name: (name.startswith("process"), len(name), name)):
        lanes.setdefault(name, [])
    left: float | None = None
    for event in timeline.events:
        if event.kind == "taken":
            if left is not None:
                lanes["training"].append((left, event.began - left, "training", event.step - 1, 0))
            lanes["training"].append((event.began, event.parts[0], "waiting", event.step, 0))
            left = event.began + event.parts[0]
        elif event.kind == "placed":
            lanes[timeline.lanes[event.lane]].append((event.began, event.parts[0], "place", event.step, 0))
        else:
            lanes[timeline.lanes[event.lane]].extend(_piece(event))
    return {name: sorted(bars) for name, bars in lanes.items()}


def _piece(event: Event) -> list[Bar]:
    bars: list[Bar] = []
    at = event.began
    for stage, seconds in zip(_STAGES, event.parts, strict=True):
        if seconds:
            bars.append((at, seconds, stage, event.step, event.amount))
        at += seconds
    return bars


def _page(lanes: dict[str, list[Bar]], ready: list[tuple[float, int]], span: tuple[float, float], title: str) -> str:
    names = list(_COLOURS)
    data = {
        "colours": _COLOURS,
        "span": span,
        # Microseconds as integers: a third of the size.
        "lanes": [
            [
                name,
                [
                    [round(at * 1e6), round(long * 1e6), names.index(what), step, rows]
                    for at, long, what, step, rows in bars
                ],
            ]
            for name, bars in lanes.items()
        ],
        "ready": [[round(at * 1e6), count] for at, count in ready],
    }
    page = Path(__file__).with_name("timeline.html").read_text(encoding="utf-8")
    # A name that holds "</script>" must not end the script.
    numbers = json.dumps(data, separators=(",", ":")).replace("</", "<\\/")
    return page.replace("{{title}}", escape(title)).replace("{{data}}", numbers)


def _image(
    lanes: dict[str, list[Bar]], ready: list[tuple[float, int]], span: tuple[float, float], title: str, target: Path
) -> None:
    try:
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ImportError as error:
        raise ArgumentError(
            f"path={str(target)!r}: an image is drawn by matplotlib, which is not installed; "
            "pip install matplotlib, or name it .html"
        ) from error
    figure = Figure(figsize=(14, 2.6 + 0.45 * len(lanes)), layout="constrained")
    heights = [len(lanes), 1.6]
    work, queue = figure.subplots(2, 1, sharex=True, height_ratios=heights)
    for number, bars in enumerate(lanes.values()):
        for what, colour in reversed(_COLOURS.items()):  # work that training did itself lies on top of its waiting
            spans = [(at, long) for at, long, kind, *_ in bars if kind == what]
            if spans:
                work.broken_barh(spans, (number - 0.38, 0.76), facecolors=colour, linewidth=0)
    work.set_yticks(range(len(lanes)), list(lanes))
    work.set_ylim(len(lanes) - 0.5, -0.5)
    work.set_title(title, loc="left", fontsize=11, wrap=True)
    used = {what for bars in lanes.values() for _, _, what, *_ in bars}
    patches = [Patch(color=colour, label=what) for what, colour in _COLOURS.items() if what in used]
    figure.legend(handles=patches, ncols=len(_COLOURS), loc="outside lower center", frameon=False)
    queue.step([at for at, _ in ready], [count for _, count in ready], where="post", color="#555b61", linewidth=1)
    queue.set_ylabel("ready batches")
    queue.set_ylim(bottom=0)
    queue.yaxis.get_major_locator().set_params(integer=True)
    queue.set_xlabel("seconds since the run began")
    queue.set_xlim(*span)
    for axes in (work, queue):
        spines: Any = axes.spines
        spines[["top", "right"]].set_visible(False)
    figure.savefig(target, dpi=130)
