"""`loadax convert`: write a dataset as a zarr store.

Writes a dataset as zarr3: compressed, in shards, with a checksum on every chunk. The store can't be opened until its
last part is written.

examples:
  loadax convert fields.zarr train.zarr --shuffle 0
      shuffles the rows once, so that training can read them in blocks; each chunk is decoded once, and rows stay in
      memory until they are written
  loadax convert corpus.bin s3://bucket/tokens --seq-len 1024 --dtype uint16
  loadax convert era5.zarr train.zarr --variables t2m,u10 --shards 0/4
      a quarter of the work; run 1/4, 2/4 and 3/4 on this machine or on others (with --shuffle, each decodes all
      chunks, and keeps a quarter of the rows)
  loadax convert fields.zarr train.zarr --shuffle 0 --resume
      continues after a crash or Ctrl-C: parts that were written are checked and kept

{SOURCES}.
"""

import argparse
import re
import warnings
from typing import Any

from loadax.cli.command import add_command, add_value
from loadax.cli.data_opener import add_source_options, find_opener
from loadax.cli.executor_option import add_executor
from loadax.cli.terminal import show
from loadax.core.formatting import count_text
from loadax.io import write_zarr

# Options of the command that are arguments of `write_zarr`, as they are.
_OPTIONS = ("chunk_rows", "shard_rows", "resume", "overwrite", "workers", "executor")


def add(commands: Any) -> None:
    """Adds `convert` to the commands."""
    command = add_command(commands, run)
    add_source_options(command)
    command.add_argument(
        "destination", metavar="DST", help="path or URL of the store to write"
    )
    add_value(
        command, "--shuffle", "SEED", "seed of a random order (default: stored order)"
    )
    add_value(
        command,
        "--chunk-rows",
        "N",
        "rows decoded together (default: 4 KiB of rows, at least one)",
    )
    add_value(
        command,
        "--shard-rows",
        "N",
        "rows per file (default: a 64th, at most 128 MiB)",
    )
    codec = "codec; blosc is better for floats (default: zstd)"
    command.add_argument(
        "--compression", choices=["zstd", "blosc", "none"], default="zstd", help=codec
    )
    add_value(
        command,
        "--shards",
        "I/N",
        "write only the I-th of N equal shares, I from 0",
        _share,
    )
    existing = command.add_mutually_exclusive_group()
    existing.add_argument(
        "--resume",
        action="store_true",
        help="continue a store that was only partly written",
    )
    replacing = "replace the store of loadax at DST, once the new one is complete"
    existing.add_argument("--overwrite", action="store_true", help=replacing)
    add_value(command, "--workers", "N", "threads that read (default: 4)")
    add_executor(command)


def run(options: argparse.Namespace) -> int:
    """Runs the command.

    Raises:
        LoadaxError: When an option is invalid, or data can't be read or written.
    """
    dataset = find_opener(options).open()
    if options.shuffle is not None:
        with warnings.catch_warnings():
            # of chunks that are decoded often: here each is decoded once
            warnings.simplefilter("ignore", UserWarning)
            dataset = dataset.shuffle(options.shuffle)
    if options.compression == "none":
        compression = None
    else:
        compression = options.compression
    given = {name: getattr(options, name) for name in _OPTIONS}
    write_zarr(
        dataset,
        options.destination,
        compression=compression,
        shard=options.shards,
        **given,
    )
    if options.shards:
        share = f" (share {options.shards[0]} of {options.shards[1]})"
    else:
        share = ""
    show(
        f"{options.destination}: written{share}, {count_text(len(dataset), 'row')} "
        "in all"
    )
    return 0


def _share(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None or int(match[1]) >= int(match[2]):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a share; pass I/N with I from 0 to N - 1, such as 0/4"
        )
    return int(match[1]), int(match[2])
