"""`loadax verify`: read a whole zarr store or folder of images, and list the damage.

Reads every chunk of a zarr store from any writer, or decodes every file of a folder of images. Detects all missing and
truncated files, and flipped bits if the store has checksums, as all stores written by loadax do.

examples:
  loadax verify train.zarr && echo whole
  loadax verify train.zarr --index checked --executor processes:8
      what was checked is kept in the folder checked
  loadax verify photos/ --rows damaged.txt
      in the run: loadax.from_images("photos/", size=224).exclude("damaged.txt")

Exit code: 0 if all data can be read, 1 if some is damaged,
2 if there is no store or it was only partly written.
"""

import argparse
from pathlib import Path
from typing import Any

from loadax.cli.executors import add_executor
from loadax.cli.options import add_command, add_value
from loadax.cli.terminal import show
from loadax.core.formatting import count_text, size_text
from loadax.errors import ArgumentError
from loadax.redaction import redact
from loadax.sources.formats import FORMATS, find_format
from loadax.sources.images.folder import open_images
from loadax.writing.verify import verify

_DAMAGED = 1  # exit code; not that of an error, since the check itself succeeded
_SIDE = 64  # pixels: decoding a JPEG to a small size is fast, but reads the whole file


def add(commands: Any) -> None:
    """Adds `verify` to the commands."""
    command = add_command(commands, run)
    command.add_argument("path", metavar="PATH", help="path or URL of a zarr array or group, or a folder of images")
    add_value(command, "--rows", "FILE.txt", "file to write damaged rows of images to, for Dataset.exclude", str)
    add_value(command, "--index", "PATH", "folder that keeps the result of an interrupted check", str)
    add_executor(command)


def run(options: argparse.Namespace) -> int:
    """Runs the command; returns 1 if there is damage.

    Raises:
        LoadaxError: When the store can't be read at all.
    """
    # Archives beside the images, say, are not what is verified.
    one = find_format(options.path, among=(FORMATS["from_zarr"], FORMATS["from_images"]))
    if one is not None and one.is_folder:
        if options.index is not None or options.executor is not None:
            raise ArgumentError(f"--index and --executor are for zarr stores, not for {options.path}; leave them out")
        return _verify_images(options.path, options.rows)
    if options.rows is not None:
        raise ArgumentError(
            f"--rows {options.rows} applies to folders of images, which {options.path} is not; leave it out"
        )
    report = verify(options.path, options.index, options.executor)
    for damage in report.damages:
        name = f"{damage.array}: " if damage.array else ""
        show(f"{name}rows {damage.start} to {damage.stop - 1}: {damage.message}")
    rows, arrays = count_text(report.rows, "row"), count_text(report.arrays, "array")
    summary = f"{report.location}: {rows} of {arrays}, {size_text(report.nbytes)} raw"
    if report.damages:
        show(f"{summary}: {count_text(len(report.damages), 'damaged place')}; copy or write those files again")
        if not report.ours and any("NOT_FOUND: chunk" in damage.message for damage in report.damages):
            show("missing chunks may contain only the fill value: some writers leave such chunks out")
        return _DAMAGED
    show(f"{summary}: all can be read")
    for name in report.unchecked:
        show(f"{name or 'the array'} has no checksums: flipped bits in it go unnoticed")
    return 0


def _verify_images(folder: str, rows: str | None) -> int:
    source = open_images(folder, _SIDE)
    if rows is not None and not rows.endswith(".txt"):
        raise ArgumentError(f"--rows {rows}: pass a name that ends in .txt, which Dataset.exclude reads")
    # On one line each: file names may contain any characters.
    damaged = {row: redact(" ".join(problem.split())) for row, problem in source.damaged().items()}
    if rows is not None:
        try:
            Path(rows).write_text(
                "".join(f"{row}  # {problem}\n" for row, problem in damaged.items()), encoding="utf-8"
            )
        except OSError as error:
            raise ArgumentError(f"--rows {rows} can't be written: {error.strerror}; pass another path") from error
    show(*(f"row {row}: {problem}" for row, problem in damaged.items()))
    summary = f"{folder}: {count_text(len(source), 'image')}"
    if not damaged:
        show(f"{summary}: all can be decoded")
        return 0
    advice = "pass --rows FILE.txt for a list of them" if rows is None else f"dataset.exclude({rows!r}) leaves them out"
    show(f"{summary}: {len(damaged)} damaged; copy those files again, or {advice}")
    return _DAMAGED
