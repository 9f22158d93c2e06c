"""`loadax report`: make the page of a saved run.

Makes one HTML file, which needs no network, of files that `batches.report().save('run.json')` wrote: of one process, or
of several beside each other.

example:
  loadax report run.json
  loadax report run-0.json run-1.json -o run.html
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loadax.cli.command import add_command
from loadax.cli.terminal import show
from loadax.errors import ArgumentError
from loadax.files.paths import writing_file
from loadax.loader.reports.run_page import run_page
from loadax.loader.reports.run_record import RunRecord, read_record


def add(commands: Any) -> None:
    """Adds `report` to the commands."""
    command = add_command(commands, run)
    command.add_argument(
        "paths", metavar="RUN", nargs="+", help="saved run, a .json file"
    )
    command.add_argument(
        "-o",
        "--output",
        metavar="PAGE",
        help="page to write (default: the name of the first file, with .html)",
    )


def run(options: argparse.Namespace) -> int:
    """Runs the command.

    Raises:
        LoadaxError: When a file is not a saved run, or the page can't be written.
    """
    records = [read_record(path) for path in options.paths]
    target = Path(options.output or Path(options.paths[0]).with_suffix(".html"))
    if target.suffix.lower() != ".html":
        raise ArgumentError(
            f"--output={options.output!r}: name a .html file, such as run.html"
        )
    page = run_page(dict(zip(_names(records, options.paths), records, strict=True)))
    with writing_file(target):
        target.write_text(page, encoding="utf-8")
    show(*(record.verdict for record in records), f"{target}: written")
    return 0


def _names(records: Sequence[RunRecord], paths: Sequence[str]) -> list[str]:
    """Names of the records: their processes; of several runs, their files."""
    processes = [f"process {record.process}" for record in records]
    files = [Path(path).stem for path in paths]
    for names in (processes, files):
        if len({*names}) == len(names):
            return names
    return list(paths)
