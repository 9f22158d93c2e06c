"""Writes what was measured into two pages, and draws it: `python benchmarks/tables.py [RESULTS.json ...]`.

docs/benchmarks.md is for users, benchmarks/README.md for maintainers. A table is between `<!-- measured: NAME -->` and
`<!-- end -->`, and is replaced. Those of workloads without results stay as they are.
"""

import argparse
import json
import re
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import plots
from report import Run, best, cpu_seconds, line, others, peers, ratio, speeds, trainer_seconds

_HERE = Path(__file__).parent
_PAGES = (_HERE.parent / "docs" / "benchmarks.md", _HERE / "README.md")
_BLOCK = re.compile(r"(<!-- measured: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_WITH_WORKERS = ("grain-2", "grain-dataloader-2", "grain-batches-2", "torch-2", "torch-batches-2")
_PER_ELEMENT = ("grain-inline", "grain-threads", "grain-dataloader")
_TORCH = ("torch-0", "torch-0-numpy", "torch-2", "torch-2-numpy", "torch-batches", "torch-batches-2")
_STORES = ("fields", "chunks", "raw-fields", "raw-tokens", "raw-tokens-small", "windows")

Results = dict[str, list[Run]]  # the runs of each workload
Value = Callable[[Run], float | None]


def against(*names: str, ours: str = "loadax") -> Value:
    """How many times the rows per second of the best of them loadax has.

    Of the best of all peers, when none is named.
    """

    def value(run: Run) -> float | None:
        other = best(run, names or peers(run))
        return None if other is None or ours not in run["contestants"] else ratio(run, ours, other)

    return value


def cpu(*names: str, of: Callable[[Run, str], float] = cpu_seconds) -> Value:
    """Processor time of a row beside that of whichever of them takes least; of all peers, when none is named."""

    def value(run: Run) -> float | None:
        among = [name for name in names or peers(run) if name in run["contestants"] and speeds(run, name)]
        if not among or "loadax" not in run["contestants"]:
            return None
        return of(run, "loadax") / min(of(run, name) for name in among)

    return value


def first(name: str, kind: str = "warm") -> Value:
    """Seconds to a contestant's first batch."""
    return lambda run: run["contestants"][name]["first"][kind] if name in run["contestants"] else None


def extra(name: str, value: Callable[[Any], float]) -> Value:
    """Something measured besides."""
    return lambda run: value(run["extras"][name]) if run["extras"].get(name) else None


def times(value: float) -> str:
    """A ratio as text."""
    return f"{value:.0f}" if value >= 10 else f"{value:.2f}"


def seconds(value: float) -> str:
    """Seconds as text."""
    return f"{value * 1e3:.1f} ms"


def share(value: float) -> str:
    """A share as text."""
    return f"{value:.2%}"


# What is measured, of which workload, its limit, and how it is written.
_SHOWS: Sequence[tuple[str, str, str, Value, Callable[[float], str]]] = (
    ("tokens: a gather and `device_put` by hand", "tokens", "1.3", against("numpy"), times),
    ("tokens: the best peer", "tokens", "1.0", against(), times),
    ("tokens: Grain, per element, at its best", "tokens", "20", against(*_PER_ELEMENT), times),
    ("images: a gather and `device_put` by hand", "images", "1.3", against("numpy"), times),
    ("images: the best peer", "images", "1.0", against(), times),
    ("images: Grain, per element, at its best", "images", "20", against(*_PER_ELEMENT), times),
    (
        "pure Python, 2 processes: the best of Grain and torch with 2",
        "transform",
        "1.05",
        against(*_WITH_WORKERS),
        times,
    ),
    ("pure Python, 2 processes: what two cores can do", "transform", "0.9", against("ceiling"), times),
    (
        "the same, rows of 1025 int32: the best of Grain and torch with 2",
        "transform-wide",
        "1.05",
        against(*_WITH_WORKERS),
        times,
    ),
    (
        "the same: CPU seconds of the training process, beside torch's",
        "transform-wide",
        "at most 1",
        cpu(*_TORCH, of=trainer_seconds),
        times,
    ),
    ("rows of 48 bytes by `__getitem__`: torch at its best", "rows", "1.0", against(*_TORCH), times),
    (
        "the same: CPU seconds a row, beside the form of torch that takes least",
        "rows",
        "at most 1",
        cpu(*_TORCH),
        times,
    ),
    (
        "the same through a `map`: CPU seconds a row, beside a loop by hand",
        "row-map",
        "at most 1.3",
        cpu("numpy"),
        times,
    ),
    (
        "JPEG at 40 dB: the best of Grain and torch with Pillow",
        "jpegs",
        "1.2",
        against("grain-threads", "grain-threads-2", "grain-2", "torch-0", "torch-2"),
        times,
    ),
    (
        "JPEG, fast option: the same",
        "jpegs",
        "1.6",
        against("grain-threads", "grain-threads-2", "grain-2", "torch-0", "torch-2", ours="loadax-fast"),
        times,
    ),
    (
        "the same user's own Pillow function on threads: the best peer with it",
        "jpegs",
        "1.0",
        against("grain-threads", "grain-threads-2", "grain-2", "torch-0", "torch-2", "spdl", ours="loadax-pillow"),
        times,
    ),
    ("ArrayRecord, padded: a loop over the batched reader", "records", "0.9", against("numpy"), times),
    (
        "ArrayRecord, padded: Grain, per element, at its best",
        "records",
        "10",
        against("grain-inline", "grain-threads", "grain-2"),
        times,
    ),
    ("first batch, threads", "tokens", "100 ms", first("loadax"), seconds),
    ("the same, the process's very first", "tokens", "100 ms", first("loadax", "cold"), seconds),
    ("Grain's, threads", "tokens", "more", first("grain-threads"), seconds),
    ("first batch, 2 processes", "transform", "600 ms", first("loadax"), seconds),
    ("the same, the process's very first", "transform", "600 ms", first("loadax", "cold"), seconds),
    ("Grain's, 2 processes", "transform", "more", first("grain-2"), seconds),
    (
        "first batch from step 10⁶, less that from the start",
        "tokens",
        "20 ms at most",
        extra("resume", lambda each: each["more"]),
        seconds,
    ),
    ("tokens: CPU seconds a row, beside the peer that takes least", "tokens", "below 1", cpu(), times),
    ("images: the same", "images", "below 1", cpu(), times),
    ("pure Python: the same", "transform", "below 1", cpu(), times),
    ("JPEG: the same", "jpegs", "below 1", cpu(), times),
    ("ArrayRecord: the same", "records", "below 1", cpu(), times),
    ("tokens: a step of 10 ms waits", "tokens", "under 1%", extra("sleep", lambda each: each["share"]), share),
    ("images: the same", "images", "under 1%", extra("sleep", lambda each: each["share"]), share),
    (
        "an hour's 30,000 steps: most memory, beyond its first minute's",
        "tokens",
        "within 2%",
        extra("hour", lambda each: each["hour"] / each["minute"] - 1),
        share,
    ),
    (
        "the same, 3600 steps with 2 processes",
        "transform",
        "within 2%",
        extra("hour", lambda each: each["hour"] / each["minute"] - 1),
        share,
    ),
)

_STORE_ROWS = (
    (
        "a TensorStore loop with four reads in flight: 64x64x8 float32 in zstd shards, a row a chunk, batch 32",
        "fields",
        "0.95",
        "tensorstore",
    ),
    (
        'its own full shuffle, by `shuffle(0, block="chunks")`: the same in chunks of 64 rows',
        "chunks",
        "15",
        "row-shuffle",
    ),
    ("`np.memmap` and `device_put`: the same in raw zarr 3", "raw-fields", "0.5", "numpy"),
    ("the same, rows of 1025 uint16 in raw zarr 3, 4096 a chunk, batch 256", "raw-tokens", "0.5", "numpy"),
    ("the same, 64 a chunk, so 1563 small files", "raw-tokens-small", "0.5", "numpy"),
    ("the same, `from_tokens`: windows of 1025 uint16 of a flat file, batch 256", "windows", "1.0", "numpy"),
)


def shows(results: Results) -> list[str]:
    """The limits that loadax is held to, and what was measured."""
    return _compared(results, "| | limit | measured |", _SHOWS)


_GROUPS = {
    "loop by hand": ("numpy", "pillow"),
    "Grain": ("grain",),
    "torch": ("torch",),
    "tf.data": ("tf.data",),
    "SPDL": ("spdl",),
    "jax-dataloader": ("jax-dataloader",),
}

# Headings of docs/benchmarks.md, as links name them, where they differ from the workload's name.
_SECTIONS = {
    "images": "images-in-memory",
    "jpegs": "a-folder-of-jpeg-files",
    "records": "arrayrecord",
    "row-map": "through-a-short-function",
    "rows": "rows-one-by-one",
    "transform": "a-transform-in-pure-python",
    "transform-wide": "on-wide-rows",
}


def overview(results: Results) -> list[str]:
    """How many times the rows per second of each library's fastest form loadax has; where it is behind first."""
    rows = []
    for name, (label, _) in plots.WORKLOADS.items():
        runs = results.get(name, [])
        others = [plots.multiple(runs, prefixes) for prefixes in _GROUPS.values()]
        if any(others):
            cells = ["" if value is None else _multiple(1 / value) for value in others]
            link = f"[{len(runs)} {'run' if len(runs) == 1 else 'runs'}](../benchmarks/results/{name}.json)"
            least = min(1 / value for value in others if value is not None)
            rows.append((least, f"| [{label}](#{_SECTIONS.get(name, name)}) | {' | '.join(cells)} | {link} |"))
    heading = f"| rows/s of loadax, divided by those of | {' | '.join(_GROUPS)} | measured |"
    return [heading, "|---|" + "---:|" * len(_GROUPS) + "---|", *(line for _, line in sorted(rows))]


def _multiple(value: float) -> str:
    return f"{value:.1f}" if value >= 9.95 else f"{value:.2f}" if value >= 1 else f"**{value:.2f}**"


def stores(results: Results) -> list[str]:
    """The same for stores."""
    rows = [(label, name, asked, against(other), times) for label, name, asked, other in _STORE_ROWS]
    return _compared(results, "| rows/s of loadax, divided by those of | limit | measured |", rows)


def contestants(runs: list[Run]) -> list[str]:
    """Medians of the contestants, in the run in the middle when there are several."""
    run = sorted(runs, key=lambda repeat: statistics.median(speeds(repeat, "loadax")))[len(runs) // 2]
    headings = ["rows/s", "loadax has", "in rounds", "CPU s/Mrow", "memory", "first batch", "cold"]
    lines = [f"| | {' | '.join(headings)} |", "|---|" + "---:|" * len(headings)]
    for name in run["contestants"]:
        _, *cells = line(run, name)
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return lines


def setting(results: Results) -> list[str]:
    """What the numbers were measured on."""
    runs = [run for repeats in results.values() for run in repeats]
    seen: dict[str, list[str]] = {}
    for run in runs:
        for name, value in run["machine"].items():
            if value not in seen.setdefault(name, []):
                seen[name].append(value)
    commits = seen.pop("commit")
    told = ", ".join(
        f"{name} {' and '.join(values)}" if name != "machine" else values[0]
        for name, values in seen.items()
        if name != "loadax"
    )
    return [
        (
            f"Measured on {told}, at {' and '.join(commits)}. Meanwhile other processes used "
            f"{statistics.median(map(others, runs)):.0%} of the machine."
        )
    ]


def floors(found: dict[str, Any], sides: Sequence[str] = ("before", "after")) -> list[str]:
    """What floors.py measured: medians of its runs; what misses its goal in bold."""
    columns = [f"{by}: {side}" if len(sides) > 1 else by for by in ("by CPU", "by rows/s") for side in sides]
    lines = [f"| loadax beside | goal | {' | '.join(columns)} |", "|---|---:|" + "---:|" * len(columns)]
    for case in found.values():
        shares = case["kind"] == "share"
        goal = "" if case["goal"] is None else f"{case['goal']:g}" if shares else f"at most {case['goal']:g}"
        cells = [_floor(case, side) for side in sides]
        cells += [_median([run[side]["rate"] for run in case["runs"] if side in run]) for side in sides]
        lines.append(f"| {case['text']} | {goal} | {' | '.join(cells)} |")
    return lines


def _floor(case: dict[str, Any], side: str) -> str:
    kinds: dict[str, Callable[[Any], float]] = {
        "share": lambda figures: figures["cpu"],
        "times": lambda figures: 1 / figures["cpu"],
        "step": lambda figures: figures["step_us"],
    }
    figures = [kinds[case["kind"]](run[side]) for run in case["runs"] if side in run]
    text = _median(figures)
    if not figures or case["goal"] is None:
        return text
    figure = round(statistics.median(figures), 2)
    met = figure >= case["goal"] if case["kind"] == "share" else figure <= case["goal"]
    return text if met else f"**{text}**"


def _median(figures: list[float]) -> str:
    return times(statistics.median(figures)) if figures else ""


def growth(found: dict[str, Any]) -> list[str]:
    """What growth.py measured; what misses its goal in bold."""
    lines = [
        "| | n | before | after | asked | exponent: before | after | asked |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for cost in found.values():
        unit = "" if cost["unit"] == "bytes" else f" {cost['unit']}"
        sides = [cost.get(side) for side in ("before", "after")]
        figures = [_held(side and side["figures"][-1], cost["most"], f"{{:,.3g}}{unit}") for side in sides]
        exponents = [_held(side and side["exponent"], cost["exponent"], "{:.1f}") for side in sides]
        most = "" if cost["most"] is None else f"{cost['most']:g}{unit}"
        cells = [cost["text"], f"{cost['sizes'][-1]:,}", *figures, most, *exponents, f"{cost['exponent']:g}"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _held(figure: float | None, most: float | None, text: str) -> str:
    if figure is None:
        return ""
    return text.format(figure) if most is None or figure <= most else f"**{text.format(figure)}**"


def accelerators(found: dict[str, Any]) -> list[str]:
    """The most emulated accelerators that each loader keeps busy."""
    loaders = list(dict.fromkeys(name for entry in found.values() for name in entry["loaders"]))
    lines = [f"| accelerators at 90% | {' | '.join(loaders)} |", "|---|" + "---:|" * len(loaders)]
    for model, entry in found.items():
        cells = []
        for name in loaders:
            loader = entry["loaders"].get(name)
            one = loader and loader["measured"].get("1")
            cells.append(
                ""
                if not loader
                else f"{loader['most']} (one: {one['utilisation']:.0%})"
                if one
                else f"{loader['most']}"
            )
        lines.append(f"| {model}, {entry['text']} | {' | '.join(cells)} |")
    return lines


_BUCKET = {  # data of storage.py that other libraries read too
    "parquet": "Parquet, in order",
    "jsonl": "JSON lines, in order",
    "tokens-shuffled": "tokens of a flat file, shuffled",
    "images": "JPEG files as objects, shuffled",
    "tar": "tar files of JPEGs, in order",
    "zarr": "zarr, in order",
    "zarr-shuffled": "zarr, shuffled",
}


def bucket(found: dict[str, Any]) -> list[str]:
    """Rows per second and first batches of data behind a latency, beside each other library."""
    lines = [
        "| latency | data | rows/s | first batch | rows/s of loadax, divided by those of |",
        "|---|---|---:|---:|---|",
    ]
    for latency, kinds in found.items():
        for name, text in _BUCKET.items():
            turns = kinds.get(name, {})
            if "loadax" in turns:
                ours = _middle(turns["loadax"], "rate")
                others = [
                    f"{other} {times(ours / _middle(measured, 'rate'))}"
                    for other, measured in turns.items()
                    if other != "loadax"
                ]
                first_batch = _middle(turns["loadax"], "first")
                lines.append(f"| {latency} | {text} | {ours:,.0f} | {first_batch:.2f} s | {', '.join(others)} |")
    return lines


def _middle(turns: Sequence[dict[str, float]], key: str) -> float:
    return statistics.median(turn[key] for turn in turns)


# The tables that are made of a script's results, by their names, and the names of the results.
_OF_SCRIPTS: dict[str, tuple[Callable[[dict[str, Any]], list[str]], str]] = {
    "floors": (lambda found: floors(found, ("after",)), "floors"),
    "all-floors": (floors, "floors"),
    "growth": (growth, "growth"),
    "accelerators": (accelerators, "accelerators"),
    "bucket": (bucket, "storage"),
}


def blocks(results: Results, found: dict[str, Any]) -> dict[str, list[str]]:
    """All tables that these results make, by name.

    Args:
        results: Runs of run.py, by workload.
        found: Results of floors.py, growth.py, accelerators.py and storage.py.
    """
    made = {name: table(found[source]) for name, (table, source) in _OF_SCRIPTS.items() if source in found}
    if results:
        made |= {"setting": setting(results), "overview": overview(results), "shows": shows(results)}
    if any(name in _STORES for name in results):
        made["stores"] = stores(results)
    for name, runs in results.items():
        if name not in _STORES and "loadax" in runs[0]["contestants"]:
            made[f"all-{name}"] = contestants(runs)
    return made


def rewritten(page: str, made: dict[str, list[str]]) -> str:
    """The page with the tables in their places."""

    def block(match: re.Match[str]) -> str:
        lines = made.get(match[2])
        return match[0] if not lines else match[1] + "\n".join(lines) + "\n" + match[3]

    return _BLOCK.sub(block, page)


def main() -> None:
    """Reads the results, writes the pages and the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "results",
        nargs="*",
        type=Path,
        help="files of run.py, floors.py, growth.py, accelerators.py, storage.py (default: all of benchmarks/results)",
    )
    parser.add_argument(
        "--page",
        type=Path,
        help="the page that is rewritten, with its pictures beside it (default: docs/benchmarks.md and README.md)",
    )
    options = parser.parse_args()
    files = [json.loads(path.read_text()) for path in options.results or sorted((_HERE / "results").glob("*.json"))]
    results: Results = {entry["workload"]: entry["runs"] for entry in files if "workload" in entry and entry["runs"]}
    found = {name: measured[name] for measured in files for _, name in _OF_SCRIPTS.values() if name in measured}
    if not results and not found:
        parser.error("there are no results; run benchmarks/run.py first")
    pages = [options.page] if options.page else _PAGES
    made = blocks(results, found)
    for page in pages:
        page.write_text(rewritten(page.read_text(), made))
    if results:
        plots.draw(results, pages[0].parent / "assets")
        plots.summary(results, pages[0].parent / "assets" / "benchmarks-summary.svg")


def _compared(
    results: Results, heading: str, rows: Sequence[tuple[str, str, str, Value, Callable[[float], str]]]
) -> list[str]:
    lines = [heading, "|---|---|---|"]
    for label, name, asked, value, text in rows:
        values = [one for run in results.get(name, ()) if (one := value(run)) is not None]
        measured = f"[{' · '.join(map(text, values))}](../benchmarks/results/{name}.json)" if values else "-"
        lines.append(f"| {label} | {asked} | {measured} |")
    return lines


if __name__ == "__main__":
    main()
