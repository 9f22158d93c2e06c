"""Plots of each workload: rows per second of all contestants, legible on light and dark pages."""

import statistics
from pathlib import Path
from typing import Any

from report import Run, speeds

_GRAY, _OURS, _THEIRS = "#888888", "#1f9e89", "#9aa5b1"
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


def _median(runs: list[Run], name: str) -> float | None:
    medians: list[Any] = [
        statistics.median(speeds(run, name)) for run in runs if name in run["contestants"] and speeds(run, name)
    ]
    return statistics.median(medians) if medians else None


def _colour(name: str) -> str:
    if name.startswith("loadax"):
        return _OURS
    return _GRAY if name in _HAND else _THEIRS
