"""Counts the calls between files of loadax in one `next()`: `python benchmarks/calls_per_next.py`.

A zarr store with two variables, one device, no workers and no maps: all calls run on this thread. Printed is the mean
of many, since a `next()` may read the next ones too, and how many depends on the speed of the machine; of three such
means the smallest, since others may use the machine. See README.md.
"""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_NUM_CPU_DEVICES"] = "1"

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np

import loadax

_PACKAGE = Path(loadax.__file__).parent
_WARMUP = 20  # batches, after which pieces have their sizes
_COUNTED = 64  # batches
_TURNS = 3
_ROWS = 128  # of a batch: every leaf of it is laid out without gaps, on eight devices too


def crossings(work: Callable[[], Any]) -> Counter[tuple[str, str]]:
    """Counts calls between files of the package, by the caller's file and the callee's file and function."""
    counts: Counter[tuple[str, str]] = Counter()

    def watch(frame: FrameType, event: str, _argument: Any) -> None:
        if event != "call" or frame.f_back is None:
            return
        caller, callee = _file(frame.f_back.f_code), _file(frame.f_code)
        if caller and callee and caller != callee:
            counts[caller, f"{callee}:{frame.f_code.co_qualname}"] += 1

    sys.setprofile(watch)
    try:
        work()
    finally:
        sys.setprofile(None)
    return counts


def _file(code: CodeType) -> str | None:
    path = Path(code.co_filename)
    return str(path.relative_to(_PACKAGE)) if path.is_relative_to(_PACKAGE) else None


def main() -> None:
    """Prints the calls and their number."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print every call")
    options = parser.parse_args()
    rows = {"x": np.zeros((4096, 64), np.float32), "y": np.zeros(4096, np.int32)}
    with tempfile.TemporaryDirectory(prefix="loadax-benchmark-") as name:
        loadax.write_zarr(loadax.from_arrays(rows), Path(name) / "rows.zarr", progress=False)
        data = loadax.from_zarr(Path(name) / "rows.zarr").shuffle(seed=0)
        with iter(loadax.Dataloader(data, _ROWS, num_epochs=None, num_workers=0)) as batches:
            for _ in range(_WARMUP):
                next(batches)
            turns = [crossings(lambda: [next(batches) for _ in range(_COUNTED)]) for _ in range(_TURNS)]
    counts = min(turns, key=Counter.total)
    if options.list:
        for (caller, callee), count in counts.items():
            print(f"{count / _COUNTED:>5.2f}  {caller} -> {callee}")
    files = {file for caller, callee in counts for file in (caller, callee.split(":")[0])}
    calls = sum(counts.values()) / _COUNTED
    print(f"{calls:.1f} calls between {len(files)} files of loadax in one next()")


if __name__ == "__main__":
    main()
