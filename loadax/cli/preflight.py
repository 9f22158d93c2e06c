"""`loadax preflight`: check the rows of a run before it starts.

Reads, maps and checks the rows of the planned steps of a Dataloader, each once: which rows fail, as MaskErrors would
mask them; values that are not finite or out of bounds; shapes to compile for; slow rows and files; and what reading
costs. LOADER is MODULE:NAME of a Dataloader, or of a function without arguments that returns one. No accelerator is
needed.

examples:
  loadax preflight train:loader --steps 1000
  loadax preflight train:make_loader --bounds label=0:999 --index checked --executor processes:8
      what was checked is kept in the folder checked: the same command
      goes on where it was killed

Exit code: 0 if nothing was found, 1 if a row fails or a value is not
finite or out of bounds, 2 for an error.
"""

import argparse
import json
from contextlib import suppress
from typing import Any

from loadax.cli.command import add_command, add_value
from loadax.cli.executor_option import add_executor
from loadax.cli.functions import import_object
from loadax.cli.terminal import show
from loadax.errors import ArgumentError

_FOUND = 1  # exit code; not that of an error, since the check itself succeeded


def add(commands: Any) -> None:
    """Adds `preflight` to the commands."""
    command = add_command(commands, run)
    command.add_argument(
        "source",
        metavar="LOADER",
        help="MODULE:NAME of a Dataloader, or of a function that returns one",
    )
    add_value(
        command,
        "--steps",
        "N",
        "number of first steps, or START:STOP (default: all)",
        _steps,
    )
    add_value(
        command,
        "--bounds",
        "LEAF=LOW:HIGH",
        "least and greatest value of a leaf, such as label=0:999 or x=:1; repeatable",
        _bounds,
        action="append",
        default=[],
    )
    add_value(
        command,
        "--index",
        "PATH",
        "folder that keeps what was checked, so that the same command goes on",
        str,
    )
    add_value(
        command, "--key", "NAME", "name of the maps, if code does not tell", str
    )
    add_value(command, "--workers", "N", "threads (default: chosen from the source)")
    add_executor(command)
    command.add_argument(
        "--json", action="store_true", help="print the whole report as JSON"
    )


def run(options: argparse.Namespace) -> int:
    """Runs the command; returns 1 if something was found.

    Raises:
        ArgumentError: When there is no such loader.
        Exception: What would end the run although rows are masked.
    """
    # not before it is asked for: commands import no JAX
    from loadax.loader.dataloader import Dataloader

    loader = import_object(options.source, "LOADER")
    if not isinstance(loader, Dataloader) and callable(loader):
        loader = loader()
    if not isinstance(loader, Dataloader):
        raise ArgumentError(
            f"LOADER {options.source} is {loader!r:.80}, not a Dataloader; pass the "
            "name of one, or of a function that returns one"
        )
    report = loader.preflight(
        options.steps,
        options.executor,
        options.index,
        bounds=dict(options.bounds),
        workers=options.workers,
        key=options.key,
    )
    if options.json:
        show(json.dumps(report.to_dict(), indent=1))
    else:
        show(str(report))
    if report.ok:
        return 0
    return _FOUND


def _steps(text: str) -> int | range:
    first, colon, stop = text.partition(":")
    if colon and first.isdigit() and stop.isdigit():
        return range(int(first), int(stop))
    if not colon and first.isdigit():
        return int(first)
    raise argparse.ArgumentTypeError(
        f"{text!r} is not a number of steps; pass such as 1000, or 500:1000"
    )


def _bounds(text: str) -> tuple[str, tuple[float | None, float | None]]:
    leaf, _, limits = text.rpartition("=")
    low, colon, high = limits.partition(":")
    if leaf and colon:
        with suppress(ValueError):
            return leaf, (_limit(low), _limit(high))
    raise argparse.ArgumentTypeError(
        f"{text!r} is not a leaf with bounds; pass such as label=0:999, or x=:1"
    )


def _limit(text: str) -> float | None:
    if not text:
        return None
    return float(text)
