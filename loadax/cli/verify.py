"""`loadax verify`: read a whole zarr store, and list the damage.

Reads every chunk of a zarr store from any writer. Detects all missing and truncated files, and flipped bits if the
store has checksums, as all stores written by loadax do.

examples:
  loadax verify train.zarr && echo whole
  loadax verify train.zarr --index checked --executor processes:8
      what was checked is kept in the folder checked

Exit code: 0 if all data can be read, 1 if some is damaged,
2 if there is no store or it was only partly written.
"""

import argparse
from typing import Any

from loadax.cli.command import add_command, add_value
from loadax.cli.executor_option import add_executor
from loadax.cli.terminal import show
from loadax.core.formatting import count_text, size_text
from loadax.writing.store_damage import verify

_DAMAGED = 1  # exit code; not that of an error, since the check itself succeeded


def add(commands: Any) -> None:
    """Adds `verify` to the commands."""
    command = add_command(commands, run)
    command.add_argument(
        "path", metavar="PATH", help="path or URL of a zarr array or group"
    )
    add_value(
        command,
        "--index",
        "PATH",
        "folder that keeps the result of an interrupted check",
        str,
    )
    add_executor(command)


def run(options: argparse.Namespace) -> int:
    """Runs the command; returns 1 if there is damage.

    Raises:
        LoadaxError: When the store can't be read at all.
    """
    report = verify(options.path, options.index, options.executor)
    for damage in report.damages:
        if damage.array:
            name = f"{damage.array}: "
        else:
            name = ""
        show(f"{name}rows {damage.start} to {damage.stop - 1}: {damage.message}")
    rows = count_text(report.rows, "row")
    arrays = count_text(report.arrays, "array")
    summary = f"{report.location}: {rows} of {arrays}, {size_text(report.nbytes)} raw"
    if report.damages:
        show(
            f"{summary}: {count_text(len(report.damages), 'damaged place')}; copy or "
            "write those files again"
        )
        if not report.ours and any(
            "NOT_FOUND: chunk" in damage.message for damage in report.damages
        ):
            show(
                "missing chunks may contain only the fill value: some writers leave "
                "such chunks out"
            )
        return _DAMAGED
    show(f"{summary}: all can be read")
    for name in report.unchecked:
        show(
            f"{name or 'the array'} has no checksums: flipped bits in it go unnoticed"
        )
    return 0
