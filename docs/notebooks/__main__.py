"""Runs notebooks and stores their outputs, and their covers: `python -m docs.notebooks [NAME ...]`.

With `--check` it stores nothing and compares: the exit status is 1 if a cell raises, or prints what is not stored.
"""

import argparse
import sys
import time

import nbformat

from docs.notebooks import COVERS, NOTEBOOKS
from docs.notebooks.execution import differences, execute
from docs.notebooks.page import cover
from docs.pictures.record import processor_seconds


def main() -> int:
    """Runs what the command line asks for; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="default: all")
    parser.add_argument("--check", action="store_true", help="compare outputs with those that are stored")
    options = parser.parse_args()
    found: list[str] = []
    names = options.names or [path.stem for path in NOTEBOOKS]
    if unknown := {*names} - {path.stem for path in NOTEBOOKS}:
        parser.error(f"{sorted(unknown)}: name some of {[path.stem for path in NOTEBOOKS]}")
    for path in (path for path in NOTEBOOKS if path.stem in names):
        started, used = time.monotonic(), processor_seconds()
        stored = nbformat.read(path, 4)
        executed = execute(stored)
        if options.check:
            found += [f"{path.name}, {text}" for text in differences(stored, executed)]
        else:
            executed.metadata["processor_seconds"] = round(processor_seconds() - used)
            nbformat.write(executed, path)
            (COVERS / f"{path.stem}.png").write_bytes(cover(path))
        print(f"{path.name}: {time.monotonic() - started:.0f} s", flush=True)
    print(*found, sep="\n", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
