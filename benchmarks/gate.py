"""Counts what no noise touches, and fails where a count has grown by 5 %: `python benchmarks/gate.py`.

Eight small workloads run on one device and on the caller's thread, with a clock that advances by calls, so that how
much is read at once does not depend on the machine. Counted are, for a step of each:

calls       of functions of loadax, and of those in C that these call
allocated   bytes of NumPy's and Python's memory, which each copy of rows takes
system      system calls about files, where strace is installed
requests    to a bucket that a server of this machine plays, at the start and in an epoch
instructions   of machine code, in thousands, of five workloads, where valgrind is installed

The table of counts is `benchmarks/gate.json`, with its history: the last entry counts. Counts of calls differ between
versions of Python, so others than that of the table compare nothing and say so. Instructions are counted only with the
builds of Python, NumPy and the rest that the table names.

    python benchmarks/gate.py                     # all of them, compared with the table
    python benchmarks/gate.py arrays bucket       # two of them
    python benchmarks/gate.py --record "Why the counts have changed"
"""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_NUM_CPU_DEVICES"] = "1"

import argparse
import gc
import json
import platform
import shutil
import subprocess
import sys
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import gate_instructions
import numpy as np
import ticks  # noqa: F401 - before anything of loadax looks at a clock
from gate_table import compare
from metadata import Server

import loadax

TABLE = Path(__file__).with_name("gate.json")
_PACKAGE = str(Path(loadax.__file__).parent)
_WARMUP = 16  # steps, after which buffers are used again
_STEPS = 16  # that are counted
_ROWS = 4096
_MARK = "/loadax-count-"  # begins the names of files that are looked for between two countings
# Workloads whose instructions are loadax's and NumPy's. The others take as long again, in pyarrow and in decoders.
_INSTRUCTIONS = "arrays", "objects", "tokens", "zarr", "packed"
_SYSTEM = "read,pread64,readv,preadv,openat,newfstatat,fstat,statx,lseek,getdents64"


class Workload(NamedTuple):
    """Rows, and how they are fed.

    Args:
        write: Writes the rows into an empty folder.
        open: Opens the folder; or, of `bucket`, its URL.
        batch_size: Rows of a step.
        in_bucket: Whether the folder is opened by a URL.
    """

    write: Callable[[Path], None]
    open: Callable[[str], loadax.Dataset]
    batch_size: int = 128
    in_bucket: bool = False


# --- workloads --------------------------------------------------------------------------------------------------------


def _nothing(_folder: Path) -> None:
    pass


def _rows() -> dict[str, Any]:
    return {"x": np.arange(_ROWS * 64, dtype=np.float32).reshape(_ROWS, 64), "y": np.arange(_ROWS, dtype=np.int32)}


def _arrays(_path: str) -> loadax.Dataset:
    return loadax.from_arrays(_rows()).shuffle(seed=0)


class _Objects:
    """Rows that are read one by one."""

    def __len__(self) -> int:
        return _ROWS

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {"x": np.full(16, row, np.int32)}


def _twice(row: dict[str, Any]) -> dict[str, Any]:
    return {"x": row["x"] * 2}


def _objects(_path: str) -> loadax.Dataset:
    return loadax.from_source(_Objects()).shuffle(seed=0).map(_twice)


def _write_tokens(folder: Path) -> None:
    np.arange(_ROWS * 64, dtype=np.uint16).tofile(folder / "tokens.bin")


def _tokens(path: str) -> loadax.Dataset:
    return loadax.from_tokens(f"{path}/tokens.bin", 63, dtype="uint16").shuffle(seed=0)


def _write_zarr(folder: Path) -> None:
    loadax.write_zarr(loadax.from_arrays(_rows()), folder / "rows.zarr", progress=False)


def _zarr(path: str) -> loadax.Dataset:
    return loadax.from_zarr(f"{path}/rows.zarr").shuffle(seed=0)


