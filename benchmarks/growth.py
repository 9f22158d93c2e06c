"""Prints how costs grow: `python benchmarks/growth.py [COST ...] [--runs 3] [--package PATH]`. See README.md.

Every cost is a function that prepares data of size n and returns what is then measured, for three sizes or so. Its
exponent is that of its growth between the last two: 0 does not depend on n, 1 is linear, 2 quadratic.
`--package PATH` measures the loadax of another checkout too, in a process of its own.
"""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")

import argparse
import gc
import itertools
import json
import math
import pickle
import resource
import subprocess
import sys
import tempfile
import tracemalloc
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np
from report import aligned
from turns import environment, machine

import loadax
from loadax.sharding import plan_mesh

_SECONDS = 0.3  # that a call is repeated for
_BATCH = 256
_RUN = 5  # steps of a call

Measured = Callable[[], Any]


@final
@dataclass(frozen=True)
class Cost:
    """A cost that depends on a size.

    Args:
        text: What is measured, for the page.
        prepare: Function of n and an empty folder; returns the function to measure.
        sizes: Values of n.
        small: Two values of n for a test, which counts calls in place of CPU time; none: only measured here.
        exponent: Most exponent, between the last two sizes.
        most: Most at the largest size, for the page; None: the exponent is all that is asked.
        unit: "ms" of CPU time, with child processes; "calls" of Python and C functions; "bytes": what the function
            returns, bytes for each of n.
        steps: Number that the figure is divided by.
        tested: Unit of the test: "calls", or "ms" where the work is in one call, which the test allows a wide margin.
        calls: Most calls for each of n in the test.
    """

    text: str
    prepare: Callable[[int, Path], Measured]
    sizes: Sequence[int]
    small: Sequence[int]
    exponent: float
    most: float | None
    unit: str = "ms"
    steps: int = 1
    tested: str = "calls"
    calls: float | None = None

    def figure(self, n: int, unit: str | None = None) -> float:
        """The cost at size n."""
        with tempfile.TemporaryDirectory(prefix="loadax-growth-") as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            work = self.prepare(n, Path(folder))
            unit = unit or self.unit
            figure = float(work()) / n if unit == "bytes" else milliseconds(work) if unit == "ms" else calls(work)
        return figure / self.steps


def milliseconds(work: Measured) -> float:
    """Least CPU time of a call, of this process and of child processes that ended."""
    taken: list[float] = []
    while len(taken) < 3 and sum(taken) < _SECONDS:
        gc.collect()
        began = _cpu_seconds()
        work()
        taken.append(_cpu_seconds() - began)
    return min(taken) * 1e3


