"""Reads five formats for hours and says what grows: `python -m tests.soak --hours 24`.

Each format has one iterator that steps, saves checkpoints and moves to other meshes for the whole time. Beside it, runs
resume from the checkpoints on 1, 2 and 4 hosts; their rows must be the same. Ends with 1 when something has grown.
"""

import argparse
import os

# Before anything imports JAX, as in tests/conftest.py.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")

import faulthandler
import json
import logging
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.limits import HANG
from tests.soak.measure import owners, sample, trimmed
from tests.soak.table import findings, table
from tests.soak.turns import LongRun
from tests.soak.workloads import WORKLOADS

Log = Callable[[dict[str, Any]], None]


def main(given: Sequence[str] | None = None, hang: float | None = 10 * HANG) -> int:
    """Runs the soak, and prints the tables. Returns 0 if nothing has grown.

    Args:
        given: arguments of the command line.
        hang: seconds that a turn may take; None: nothing ends what hangs.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--hours", type=float, default=2.0, help="how long")
    parser.add_argument("--every", type=float, default=10.0, help="seconds from one sample to the next")
    parser.add_argument("--only", action="append", choices=WORKLOADS, help="a workload; several may be given")
    parser.add_argument("--log", type=Path, help="file that samples are written to, as lines of JSON")
    parser.add_argument("--read", type=Path, metavar="LOG", help="print the tables of a log, and run nothing")
    parser.add_argument("--tracemalloc", action="store_true", help="say which lines of Python have allocated more")
    arguments = parser.parse_args(given)
    lines = soak(arguments, hang) if arguments.read is None else arguments.read.read_text().splitlines()
    entries = [json.loads(line) for line in lines]
    samples = [entry for entry in entries if entry["kind"] == "sample"]
    print(*table(samples), sep="\n")
    grown = findings(samples)
    print(*grown, sep="\n")
    print(f"grown: {len(grown) or 'nothing'}")
    return int(bool(grown))


def soak(arguments: argparse.Namespace, hang: float | None) -> list[str]:
    """Runs it, and returns the lines of its log."""
    lines: list[str] = []
    began = time.monotonic()

    def log(entry: dict[str, Any]) -> None:
        # As text: dicts would be what grows.
        lines.append(json.dumps({"seconds": round(time.monotonic() - began, 2), **entry}))
        if arguments.log:
            with arguments.log.open("a") as file:
                file.write(lines[-1] + "\n")

    with tempfile.TemporaryDirectory() as name:
        runs = {key: LongRun(key, WORKLOADS[key], Path(name)) for key in arguments.only or WORKLOADS}
        log({"kind": "start", **_told()})
        if arguments.tracemalloc:
            tracemalloc.start(8)
        first: tracemalloc.Snapshot | None = None
        due = 0.0
        half = time.monotonic() + arguments.hours * 1800
        end = time.monotonic() + arguments.hours * 3600
        while time.monotonic() < end:
            for run in runs.values():
                with limited(hang):
                    run.turn()
            if time.monotonic() >= due:
                due = time.monotonic() + arguments.every
                steps = {key: run.step for key, run in runs.items()}
                log({"kind": "sample", "steps": steps, **sample(), "owners": owners()})
            if arguments.tracemalloc and first is None and time.monotonic() > half:
                first = tracemalloc.take_snapshot()
        if first is not None:
            _print_python(first, tracemalloc.take_snapshot())
        before, after = trimmed()
        log({"kind": "trim", "before": before, "after": after})
        for run in runs.values():
            run.close()
        before, after = trimmed()
        log({"kind": "closed", "before": before, "after": after})
        print(f"private memory at the end: {before >> 20} MiB closed, {after >> 20} MiB trimmed")
    return lines


@contextmanager
def limited(seconds: float | None) -> Iterator[None]:
    """Ends this process, with the stacks of its threads, when the block takes longer."""
    if seconds is None:
        yield
        return
    faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def _told() -> dict[str, Any]:
    """What a log says of its process."""
    named = {name: os.environ[name] for name in os.environ if name.startswith("MALLOC_") or name == "LD_PRELOAD"}
    return {"pid": os.getpid(), "cores": len(os.sched_getaffinity(0)), "environment": named}


def _print_python(first: tracemalloc.Snapshot, last: tracemalloc.Snapshot) -> None:
    for difference in last.compare_to(first, "lineno")[:15]:
        print(difference)


if __name__ == "__main__":
    # Each resume would log how many rows of the lanes it skips.
    logging.getLogger("loadax").setLevel(logging.ERROR)
    sys.exit(main())