def _write_parquet(folder: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    for number in range(16):
        first = number * _ROWS // 16
        columns = {name: np.arange(first, first + _ROWS // 16, dtype=np.int32) for name in ("a", "b", "c", "d")}
        parquet.write_table(pa.table(columns), folder / f"{number:02}.parquet")


def _parquet(path: str) -> loadax.Dataset:
    return loadax.from_parquet(path).shuffle(seed=0, block="chunks", lanes=4)


def _packed(_path: str) -> loadax.Dataset:
    lengths = np.random.default_rng(0).integers(1, 256, _ROWS)
    documents = [np.arange(length, dtype=np.int32) for length in lengths]
    return loadax.from_source(documents).pack(256).shuffle(seed=0)


def _write_images(folder: Path) -> None:
    from PIL import Image

    for number in range(64):
        (folder / str(number % 4)).mkdir(exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (48, 48, 3), np.uint8)
        Image.fromarray(pixels).save(folder / str(number % 4) / f"{number:02}.jpg")


def _images(path: str) -> loadax.Dataset:
    return loadax.from_images(path, size=(32, 32)).shuffle(seed=0)


WORKLOADS = {
    "arrays": Workload(_nothing, _arrays),
    "objects": Workload(_nothing, _objects),
    "tokens": Workload(_write_tokens, _tokens),
    "zarr": Workload(_write_zarr, _zarr),
    "parquet": Workload(_write_parquet, _parquet),
    "packed": Workload(_nothing, _packed, batch_size=32),
    "images": Workload(_write_images, _images, batch_size=16),
    "bucket": Workload(_write_parquet, _parquet, in_bucket=True),
}


# --- counting ---------------------------------------------------------------------------------------------------------


def measure(name: str) -> dict[str, float]:
    """The counts of one workload, without those of system calls."""
    workload = WORKLOADS[name]
    with tempfile.TemporaryDirectory(prefix="loadax-gate-") as folder:
        root = Path(folder, "data")
        (root / "train").mkdir(parents=True)
        workload.write(root / "train")
        if workload.in_bucket:
            return _requests(workload, root)
        steps = _steps(workload, str(root / "train"))
        return {"calls": _calls(steps), "allocated": _allocated(steps)}


def _steps(workload: Workload, path: str) -> Iterator[Any]:
    """The batches of a loader without threads, behind those that differ from all later ones."""
    loader = loadax.Dataloader(workload.open(path), workload.batch_size, num_epochs=None, num_workers=0)
    steps = iter(loader)
    for _ in range(_WARMUP):
        next(steps)
    return steps


def _calls(steps: Iterator[Any]) -> float:
    """Calls of a step by and within loadax."""
    count = 0

    def watch(frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal count
        if event in {"call", "c_call"} and frame.f_code.co_filename.startswith(_PACKAGE):
            count += 1

    _profiled(steps, watch)
    return count / _STEPS


def _allocated(steps: Iterator[Any]) -> float:
    """Bytes that a step allocates, in KiB: how far the memory in use rises between two calls, all rises together."""
    total = 0
    last = 0

    def watch(_frame: FrameType, _event: str, _argument: Any) -> None:
        nonlocal total, last
        current, peak = tracemalloc.get_traced_memory()
        # smaller ones are objects of Python, and of this function
        if peak - last >= 1024:
            total += peak - last
        last = current
        tracemalloc.reset_peak()

    tracemalloc.start()
    try:
        next(steps)
        last, _ = tracemalloc.get_traced_memory()
        _profiled(steps, watch)
    finally:
        tracemalloc.stop()
    return total / 1024 / _STEPS


def _profiled(steps: Iterator[Any], watch: Callable[[FrameType, str, Any], None]) -> None:
    gc.collect()
    gc.disable()
    sys.setprofile(watch)
    try:
        for _ in range(_STEPS):
            next(steps)
    finally:
        sys.setprofile(None)
        gc.enable()


def _requests(workload: Workload, root: Path) -> dict[str, float]:
    """Requests to open a folder of a bucket, and those of an epoch.

    Those that are sent a second time because they are late depend on the load of the machine: not counted.
    """
    server = Server(root)
    server.use()
    opened: list[loadax.Dataset] = []
    at_start = server.during(lambda: opened.append(workload.open("s3://bucket/train")))
    loader = loadax.Dataloader(opened[0], workload.batch_size, num_epochs=1, num_workers=0)
    epoch = server.during(lambda: [*loader])
    server.close()
    return {"requests at start": len(set(at_start)), "requests of an epoch": len(set(epoch))}


def system_calls(names: Sequence[str]) -> dict[str, float]:
    """System calls of a step about files, of each workload that reads files; empty without strace."""
    files = [name for name in names if WORKLOADS[name].write is not _nothing and not WORKLOADS[name].in_bucket]
    if shutil.which("strace") is None:
        print("NOT RUN: system calls, which need strace")
        return {}
    if not files:
        return {}
    with tempfile.TemporaryDirectory(prefix="loadax-gate-") as folder:
        log = Path(folder, "log")
        command = [
            "strace",
            "-f",
            "-o",
            str(log),
            "-e",
            f"trace={_SYSTEM}",
            sys.executable,
            __file__,
            "--below",
            "strace",
            *files,
        ]
        run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
        if run.returncode:
            print(f"NOT RUN: system calls, since strace fails: {run.stderr.strip()[-200:]}")
            return {}
        return _between_marks(log.read_text("utf-8", "replace"))


def _between_marks(log: str) -> dict[str, float]:
    """How many lines of a log of strace are between the marks of each workload."""
    counts: dict[str, float] = {}
    counting = ""
    for line in log.splitlines():
        if _MARK in line:
            name, _, side = line.split(_MARK)[1].split('"')[0].partition("-")
            counting = name if side == "begin" else ""
            counts.setdefault(name, 0)
        elif counting and " resumed>" not in line:  # the second line of a call
            counts[counting] += 1 / _STEPS
    return counts


def instructions(names: Sequence[str], table_of: str | None) -> dict[str, float]:
    """Thousands of instructions of a step, of some workloads; says so if they can't be counted.

    Args:
        names: Workloads.
        table_of: What the table was counted with; None: count with whatever is there.
    """
    some = [name for name in names if name in _INSTRUCTIONS]
    here = gate_instructions.machine_code()
    if missing := gate_instructions.missing():
        print(f"NOT RUN: instructions, which need {missing}")
    elif table_of not in {None, here}:
        print(f"NOT RUN: instructions, since the table is of {table_of or 'none'}; and this is {here}")
    elif some:
        try:
            counts = gate_instructions.count([sys.executable, __file__, "--below", "valgrind", *some])
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            print(f"NOT RUN: instructions, since valgrind fails: {error}")
        else:
            return {name: count / _STEPS / 1000 for name, count in counts.items()}
    return {}


def _mark_for_strace(name: str, side: str) -> None:
    Path(f"{_MARK}{name}-{side}").exists()


def _run_between(names: Sequence[str], mark: Callable[[str, str], object]) -> None:
    """Runs the steps of workloads, each between two marks that strace or valgrind shows."""
    for name in names:
        with tempfile.TemporaryDirectory(prefix="loadax-gate-") as folder:
            WORKLOADS[name].write(Path(folder))
            steps = _steps(WORKLOADS[name], folder)
            gc.collect()
            gc.disable()
            mark(name, "begin")
            for _ in range(_STEPS):
                next(steps)
            mark(name, "end")
            gc.enable()


# --- the table --------------------------------------------------------------------------------------------------------


def main(given: Sequence[str] | None = None) -> int:
    """Prints the counts beside those of the table. Returns 1 if one has grown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=[*WORKLOADS])
    parser.add_argument("--record", metavar="WHY", help="append the counts to the table")
    parser.add_argument("--below", choices=["strace", "valgrind"], help=argparse.SUPPRESS)
    options = parser.parse_args(given)
    if options.below:
        mark = _mark_for_strace if options.below == "strace" else gate_instructions.marks()
        _run_between(options.workloads, mark)
        return 0
    history = json.loads(TABLE.read_text("utf-8")) if TABLE.exists() else []
    last = history[-1] if history else {"counts": {}}
    found = {name: measure(name) for name in options.workloads}
    for name, count in system_calls(options.workloads).items():
        found[name]["system"] = count
    code = instructions(options.workloads, None if options.record else last.get("machine code", ""))
    for name, count in code.items():
        found[name]["instructions"] = count
    found = {name: {what: round(count, 2) for what, count in counts.items()} for name, counts in found.items()}
    for name, counts in found.items():
        for what, count in counts.items():
            print(f"{name:10}{what:22}{last['counts'].get(name, {}).get(what, 0):12,.2f}{count:12,.2f}")
    python = ".".join(platform.python_version_tuple()[:2])
    if options.record:
        entry: dict[str, Any] = {"why": options.record, "loadax": loadax.__version__, "python": python}
        if code:
            entry["machine code"] = gate_instructions.machine_code()
        entry["counts"] = {**last["counts"], **found}
        TABLE.write_text(json.dumps([*history, entry], indent=1) + "\n", encoding="utf-8")
        return 0
    if history and history[-1]["python"] != python:
        print(f"NOT RUN: the table is of Python {history[-1]['python']}, and this is {python}")
        return 0
    grown = compare(last["counts"], found)
    print(*grown, sep="\n")
    print("the gate is " + ("closed: find out why, or record it" if grown else "open"))
    return int(bool(grown))


if __name__ == "__main__":
    sys.exit(main())
