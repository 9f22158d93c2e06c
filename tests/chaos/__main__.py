"""Injects faults into many small runs and counts what goes wrong: `python -m tests.chaos --runs 8000`."""

import argparse
import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import faulthandler
import logging
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from random import Random

from tests.chaos import processes, threads
from tests.chaos.judge import Count, table
from tests.limits import HANG

ANSWERS = ("status", "reset", "truncate", "delay", "corrupt")


def main(given: Sequence[str] | None = None) -> int:
    """Runs, and prints the table. Returns 0 if nothing went wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--runs", type=int, default=2000, help="within this process")
    parser.add_argument("--servers", type=int, default=4, help="runs with each kind of bad answer")
    parser.add_argument("--processes", type=int, default=1, help="rounds of faults of processes, some 30 faults each")
    parser.add_argument("--seed", type=int, default=0, help="of all that is random")
    arguments = parser.parse_args(given)
    began, counts = time.monotonic(), dict[str, Count]()
    logging.getLogger("loadax").setLevel(logging.CRITICAL)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        threads.prepare(folder)
        kinds, weights = list(threads.RUNS), [share for _, share in threads.RUNS.values()]
        for number in range(arguments.runs):
            random = Random(f"{arguments.seed} {number}")
            kind = random.choices(kinds, weights)[0]
            with counting(counts, kind, f"run {number}") as count:
                count.faults += threads.RUNS[kind][0](count, folder, random)
        with threads.server(folder) as proxy:
            for number, answer in enumerate(ANSWERS * arguments.servers):
                with counting(counts, f"server: {answer}", f"answer {number}") as count:
                    count.faults += threads.server_fails(count, proxy, answer, Random(f"{arguments.seed} {number}"))
        for number in range(arguments.processes):
            for kind, run in processes.RUNS.items():
                with counting(counts, kind, f"round {number}") as count:
                    count.faults += run(count, folder, Random(f"{arguments.seed} {number}"))
    for line in table(counts):
        print(line)
    findings = [f"{kind}: {text}" for kind, count in counts.items() for text in count.told]
    print(f"{time.monotonic() - began:.0f} s, seed {arguments.seed}, findings: {len(findings) or 'none'}")
    print(*findings[:20], sep="\n")
    return int(any(count.findings for count in counts.values()) or bool(findings))


class counting:  # noqa: N801 - a context manager
    """Counts a run; one that hangs ends the program with the stacks of all threads, and one that fails is unclear."""

    def __init__(self, counts: dict[str, Count], kind: str, label: str):
        self.count, self._label = counts.setdefault(kind, Count()), label

    def __enter__(self) -> Count:
        faulthandler.dump_traceback_later(HANG, exit=True)
        self.count.runs += 1
        return self.count

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> bool:
        faulthandler.cancel_dump_traceback_later()
        if isinstance(error, Exception):
            self.count.unclear += 1
            self.count.told.append(f"{self._label}: {type(error).__name__}: {error}"[:1500])
        return isinstance(error, Exception)


if __name__ == "__main__":
    sys.exit(main())
