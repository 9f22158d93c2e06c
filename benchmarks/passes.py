"""A pass over 2 million Parquet rows on executors, and the sizes of payloads: `python benchmarks/passes.py --runs 3`.

A pure-Python filter reads every row: on one thread, on a process pool of 2, and on 2 Dask workers that are running
already. Each run has a process of its own, the driver, and they take turns. Printed are medians: wall seconds of
`filter`, CPU seconds of all processes, peak of the driver's resident memory, and the overhead of a task, which is
what a task without work takes, as a share of a task. Behind that: the bytes that a worker loads to
begin, of datasets of several formats.
"""

import argparse
import io
import json
import multiprocessing
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import numpy as np
import psutil

import loadax
from loadax.kept import kept_pass
from loadax.row_index.scan import RowSpan, row_spans
from loadax.work.pickling import dump

FILES, WORKERS, TASKS = 20, 2, 500
ENGINES = ("thread", "processes", "dask")


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000, help="number of rows (default: 2,000,000)")
    parser.add_argument("--runs", type=int, default=1, help="runs on each engine (default: 1)")
    parser.add_argument("--engines", nargs="*", default=ENGINES, metavar="ENGINE", help=", ".join(ENGINES))
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the numbers to this file")
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(*options.measure)))
        return
    runs: dict[str, list[dict[str, float]]] = {engine: [] for engine in options.engines}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_parquet(folder / "rows", options.rows, FILES)
        for _ in range(options.runs):
            for engine, found in runs.items():
                found.append(in_process(engine, folder))
        print(f"{options.rows:,} rows, {options.runs} runs, {os.cpu_count()} cores")
        print("| engine | wall s | of the first | CPU s | driver MB | tasks | ms a task | overhead | load |")
        print("|---|---|---|---|---|---|---|---|---|")
        for engine, found in runs.items():
            row = {key: median(run[key] for run in found) for key in found[0]}
            one = median(run["wall"] for run in next(iter(runs.values())))
            print(
                f"| {engine} | {row['wall']:.1f} | {row['wall'] / one:.2f} | {row['cpu']:.1f} "
                f"| {row['memory'] / 1e6:.0f} | {row['tasks']:.0f} | {row['work'] * 1e3:.1f} "
                f"| {row['overhead'] / row['work']:.1%} | {row['load']:.1f} |"
            )
        sizes = dict(payloads(folder / "payloads"))
    for kind, size in sizes.items():
        print(f"payload of {kind}: {size:,} B")
    if options.json:
        options.json.write_text(json.dumps({"runs": runs, "payloads": sizes}, indent=1))


def in_process(engine: str, folder: Path) -> dict[str, float]:
    """Measures an engine, with a driver of its own."""
    with tempfile.TemporaryDirectory(dir=folder) as own:
        processes = start_dask(Path(own)) if engine == "dask" else []
        try:
            address = json.loads(Path(own, "scheduler.json").read_text())["address"] if processes else ""
            text = " ".join([engine, address, *(str(process.pid) for process in processes)])
            command = [sys.executable, __file__, "--measure", text, str(folder / "rows"), own]
            found: dict[str, float] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait()
    return found


def measure(engine: str, rows: str, own: str) -> dict[str, float]:
    """Seconds and memory of a pass by this process, and the overhead of a task."""
    make = maker(engine)
    others = [int(word) for word in engine.split() if word.isdigit()]
    data = loadax.from_parquet(f"{rows}/*.parquet")
    load, cpu, began = os.getloadavg()[0], cpu_seconds(others), time.perf_counter()
    kept = data.filter(is_kept, index=f"{own}/index", executor=make, workers=None if make else 1, progress=False)
    wall, cpu = time.perf_counter() - began, cpu_seconds(others) - cpu
    status = Path("/proc/self/status").read_text().splitlines()
    assert 0.3 < len(kept) / len(data) < 0.4
    tasks = len(row_spans(data.reader, np.ones(len(data), bool)).sizes)
    workers = WORKERS if make else 1
    empty = [empty_pass(count, own, make) for count in (TASKS, 4 * TASKS)]
    return {
        "wall": wall,
        "cpu": cpu,
        "memory": next(int(line.split()[1]) * 1024.0 for line in status if line.startswith("VmHWM")),
        "tasks": tasks,
        "work": wall * workers / tasks,
        "overhead": (empty[1] - empty[0]) * workers / (3 * TASKS),
        "load": load,
    }


