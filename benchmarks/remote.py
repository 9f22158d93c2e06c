"""Reading for a loader on two Dask workers, beside two worker processes: `python benchmarks/remote.py --runs 3`.

The work is JPEG decoding, and a map in pure Python. The loaders of one process take turns of 120 batches, since other
work on the machine changes from one second to the next. Printed are medians of the turns: rows a second, this
process's CPU milliseconds a batch, and rows that this process read itself. `--engines process ray` needs Ray on this
machine: `pip install ray`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import median
from typing import Any

import jax
import numpy as np
import PIL.Image

import loadax

ENGINES = ("process", "remote")
WORKERS, BATCH, SIZE = 2, 64, 160
WARM, SKIPPED, TURN = 200, 40, 120  # batches


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=9, help="turns of each (default: 9)")
    parser.add_argument("--engines", nargs="*", default=ENGINES, metavar="ENGINE", help="process, remote, ray")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the numbers to this file")
    options = parser.parse_args()
    found = {}
    with tempfile.TemporaryDirectory() as folder, closing(_Dask(Path(folder))) as dask:
        make_jpegs(Path(folder, "photos"))
        for work, data in (("jpeg", jpegs(Path(folder, "photos"))), ("python", python())):
            found[work] = measure(data, options.engines, options.turns, dask.address)
    print(f"{options.turns} turns, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print("| work | engine | rows/s | of the first | CPU ms a batch here | read here |")
    print("|---|---|---|---|---|---|")
    for work, engines in found.items():
        first = next(iter(engines.values()))
        for engine, turns in engines.items():
            rows, cpu, here = (median(turn[index] for turn in turns) for index in range(3))
            ratio = median(turn[0] / other[0] for turn, other in zip(turns, first, strict=True))
            print(f"| {work} | {engine} | {rows:,.0f} | {ratio:.2f} | {cpu * 1e3:.1f} | {here:.1%} |")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


def measure(
    data: loadax.Dataset, engines: Sequence[str], turns: int, address: str
) -> dict[str, list[tuple[float, float, float]]]:
    """For each engine and turn: rows a second, CPU seconds of this process a batch, share of rows that it read."""
    found: dict[str, list[tuple[float, float, float]]] = {engine: [] for engine in engines}
    with ExitStack() as stack:
        runs = {}
        for engine in engines:
            processes = engine == "process"
            given: dict[str, Any] = {"worker_type": "process"} if processes else {"remote": _executor(engine, address)}
            loader = loadax.Dataloader(data, BATCH, num_epochs=None, num_workers=WORKERS, **given)
            runs[engine] = stack.enter_context(loader.iterate())
            _take(runs[engine], WARM)  # workers of remote= import loadax in their first tasks
        for _ in range(turns):
            for engine, batches in runs.items():
                _settle(runs.values())
                ahead = batches.stats()
                _take(batches, ahead.rows // BATCH - ahead.steps + SKIPPED)
                began, cpu, before = time.perf_counter(), time.process_time(), batches.stats()
                _take(batches, TURN)
                seconds, cpu, after = time.perf_counter() - began, time.process_time() - cpu, batches.stats()
                here = (after.read_here - before.read_here) / max(1, after.rows - before.rows)
                found[engine].append((TURN * BATCH / seconds, cpu / TURN, here))
    return found


def _settle(runs: Iterable[Any]) -> None:
    """Waits until no run reads ahead any more."""
    rows, before = [batches.stats().rows for batches in runs], list[int]()
    while rows != before:
        time.sleep(1)
        rows, before = [batches.stats().rows for batches in runs], rows


def _take(batches: Any, count: int) -> None:
    for _ in range(count):
        jax.block_until_ready(next(batches))


def _executor(engine: str, address: str) -> Any:
    if engine == "ray":
        from loadax.interop.ray import executor

        return executor(num_cpus=1)
    from distributed import Client

    return Client(address, direct_to_workers=True).get_executor(pure=False)


def make_jpegs(folder: Path) -> None:
    """Writes 64 photos of 160 pixels squared."""
    values = np.random.default_rng(0).integers(0, 255, (64, SIZE // 8, SIZE // 8, 3), np.uint8)
    (folder / "all").mkdir(parents=True)
    for number, small in enumerate(values):
        image = PIL.Image.fromarray(small).resize((SIZE, SIZE), PIL.Image.Resampling.BICUBIC)
        image.save(folder / "all" / f"{number}.jpg", quality=90)


def jpegs(folder: Path) -> loadax.Dataset:
    """These photos, each decoded anew for each of a thousand rows, and flipped at random."""
    return loadax.from_images(folder).repeat(1000).shuffle(seed=0).map(flipped, rng=True)


def flipped(example: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Flips half of the images."""
    return {**example, "image": example["image"][:, ::-1] if rng.random() < 0.5 else example["image"]}


def python() -> loadax.Dataset:
    """Rows that take about half a millisecond of Python each."""
    return loadax.from_source(range(1_000_000)).shuffle(seed=0).map(digits)


def digits(row: int) -> dict[str, Any]:
    """Sums squares."""
    return {"sum": np.int32(sum(number * number % 7 for number in range(row % 100, 8000)))}


class _Dask:
    """A scheduler and two workers on this machine."""

    def __init__(self, folder: Path):
        self._stack = ExitStack()
        contact = folder / "scheduler.json"
        for program, options in (("scheduler", ["--port", "0"]), ("worker", ["--nworkers", str(WORKERS)])):
            command = [sys.executable, "-m", f"distributed.cli.dask_{program}", "--host", "127.0.0.1", "--no-dashboard"]
            command += ["--scheduler-file", str(contact), *options]
            command += ["--nthreads", "1", "--local-directory", str(folder)] if program == "worker" else []
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            self._stack.callback(process.wait)
            self._stack.callback(process.terminate)
        while not contact.exists() or not contact.read_bytes():
            time.sleep(0.1)
        self.address = json.loads(contact.read_text())["address"]

    def close(self) -> None:
        self._stack.close()


if __name__ == "__main__":
    main()
