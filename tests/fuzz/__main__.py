"""Changes valid files and reads them, for as long as wanted: `python -m tests.fuzz --cases 20000`.

Prints what each format's parser did, and how to try a finding again.
"""

import argparse
import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import ctypes
import faulthandler
import mmap
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import final

from tests.fuzz.formats import FORMATS
from tests.fuzz.law import Cases, limit_memory

TOGETHER = 2000
"""Cases of one process: its memory is limited, and libraries keep some."""

HANG = 60.0
"""Seconds after which a case hangs."""


def main(given: Sequence[str] | None = None) -> int:
    """Tries cases in a process of their own, and prints those that broke the law; where it dies, another goes on."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=1000, help="of each format")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", type=int, default=0, help="of all that is random")
    parser.add_argument("--format", action="append", choices=list(FORMATS), help="one of the formats; all by default")
    parser.add_argument("--keep", type=Path, help="folder for the files of findings")
    arguments = parser.parse_args(given)
    names = arguments.format or list(FORMATS)
    todo = [(name, arguments.first + case) for name in names for case in range(arguments.cases)]
    began, shared, deaths, processes = time.monotonic(), Shared.from_buffer(mmap.mmap(-1, 24)), 0, 0
    with tempfile.TemporaryDirectory() as folder:
        while True:
            sys.stdout.flush()
            pid = os.fork()
            if not pid:
                work = Path(folder, str(processes))
                part = todo[shared.done : shared.done + TOGETHER]
                os._exit(_run(part, arguments.seed, work, shared, arguments.keep))
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            processes += 1
            if not status and shared.done == len(todo):
                break
            if not status:
                continue
            deaths += 1
            name, number = todo[shared.done]
            how = signal.Signals(-status).name if status < 0 else f"code {status}"
            print(f"{name}: the process ended by {how}")
            _again(name, arguments.seed, number)
            shared.done += 1
    findings = shared.findings + deaths
    print(
        f"{len(todo)} cases, {shared.opened} of them opened, {time.monotonic() - began:.0f} s, "
        f"findings: {findings or 'none'}"
    )
    return int(bool(findings))


@final
class Shared(ctypes.Structure):
    """Counters in memory that outlives the process that counts."""

    _fields_ = (("done", ctypes.c_int64), ("findings", ctypes.c_int64), ("opened", ctypes.c_int64))
    done: int
    findings: int
    opened: int


def _run(todo: Sequence[tuple[str, int]], seed: int, folder: Path, shared: Shared, keep: Path | None) -> int:
    limit_memory()
    cases: Cases | None = None
    told: Counter[str] = Counter()
    opened, began = 0, time.monotonic()
    for index, (name, number) in enumerate(todo):
        try:
            faulthandler.dump_traceback_later(HANG, exit=True)
        except RuntimeError:  # what libraries keep has used up the address space: another process goes on
            if index:
                return 0
            raise
        if cases is None or name != cases.name:
            cases, opened, began = Cases(name, seed, folder / name), 0, time.monotonic()
        try:
            is_open = cases.run(number) == "opened"
            opened += is_open
            shared.opened += is_open
        except AssertionError as error:
            shared.findings += 1
            place = traceback.extract_tb((error.__cause__ or error).__traceback__)[-1]
            kind = f"{name} {str(error)[:40]} {place.filename}:{place.lineno}"
            told[kind] += 1
            if told[kind] == 1:
                print(f"{name}: {error}"[:600], f"\n    at {place.filename}:{place.lineno}")
                _again(name, seed, number)
                if keep is not None:
                    cases.change(number).rename(keep / f"{name} {seed} {number}")
        if index + 1 == len(todo) or todo[index + 1][0] != name:
            print(f"{name}: {opened} opened, {time.monotonic() - began:.1f} s", flush=True)
        shared.done += 1
    faulthandler.cancel_dump_traceback_later()
    for kind, count in told.items():
        print(f"{count} x {kind}")
    sys.stdout.flush()
    return 0


def _again(name: str, seed: int, number: int) -> None:
    print(f'    again: python -m tests.fuzz --format "{name}" --seed {seed} --first {number} --cases 1', flush=True)


if __name__ == "__main__":
    sys.exit(main())
