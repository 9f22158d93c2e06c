"""`loadax index`: read every row once, for Dataset.filter and Dataset.split_by.

Builds the index that Dataset.filter(index=…) and Dataset.split_by(index=…) read, so that no run has to read all rows. A
valid index is kept.

examples:
  loadax index train.zarr --filter quality:is_good --out good
      is_good(example) -> bool is defined in quality.py; in the run:
      loadax.from_zarr("train.zarr").filter(is_good, index="good")
  loadax index train.zarr --split-by patient --out patients
      a leaf, or MODULE:FUNCTION; in the run, with any fraction and seed:
      ….split_by("patient", 0.9, index="patients")
  loadax index datasets:scans --filter quality:is_good --out good
      datasets.py has a function scans() that returns a loadax.Dataset: for data with maps before the filter

{SOURCES}.
"""

import argparse
from typing import Any

from loadax.cli.functions import import_function
from loadax.cli.options import add_command, add_value
from loadax.cli.source import add_source_options, open_dataset
from loadax.cli.terminal import show
from loadax.errors import ArgumentError
from loadax.sources.io.index_folder import IndexFolder


def add(commands: Any) -> None:
    """Adds `index` to the commands."""
    command = add_command(commands, run)
    add_source_options(command)
    question = command.add_mutually_exclusive_group(required=True)
    add_value(question, "--filter", "MODULE:FUNCTION", "function of an example: whether to keep it", str)
    add_value(question, "--split-by", "KEY", "leaf, or MODULE:FUNCTION of an example: the group of a row", str)
    add_value(command, "--out", "PATH", "path of the index", str, required=True)
    command.add_argument("--key", help="name of the filter function, if its code does not identify it")
    add_value(command, "--workers", "N", "threads (default: 4, more for remote data)")


def run(options: argparse.Namespace) -> int:
    """Runs the command.

    Raises:
        LoadaxError: When an option is invalid, or data can't be read.
    """
    dataset = open_dataset(options)
    if options.filter is not None:
        kept = dataset.filter(
            import_function(options.filter, "--filter"), options.key, index=options.out, workers=options.workers
        )
        said = f"keeps {len(kept)} of {len(dataset)} rows"
    else:
        if options.key is not None:
            raise ArgumentError(f"--key {options.key} applies to --filter, not to --split-by; leave it out")
        key: Any = import_function(options.split_by, "--split-by") if ":" in options.split_by else options.split_by
        dataset.split_by(key, 0.5, index=options.out, workers=options.workers)
        said = f"knows the groups of {len(dataset)} rows"
    if not IndexFolder(options.out).path("filter" if options.filter is not None else "split_by").exists():
        raise ArgumentError(f"{options.out} was not written: changes of the function can't be detected; pass --key")
    show(f"{options.out}: {said}")
    return 0
