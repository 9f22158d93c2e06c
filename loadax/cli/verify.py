"""`loadax verify`: reads a whole store and lists what is damaged."""

import argparse
import sys
from typing import Any

from loadax.texts import count_text, size_text
from loadax.writing.verify import verify

_DAMAGED = 1  # the exit code: not that of an error, since the check itself went well
_EXAMPLES = """\
example:
  loadax verify train.zarr && echo whole

Exit code: 0 when all can be read, 1 when something is damaged, 2 when there is no store or it was not written to its end.
"""


def add_command(commands: Any) -> None:
    """Adds `verify` to the commands."""
    command = commands.add_parser(
        "verify",
        help="read all of a zarr store, and list what is damaged",
        description="Reads every chunk of a zarr store, of any writer. Missing and shortened files are always found, flipped bits "
        "where the store has checksums: all stores of loadax have.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("path", metavar="PATH", help="path or URL of a zarr array or group")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs it; 1 when there is damage.

    Raises:
        LoadaxError: when the store can't be read at all.
    """
    report = verify(options.path)
    for each in report.damages:
        name = f"{each.array}: " if each.array else ""
        sys.stdout.write(f"{name}rows {each.start} to {each.stop - 1}: {each.message}\n")
    found = f"{count_text(report.rows, 'row')} of {count_text(report.arrays, 'array')}, {size_text(report.nbytes)} raw"
    if report.damages:
        sys.stdout.write(
            f"{report.location}: {found}: {count_text(len(report.damages), 'damaged place')}; copy or write those files again\n"
        )
        if not report.ours and any("NOT_FOUND: chunk" in each.message for each in report.damages):
            sys.stdout.write(
                "chunks that are missing may be those with nothing but the fill value, which some writers leave out\n"
            )
        return _DAMAGED
    sys.stdout.write(f"{report.location}: {found}: all can be read\n")
    for name in report.unchecked:
        sys.stdout.write(f"{name or 'the array'} has no checksums: flipped bits in it go unnoticed\n")
    return 0
