"""Changes valid files and reads them, for as long as wanted: `python -m tests.fuzz --cases 20000`.

Prints what each format's parser did, and how to try a finding again.
"""

import argparse
import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

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

from tests.fuzz.formats import FORMATS
from tests.fuzz.law import Cases, limit_memory

HANG = 60.0
"""Seconds after which a case hangs."""


def main(given: Sequence[str] | None = None) -> int:
    """Tries cases, and prints those that broke the law."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=1000, help="of each format")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", type=int, default=0, help="of all that is random")
    parser.add_argument("--format", action="append", choices=list(FORMATS), help="one of the formats; all by default")
    parser.add_argument("--keep", type=Path, help="folder for the files of findings")
    arguments = parser.parse_args(given)
    findings = 0
    for name in arguments.format or FORMATS:
        findings += _fuzz(name, arguments.seed, arguments.first, arguments.first + arguments.cases, arguments.keep)
    print(f"{len(arguments.format or FORMATS) * arguments.cases} cases, findings: {findings or 'none'}")
    return int(bool(findings))


def _fuzz(name: str, seed: int, first: int, stop: int, keep: Path | None) -> int:
    """Runs cases in processes, each going on where the last one died."""
    began, counts = time.monotonic(), mmap.mmap(-1, 24)  # the next case, findings, cases that opened
    with tempfile.TemporaryDirectory() as folder:
        deaths = 0
        while first < stop:
            sys.stdout.flush()
            pid = os.fork()
            if not pid:
                os._exit(_child(name, seed, first, stop, Path(folder, str(deaths)), counts, keep))
            _, status = os.waitpid(pid, 0)
            if not status:
                break
            code = os.waitstatus_to_exitcode(status)
            first = _get(counts, 0) + 1
            deaths += 1
            how = signal.Signals(-code).name if code < 0 else f"code {code}"
            print(f"{name}: the process ended by {how}")
            _again(name, seed, first - 1)
    found = _get(counts, 1) + deaths
    print(
        f"{name}: {_get(counts, 2)} opened, {found} findings, {time.monotonic() - began:.0f} s",
        flush=True,
    )
    return found


def _child(name: str, seed: int, first: int, stop: int, folder: Path, counts: mmap.mmap, keep: Path | None) -> int:
    cases = Cases(name, seed, folder)
    limit_memory()
    reasons: Counter[str] = Counter()
    for number in range(first, stop):
        _set(counts, 0, number)
        faulthandler.dump_traceback_later(HANG, exit=True)
        try:
            opened = cases.run(number) == "opened"
            _set(counts, 2, _get(counts, 2) + opened)
        except AssertionError as error:
            _set(counts, 1, _get(counts, 1) + 1)
            cause = error.__cause__ or error
            place = traceback.extract_tb(cause.__traceback__)[-1]
            kind = f"{str(error)[:40]} {place.filename}:{place.lineno}"
            reasons[kind] += 1
            if reasons[kind] == 1:
                print(f"{name}: {error}"[:600], f"\n    at {place.filename}:{place.lineno}")
                _again(name, seed, number)
                if keep is not None:
                    cases.change(number).rename(keep / f"{name} {seed} {number}")
    faulthandler.cancel_dump_traceback_later()
    for kind, count in reasons.items():
        print(f"    {count} x {kind}")
    sys.stdout.flush()
    return 0


def _again(name: str, seed: int, number: int) -> None:
    print(f'    again: python -m tests.fuzz --format "{name}" --seed {seed} --first {number} --cases 1', flush=True)


def _get(counts: mmap.mmap, index: int) -> int:
    return int.from_bytes(counts[8 * index : 8 * index + 8], "little")


def _set(counts: mmap.mmap, index: int, value: int) -> None:
    counts[8 * index : 8 * index + 8] = value.to_bytes(8, "little")


if __name__ == "__main__":
    sys.exit(main())
