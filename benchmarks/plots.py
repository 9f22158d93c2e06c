"""Plots of rows per second, legible on light and dark pages: one of each workload, and one of all of them."""

import statistics
from pathlib import Path
from typing import Any

from report import Run, best, peers, ratio, speeds

_GRAY, _OURS, _THEIRS = "#888888", "#1f9e89", "#9aa5b1"
_SUMMARY = {  # of other libraries, the form that was fastest
    "loop by hand": (("numpy", "pillow"), "#888888", "D"),
    "Grain": (("grain",), "#4c78c8", "o"),
    "torch": (("torch",), "#e4572e", "s"),
    "tf.data": (("tf.data",), "#d9a400", "^"),
}
WORKLOADS = {  # what the rows are, and shorter, for a plot
    "tokens": ("tokens in a memory-mapped file", "tokens, memory-mapped"),
    "images": ("images in memory", "images in memory"),
    "records": ("ArrayRecord files", "ArrayRecord"),
    "jpegs": ("JPEG files", "JPEG files"),
    "rows": ("objects, read row by row", "objects, row by row"),
    "row-map": ("objects, row by row, through a short function", "objects, and a short map"),
    "transform": ("a slow function in pure Python, 2 processes", "slow Python, 2 processes"),
    "transform-wide": ("a slow function on wide rows, 2 processes", ""),
}
_HAND = {"numpy", "pillow", "ceiling", "tensorstore", "row-shuffle"}  # not another library


def draw(results: dict[str, list[Run]], folder: Path) -> None:
    """Writes an SVG file `benchmarks-WORKLOAD.svg` for each workload with several contestants."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    # Keep text as text, and make files reproducible.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "loadax", "font.size": 9, "text.color": _GRAY}):
        for name, runs in results.items():
            medians = {contestant: _median(runs, contestant) for contestant in runs[0]["contestants"]}
            timed = sorted((speed, contestant) for contestant, speed in medians.items() if speed is not None)
            if len(timed) < 3:
                continue
            figure = Figure(figsize=(7, 0.3 + 0.24 * len(timed)))
            axes = figure.add_axes((0.24, 0.02, 0.64, 0.96))
            bars = axes.barh(
                [contestant for _, contestant in timed],
                [speed for speed, _ in timed],
                color=[_colour(contestant) for _, contestant in timed],
            )
            axes.bar_label(bars, [f"{speed:,.0f}" for speed, _ in timed], padding=3, color=_GRAY)
            axes.tick_params(colors=_GRAY, length=0, labelbottom=False)
            axes.set_xticks([])
            for spine in axes.spines.values():
                spine.set_visible(False)
            figure.savefig(folder / f"benchmarks-{name}.svg", transparent=True, metadata={"Date": None})


def summary(results: dict[str, list[Run]], path: Path) -> None:
    """Writes an SVG file: rows per second of the fastest form of each library, as multiples of loadax's."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    shown = [name for name in reversed(WORKLOADS) if name in results and WORKLOADS[name][1]]
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "loadax", "font.size": 10, "text.color": _GRAY}):
        figure = Figure(figsize=(7.6, 0.9 + 0.36 * len(shown)))
        axes = figure.add_axes((0.27, 0.17, 0.70, 0.70))
        axes.axvline(1, color=_OURS, linewidth=2.5)
        for label, (prefixes, colour, marker) in _SUMMARY.items():
            points = [
                (value, height)
                for height, name in enumerate(shown)
                if (value := multiple(results[name], prefixes)) is not None
            ]
            axes.scatter(
                [x for x, _ in points], [y for _, y in points], color=colour, marker=marker, s=46, label=label, zorder=3
            )
        axes.set_xscale("log")
        axes.set_xticks([0.1, 0.2, 0.5, 1, 2], ["0.1", "0.2", "0.5", "loadax", "2 times"])
        axes.set_xlim(0.09, 2.2)
        axes.xaxis.minorticks_off()
        axes.set_yticks(range(len(shown)), [WORKLOADS[name][1] for name in shown])
        axes.tick_params(colors=_GRAY, length=0)
        axes.grid(axis="both", color=_GRAY, alpha=0.25, linewidth=0.6)
        for spine in axes.spines.values():
            spine.set_visible(False)
        figure.legend(loc="upper left", bbox_to_anchor=(0.26, 1.0), ncols=4, frameon=False, labelcolor=_GRAY)
        figure.savefig(path, transparent=True, metadata={"Date": None})


def multiple(runs: list[Run], prefixes: tuple[str, ...]) -> float | None:
    """Rows per second of the fastest contestant with such a name, as a multiple of loadax's: the median of all runs."""
    values = []
    for run in runs:
        name = best(run, [name for name in run["contestants"] if name in prefixes] or peers(run, prefixes))
        if name is not None and "loadax" in run["contestants"]:
            values.append(1 / ratio(run, "loadax", name))
    return statistics.median(values) if values else None


def _median(runs: list[Run], name: str) -> float | None:
    medians: list[Any] = [
        statistics.median(speeds(run, name)) for run in runs if name in run["contestants"] and speeds(run, name)
    ]
    return statistics.median(medians) if medians else None


def _colour(name: str) -> str:
    if name.startswith("loadax"):
        return _OURS
    return _GRAY if name in _HAND else _THEIRS