def calls(work: Measured) -> float:
    """Number of calls of Python and C functions on this thread, the same every time."""
    count = 0

    def watch(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(watch)
    try:
        work()
    finally:
        sys.setprofile(None)
    return float(count)


def exponent(sizes: Sequence[int], figures: Sequence[float]) -> float:
    """Exponent of the growth between the last two sizes."""
    return math.log(max(figures[-1], 1e-9) / max(figures[-2], 1e-9)) / math.log(sizes[-1] / sizes[-2])


def _cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def _parts(n: int) -> list[Any]:
    # A dataset takes longer to make than to add to many: after 4,000 they are repeated.
    parts = [loadax.from_arrays({"x": np.full(4, part, np.int32)}) for part in range(min(n, 4000))]
    return [parts[part % len(parts)] for part in range(n)]


def _quarantine(n: int, _folder: Path) -> Measured:
    data = loadax.from_arrays({"x": np.zeros(10_000_000, np.float32)}).shuffle(0)
    bad = np.random.default_rng(0).choice(10_000_000, n, replace=False)
    loader = loadax.Dataloader(data, _BATCH, quarantine=bad, on_error=loadax.MaskErrors(), num_workers=0)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    return lambda: [next(batches) for _ in range(_RUN)]


def _quarantine_given(n: int, _folder: Path) -> Measured:
    data = loadax.from_arrays({"x": np.zeros(4_000_000, np.float32)})
    bad, policy = np.random.default_rng(0).choice(4_000_000, n, replace=False), loadax.MaskErrors()
    return lambda: loadax.Dataloader(data, _BATCH, quarantine=bad, on_error=policy)


def _state(n: int, _folder: Path) -> Measured:
    batches = iter(loadax.Dataloader(loadax.concat(_parts(n)), _BATCH, num_workers=0))
    next(batches)
    batches.get_state()
    return batches.get_state


def _rows_of_parts(n: int, _folder: Path) -> Measured:
    loader = loadax.Dataloader(loadax.concat(_parts(n)).shuffle(0), _BATCH)
    loader.rows(0)
    return lambda: loader.rows(1)


def _step_of_parts(n: int, _folder: Path) -> Measured:
    loader = loadax.Dataloader(loadax.concat(_parts(n)).shuffle(0), _BATCH, num_workers=0, num_epochs=None)
    batches = iter(loader)
    for _ in range(4):
        next(batches)
    return lambda: [next(batches) for _ in range(_RUN)]


def _concat(n: int, _folder: Path) -> Measured:
    parts = _parts(n)
    return lambda: loadax.concat(parts)


def _mix(n: int, _folder: Path) -> Measured:
    parts = _parts(n)
    return lambda: len(loadax.mix(parts, [1] * n))


def _weights(n: int, _folder: Path) -> Measured:
    parts = [np.arange(10**7), np.arange(10**7)]
    shares = [round(0.5 + 0.4 * math.sin(step), 9) for step in range(n)]
    schedule = {step * 10_000: [share, 1 - share] for step, share in enumerate(shares)}
    return lambda: len(loadax.mix(parts, schedule, stop="first"))


def _rows_across_weights(n: int, _folder: Path) -> Measured:
    shares = [round(0.5 + 0.4 * math.sin(step), 9) for step in range(n)]
    schedule = {step * _BATCH: [share, 1 - share] for step, share in enumerate(shares)}
    mixed = loadax.mix([np.arange(10**7), np.arange(10**7)], schedule, stop="never")
    loader, steps = loadax.Dataloader(mixed, _BATCH, num_epochs=1), itertools.cycle(range(n))
    return lambda: [loader.rows(next(steps)) for _ in range(3)]


def _replicated(n: int, _folder: Path) -> Measured:
    data = loadax.from_arrays({"x": np.arange(8 * n, dtype=np.int32), "y": np.zeros(8 * n, np.int32)})
    from jax.sharding import PartitionSpec

    partition = {"x": PartitionSpec("data"), "y": PartitionSpec()}
    loader = loadax.Dataloader(data, 8 * n, mesh=plan_mesh({"data": 8 * n}, hosts=n), partition=partition)
    loader.local_rows(0)
    return lambda: loader.local_rows(0)


def _checked(axes: Callable[[int], dict[str, int]]) -> Callable[[int, Path], Measured]:
    def prepare(n: int, _folder: Path) -> Measured:
        from jax.sharding import PartitionSpec

        sizes = axes(n)
        rows = math.prod(sizes.values())
        data = loadax.from_arrays({"x": np.zeros((2 * rows, 8), np.int32)})
        spec = PartitionSpec("data", *(["model"] if "model" in sizes else []))
        loader = loadax.Dataloader(data, rows, mesh=plan_mesh(sizes, hosts=n), partition=spec)
        return lambda: loader.check_plan(1)

    return prepare


def _held(make: Callable[[], Any]) -> float:
    """Bytes that an object holds."""
    gc.collect()
    tracemalloc.start()
    held = make()
    gc.collect()
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del held
    return float(size)


def _split(n: int, _folder: Path) -> Measured:
    def make(data: loadax.Dataset) -> Any:
        parts = data.split(0.9)
        for part in parts:
            part.read([0])
        return parts

    data, few = (loadax.from_arrays({"x": np.zeros(rows, np.int8)}) for rows in (n, 80))
    make(few)  # what is imported and cached is not a cost of rows
    return lambda: _held(partial(make, data))


def _split_pickled(n: int, _folder: Path) -> Measured:
    # the array itself weighs a byte a row, and is not the recipe
    return lambda: len(pickle.dumps(loadax.from_arrays({"x": np.zeros(n, np.int8)}).split(0.9)[0].order))


def _filter(n: int, _folder: Path) -> Measured:
    def make(n: int = n) -> Any:
        kept = loadax.from_arrays({"x": (np.arange(n) % 8).astype(np.int8)}).filter(lambda row: row["x"] != 0)
        kept.read([0])
        return kept

    make(8)  # what is imported and cached is not a cost of rows

    def held() -> float:
        return _held(make) - n  # less the array itself

    return held


def _huggingface(selected: bool) -> Callable[[int, Path], Measured]:
    def prepare(n: int, _folder: Path) -> Measured:
        import datasets

        rows = datasets.Dataset.from_dict({"x": np.arange(n, dtype=np.int32)})
        chosen = rows.select(np.random.default_rng(0).permutation(n)) if selected else rows
        data, random = loadax.from_huggingface(chosen), np.random.default_rng(1)
        data.read(random.integers(0, n, _BATCH))
        return lambda: [data.read(random.integers(0, n, _BATCH)) for _ in range(_RUN)]

    return prepare


def _parquet_files(n: int, folder: Path) -> Measured:
    import pyarrow as pa
    from pyarrow import parquet

    first = folder / "0.parquet"
    parquet.write_table(pa.table({"x": np.arange(8, dtype=np.int32), "y": np.zeros(8, np.float32)}), first)
    for number in range(1, n):
        os.link(first, folder / f"{number}.parquet")
    return lambda: loadax.from_parquet(folder)


def _columns(n: int, folder: Path) -> Measured:
    import pyarrow as pa
    from pyarrow import parquet

    path = folder / "wide.parquet"
    parquet.write_table(pa.table({f"c{number}": np.zeros(64, np.float32) for number in range(n)}), path)

    def first() -> None:
        with iter(loadax.Dataloader(loadax.from_parquet(path), 64, num_workers=0)) as batches:
            next(batches)

    return first


def _lanes(n: int, _folder: Path) -> Measured:
    def rows(lane: int, _lanes: int) -> Any:
        return ({"x": np.full(1, lane, np.int32)} for _ in range(1000))

    stream = loadax.from_stream(rows, lanes=n)
    batches = iter(loadax.Dataloader(stream, n, num_workers=0))
    next(batches)
    batches.get_state()
    return batches.get_state


def _find(n: int, _folder: Path) -> Measured:
    weights = np.random.default_rng(0).integers(1, 100, n)
    sampled = loadax.from_arrays({"x": np.zeros(n, np.int8)}).sample(weights, size=n, seed=0)
    loader = loadax.Dataloader(sampled, _BATCH)
    return lambda: loader.find(7)


def _strings(n: int, _folder: Path) -> Measured:
    text = [f"a string of some words, number {number}" for number in range(n)]
    data = loadax.from_source(text).map(_length)

    def first() -> None:
        with iter(loadax.Dataloader(data, 64, worker_type="process", num_workers=2)) as batches:
            next(batches)

    return first


def _length(text: Any) -> Any:
    return np.int32(len(str(text)))


COSTS: dict[str, Cost] = {
    "quarantine": Cost(
        "a step beside n quarantined rows",
        _quarantine,
        (10, 10_000, 1_000_000),
        (1000, 100_000),
        0.3,
        0.5,
        steps=_RUN,
        tested="ms",
    ),
    "quarantine-given": Cost(
        "a loader that is given n quarantined rows",
        _quarantine_given,
        (1000, 100_000, 1_000_000),
        (1000, 10_000),
        1.1,
        300,
        calls=1,
    ),
    "state": Cost("`get_state` of a concat of n parts", _state, (100, 10_000, 100_000), (100, 800), 0.2, 0.05),
    "rows-of-parts": Cost(
        "`rows(step)` of a concat of n parts", _rows_of_parts, (1000, 10_000, 100_000), (300, 900), 0.3, 1
    ),
    "step-of-parts": Cost(
        "a step of 256 rows over n parts", _step_of_parts, (1000, 3000, 10_000), (1000, 3000), 0.3, 2, steps=_RUN
    ),
    "concat": Cost("`concat` of n parts", _concat, (100, 10_000, 100_000), (100, 300), 1.15, 1000, calls=175),
    "mix": Cost("`mix` of n parts, and its length", _mix, (100, 1000, 10_000), (100, 300), 1.15, 300, calls=195),
    "weights": Cost("a schedule of n decimal weights", _weights, (10, 100, 1000), (), 1.15, 200),
    "rows-across-weights": Cost(
        "`rows(step)` where these weights change", _rows_across_weights, (100, 300, 1000), (), 0.3, 1, steps=3
    ),
    "replicated": Cost(
        "`local_rows` with a replicated leaf, n hosts", _replicated, (1000, 10_000, 100_000), (1000, 4000), 1.15, 10
    ),
    "check-plan": Cost(
        "`check_plan(1)`, n hosts",
        _checked(lambda n: {"data": n * 4}),
        (100, 1000, 10_000),
        (50, 200),
        1.15,
        1000,
        calls=205,
    ),
    "check-plan-2d": Cost(
        "`check_plan(1)`, n hosts, rows and columns cut",
        _checked(lambda n: {"data": n * 2, "model": 2}),
        (100, 1000, 10_000),
        (50, 200),
        1.15,
        2000,
        calls=215,
    ),
    "split": Cost(
        "`split(0.9)` of n rows: bytes a row",
        _split,
        (10_000, 100_000, 1_000_000),
        (20_000, 200_000),
        0.1,
        1.2,
        "bytes",
    ),
    "split-pickled": Cost(
        "its order, pickled: bytes a row",
        _split_pickled,
        (10_000, 100_000, 1_000_000),
        (20_000, 200_000),
        0.1,
        1.2,
        "bytes",
    ),
    "filter": Cost(
        "`filter` of n rows: bytes a row", _filter, (10_000, 100_000, 400_000), (10_000, 100_000), 0.1, 1.2, "bytes"
    ),
    "huggingface": Cost(
        "256 rows of a Hugging Face dataset",
        _huggingface(False),
        (10_000, 1_000_000, 10_000_000),
        (),
        0.3,
        None,
        steps=_RUN,
    ),
    "huggingface-select": Cost(
        "256 rows of n that were selected in random order",
        _huggingface(True),
        (10_000, 1_000_000, 10_000_000),
        (10_000, 100_000),
        0.3,
        0.6,
        steps=_RUN,
    ),
    "parquet-files": Cost(
        "`from_parquet` of n files", _parquet_files, (100, 1000, 10_000), (50, 150), 1.15, 1200, calls=100
    ),
    "columns": Cost(
        "first batch of n columns of Parquet", _columns, (100, 1000, 10_000), (50, 150), 1.15, None, calls=1000
    ),
    "lanes": Cost("`get_state` of a stream of n lanes", _lanes, (128, 1024, 4096), (128, 512), 1.15, 2, calls=2.5),
    "find": Cost(
        "`find` of a row behind `sample` of n", _find, (10_000, 1_000_000, 10_000_000), (10_000, 100_000), 1.15, 200
    ),
    "strings": Cost(
        "first batch of n strings in two processes", _strings, (10_000, 100_000, 1_000_000), (), 1.15, None
    ),
}


def measured(name: str) -> dict[str, Any]:
    """The figures of a cost, and their exponent."""
    cost = COSTS[name]
    figures = [float(f"{cost.figure(n):.4g}") for n in cost.sizes]
    return {"figures": figures, "exponent": round(exponent(cost.sizes, figures), 2)}


def told(name: str) -> dict[str, Any]:
    """What is asked of a cost."""
    cost = COSTS[name]
    return {
        "text": cost.text,
        "sizes": list(cost.sizes),
        "unit": cost.unit,
        "exponent": cost.exponent,
        "most": cost.most,
    }


def _of_package(name: str, package: Path, runs: int) -> dict[str, Any]:
    """The same of another checkout: the run whose last figure is the median, and that figure of all runs."""
    command = [sys.executable, __file__, name, "--one"]
    variables = {**environment(), "PYTHONPATH": str(package.resolve())}
    found = [
        json.loads(subprocess.run(command, env=variables, stdout=subprocess.PIPE, text=True, check=True).stdout)
        for _ in range(runs)
    ]
    found.sort(key=lambda run: run["figures"][-1])
    return {**found[len(found) // 2], "runs": [run["figures"][-1] for run in found]}


_HEADINGS = ("cost", "n", "before", "after", "asked", "exponent before", "after", "asked")


def cells(name: str, cost: dict[str, Any]) -> tuple[str, ...]:
    """A row of the table."""
    sides = [cost.get(side) for side in ("before", "after")]
    return (
        name,
        f"{cost['sizes'][-1]:,}",
        *("" if side is None else f"{side['figures'][-1]:,.4g} {cost['unit']}" for side in sides),
        "" if cost["most"] is None else f"{cost['most']:g}",
        *("" if side is None else f"{side['exponent']:.2f}" for side in sides),
        f"{cost['exponent']:g}",
    )


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("costs", nargs="*", metavar="COST", help=f"of {', '.join(COSTS)} (default: all)")
    parser.add_argument("--package", type=Path, help="checkout of another loadax, which is measured as 'before'")
    parser.add_argument("--runs", type=int, default=1, help="runs of each, in new processes; the median (default 1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="file to write the results to")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    unknown = [name for name in options.costs if name not in COSTS]
    if unknown:
        parser.error(f"no cost is called {unknown[0]!r}; there are {', '.join(COSTS)}")
    if options.one:
        print(json.dumps(measured(options.costs[0])))
        return
    found: dict[str, Any] = {}
    for name in options.costs or COSTS:
        found[name] = told(name)
        # Each in a fresh process: what an earlier cost left in memory would slow the next one.
        if options.package:
            found[name]["before"] = _of_package(name, options.package, options.runs)
        found[name]["after"] = _of_package(name, Path(loadax.__file__).parents[1], options.runs)
        print("  ".join(cells(name, found[name])), flush=True)
        if options.json:
            before = machine(options.package)["commit"] if options.package else None
            options.json.write_text(
                json.dumps({"machine": machine(), "before": before, "growth": found}, indent=1) + "\n"
            )
    print(aligned([_HEADINGS, *(cells(name, cost) for name, cost in found.items())]))


if __name__ == "__main__":
    main()
