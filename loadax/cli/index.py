"""`loadax index`: read all rows once before a run: filters, groups, lengths of documents, records of files.

Builds the index that Dataset.filter, split_by and pack read with index=…, and from_jsonl, from_tfrecord and
from_webdataset too, so that no run has to read all rows. A valid index is kept.

examples:
  loadax index train.zarr --filter quality:is_good --out good
      is_good(example) -> bool is defined in quality.py; in the run:
      loadax.from_zarr("train.zarr").filter(is_good, index="good")
  loadax index train.zarr --split-by patient --out patients
      a leaf, or MODULE:FUNCTION; in the run, with any fraction and seed:
      ….split_by("patient", 0.9, index="patients")
  loadax index datasets:scans --filter quality:is_good --out good
      datasets.py has a function scans() that returns a loadax.Dataset: for data with maps before the filter
  loadax index datasets:corpus --pack 2048 --out lengths
      the lengths of all documents, and the plan of pack(2048, index="lengths"); other plans need no second pass
  loadax index datasets:corpus --pack 2048 --out lengths --executor processes:8
      by 8 processes; on a cluster: cluster:pool, where cluster.py has a function pool() that makes an executor
  loadax index "train-*.tar" --records --out records
      where each record is; in the run: loadax.from_webdataset("train-*.tar", index="records")

{SOURCES}.
"""

import argparse
from inspect import signature
from typing import Any

from loadax import io
from loadax.cli.command import add_command, add_value
from loadax.cli.data_opener import add_source_options, find_opener
from loadax.cli.executor_option import add_executor
from loadax.cli.functions import import_function
from loadax.cli.terminal import show
from loadax.core.formatting import count_text
from loadax.dataset import Dataset
from loadax.errors import ArgumentError
from loadax.kept.index_folder import IndexFolder
from loadax.sources.file_index import ENTRY
from loadax.sources.format import RecordOptions
from loadax.sources.formats import FORMATS
from loadax.sources.open_files import open_files


def add(commands: Any) -> None:
    """Adds `index` to the commands."""
    command = add_command(commands, run)
    add_source_options(command)
    question = command.add_mutually_exclusive_group(required=True)
    add_value(
        question,
        "--filter",
        "MODULE:FUNCTION",
        "function of an example: whether to keep it",
        str,
    )
    add_value(
        question,
        "--split-by",
        "KEY",
        "leaf, or MODULE:FUNCTION of an example: the group of a row",
        str,
    )
    add_value(
        question,
        "--pack",
        "SEQ_LEN",
        "entries of a packed row: measure all documents, and plan the rows",
        _seq_len,
    )
    records = "find the records of tar, TFRecord or JSON lines files"
    question.add_argument("--records", action="store_const", const=True, help=records)
    add_value(command, "--out", "PATH", "path of the index", str, required=True)
    command.add_argument(
        "--key",
        help="name of the filter function, or of the maps before --pack, if their code does not identify them",
    )
    add_value(
        command,
        "--workers",
        "N",
        "threads of --filter and --split-by (default: 4, more for remote data)",
    )
    add_executor(command)


def run(options: argparse.Namespace) -> int:
    """Runs the command.

    Raises:
        LoadaxError: When an option is invalid, or data can't be read.
    """
    if options.key is not None and options.filter is None and options.pack is None:
        raise ArgumentError(
            f"--key {options.key} applies to --filter and --pack alone; leave it out"
        )
    if options.records:
        dataset = _with_records(options)
    else:
        dataset = find_opener(options).open()
    scan = {
        "index": options.out,
        "workers": options.workers,
        "executor": options.executor,
    }
    if options.filter is not None:
        kept = dataset.filter(
            import_function(options.filter, "--filter"), options.key, **scan
        )
        entry = "filter"
        said = f"keeps {len(kept)} of {count_text(len(dataset), 'row')}"
    elif options.split_by is not None:
        key: Any
        if ":" in options.split_by:
            key = import_function(options.split_by, "--split-by")
        else:
            key = options.split_by
        dataset.split_by(key, 0.5, **scan)
        entry = "split_by"
        said = f"knows the groups of {count_text(len(dataset), 'row')}"
    elif options.pack is not None:
        packed = dataset.pack(
            options.pack,
            index=options.out,
            key=options.key,
            executor=options.executor,
        )
        entry = "lengths"
        documents = count_text(len(dataset), "document")
        said = f"packs {documents} into {count_text(len(packed), 'row')}"
    else:
        entry = ENTRY
        said = f"knows the records of {count_text(len(dataset), 'row')}"
    if not IndexFolder(options.out).path(entry).exists():
        raise ArgumentError(
            f"{options.out} was not written: changes of the function can't be "
            "detected; pass --key"
        )
    show(f"{options.out}: {said}")
    return 0


def _with_records(options: argparse.Namespace) -> Dataset:
    """Opens files with an index of their records.

    Raises:
        ArgumentError: When they are files of another format, or a function.
    """
    opener = find_opener(options)
    if (
        opener.path is None
        or "progress" not in signature(getattr(io, opener.function)).parameters
    ):
        raise ArgumentError(
            "--records is for tar, TFRecord and JSON lines files, which "
            f"{options.source} is not; pass their path"
        )
    # which finds the records; opening the files then finds the index
    if options.executor is not None:
        own = RecordOptions(
            options.out, opener.arguments.get("cache"), executor=options.executor
        )
        open_files(FORMATS[opener.function], opener.path, own)
    return opener._replace(
        arguments={**opener.arguments, "index": options.out}
    ).open()


def _seq_len(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a length; pass a number of entries, 1 or more"
        )
    return int(text)