def empty_pass(tasks: int, own: str, make: Callable[[], Executor] | None) -> float:
    """Seconds of a pass whose tasks have a row each."""
    data, began = loadax.from_source(range(tasks)), time.perf_counter()
    with patch.multiple(kept_pass, FEW_PARTS=tasks, MANY_PARTS=tasks):
        data.filter(is_third, index=f"{own}/{tasks}", executor=make, workers=None if make else 1, progress=False)
    return time.perf_counter() - began


def no_values(span: RowSpan) -> Any:
    """Stands for the function of a pass that is planned, and not run."""
    raise NotImplementedError


def is_third(row: int) -> bool:
    """A filter that costs nothing."""
    return row % 3 == 0


def is_kept(row: Any) -> bool:
    """The filter: a little arithmetic in Python."""
    value = row["x"]
    for _ in range(50):
        value = (value * 1103515245 + 12345) % (1 << 31)
    return bool(value // 7 % 3 == 0)


def maker(engine: str) -> Callable[[], Executor] | None:
    """A function that makes the executor; None: a thread."""
    if engine.startswith("processes"):
        return partial(ProcessPoolExecutor, WORKERS, multiprocessing.get_context("spawn"))
    if engine.startswith("dask"):
        from distributed import Client

        return partial(Client(engine.split()[1]).get_executor, pure=False)
    return None


def start_dask(own: Path) -> list[subprocess.Popen[bytes]]:
    """Starts a scheduler, and waits until its workers are there."""
    common = ["--host", "127.0.0.1", "--no-dashboard", "--scheduler-file", str(own / "scheduler.json")]
    started = {"scheduler": ["--port", "0"], "worker": ["--nworkers", str(WORKERS), "--nthreads", "1"]}
    with (own / "log").open("wb") as log:
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", f"distributed.cli.dask_{name}", *common, *more], stderr=log, cwd=own
            )
            for name, more in started.items()
        ]
    while (own / "log").read_bytes().count(b"Registered to") < WORKERS:
        time.sleep(0.1)
    return processes


def cpu_seconds(others: list[int]) -> float:
    """CPU seconds of this process, of its children that have ended, and of other processes and all below them."""
    total = sum(os.times()[:4])
    for other in others:
        for process in (psutil.Process(other), *psutil.Process(other).children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                total += sum(process.cpu_times()[:2])
    return total


def write_parquet(folder: Path, rows: int, files: int) -> None:
    """Writes numbers and short texts."""
    import pyarrow as pa
    from pyarrow import parquet as pq

    folder.mkdir(parents=True)
    for file, numbers in enumerate(np.array_split(np.arange(rows), files)):
        table = pa.table({"x": numbers, "text": [f"row {number}" for number in numbers]})
        pq.write_table(table, folder / f"{file:05}.parquet", row_group_size=20_000)


def payloads(folder: Path) -> list[tuple[str, int]]:
    """Bytes of payloads, with their arrays."""
    write_parquet(folder / "parquet", 1000, 1000)
    np.save(folder / "x.npy", np.arange(1 << 20))
    (folder / "x.jsonl").write_text("".join(f'{{"x": {number}}}\n' for number in range(100_000)))
    with tarfile.open(folder / "x.tar", "w") as tar:
        for number in range(10_000):
            member = tarfile.TarInfo(f"{number:06}.txt")
            member.size = 3
            tar.addfile(member, io.BytesIO(b"abc"))
    opened = {
        "1,000 Parquet files": loadax.from_parquet(folder / "parquet"),
        "8 MiB of a mapped .npy file": loadax.from_npy(folder / "x.npy"),
        "100,000 JSON lines": loadax.from_jsonl(folder / "x.jsonl", progress=False),
        "10,000 examples of a tar file": loadax.from_webdataset(folder / "x.tar", progress=False),
    }
    sizes = []
    for kind, data in opened.items():
        arrays: list[memoryview] = []
        message = dump(data, arrays.append)
        sizes.append((kind, len(message) + sum(raw.nbytes for raw in arrays)))
    return sizes


if __name__ == "__main__":
    main()
