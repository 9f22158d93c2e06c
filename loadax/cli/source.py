"""Opens the dataset of a command, whose kind follows from the path."""

import argparse
import os
import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from loadax.cli.functions import import_function
from loadax.dataset import Dataset
from loadax.errors import ArgumentError
from loadax.io import (
    from_array_record,
    from_csv,
    from_images,
    from_jsonl,
    from_npy,
    from_parquet,
    from_tfrecord,
    from_tokens,
    from_webdataset,
    from_zarr,
)
from loadax.sources.file_names import RECORDS, is_array_record, is_tar, is_tfrecord, table_function
from loadax.sources.images.folder import ENDINGS
from loadax.sources.io.expand import file_name
from loadax.sources.io.paths import local_path

KNOWN = (
    "a zarr array or group (a folder, or a .zip file), a .npy file, a file of tokens (.bin, with --seq-len and "
    "--dtype), a folder of images, Parquet files, files of JSON lines, CSV files, or files of ArrayRecord, TFRecord or "
    "WebDataset (.tar)"
)
SOURCES = """\
SRC is a zarr array or group (a folder, a .zip file or a URL), a .npy file, a file of tokens (.bin), a folder of images,
files of Parquet, JSON lines, CSV, ArrayRecord, TFRecord or WebDataset (.tar; one, a folder or a pattern), or
MODULE:FUNCTION that makes a loadax.Dataset"""
_ZARR = ("zarr.json", ".zarray", ".zgroup", ".zmetadata")  # every zarr store has one of these files
_OPTIONS = ("variables", "columns", "seq_len", "dtype", "size", "pad_to")
_TABLES: dict[str, Callable[..., Dataset]] = {
    "from_parquet": from_parquet,
    "from_jsonl": from_jsonl,
    "from_csv": from_csv,
}


def add_source_options(command: argparse.ArgumentParser) -> None:
    """Adds SRC and its options to a command."""
    command.add_argument(
        "source", metavar="SRC", help="path or URL of the data, or MODULE:FUNCTION that makes the dataset"
    )
    command.add_argument("--columns", metavar="A,B", type=_names, help="columns of a table (default: all)")
    command.add_argument(
        "--variables",
        metavar="A,B",
        type=_names,
        help="arrays of a zarr group, or extensions in .tar files (default: all)",
    )
    command.add_argument(
        "--seq-len", metavar="L", type=int, help="tokens per row of a file of tokens; each row gets one more"
    )
    command.add_argument(
        "--dtype", help="dtype of the tokens of a .bin file, or of ArrayRecord records, such as uint16"
    )
    command.add_argument(
        "--size",
        metavar="HxW",
        type=_size,
        help="size of the images in a folder or in .tar, such as 224 or 224x288",
    )
    command.add_argument(
        "--pad-to", metavar="N", type=int, help="length to which ArrayRecord records are padded with zeros"
    )


def open_dataset(options: argparse.Namespace) -> Dataset:
    """Opens the dataset at a path or URL, or calls `MODULE:FUNCTION` for it.

    Raises:
        ArgumentError: When there is no dataset, its kind is unknown, or an option does not apply to its kind.
        SourceError: When it can't be read.
    """
    source = options.source
    # A name with a colon is a function, except for URLs and existing files.
    if ":" not in source or "/" in source or "|" in source or os.path.exists(source):  # noqa: PTH110 - Path.exists raises for a name that is too long
        return _open_path(source, options)
    _refuse_options(options, "a function")
    dataset = import_function(source, "SRC")()
    if not isinstance(dataset, Dataset):
        raise ArgumentError(f"{source}() returned {dataset!r:.80}, not a loadax.Dataset; return one")
    return dataset


def _open_path(path: str, options: argparse.Namespace) -> Dataset:
    local = None if "|" in path else local_path(path)
    table = _table_kind(path, local)
    of_rows = table is not None or (local is not None and any(is_one(local.name) for is_one in RECORDS))
    if local is not None and not local.exists() and not of_rows:  # these may be a pattern
        raise ArgumentError(f"{path} does not exist; pass the path or URL of {KNOWN}")
    # The kind of a local folder follows from its files.
    end = "" if local is not None and local.is_dir() else _suffix(path)
    if options.seq_len is not None or end in (".bin", ".idx"):
        _refuse_options(options, "a file of tokens", "seq_len", "dtype")
        if options.seq_len is None:
            raise ArgumentError(f"{path} is a file of tokens: pass --seq-len, the number of tokens per row")
        return from_tokens(path, seq_len=options.seq_len, dtype=options.dtype)
    if table is not None:
        _refuse_options(options, "a table", "columns")
        return _TABLES[table](path, options.columns)
    if end == ".npy":
        _refuse_options(options, "a .npy file")
        return from_npy(path)
    shards = _open_shards(path, local, options)
    if shards is not None:
        return shards
    if holds_images(path):
        _refuse_options(options, "a folder of images", "size")
        return from_images(path, options.size)
    # Without listing a URL, assume a zarr store, whose name may have any suffix.
    if local is None or local.is_dir() or end == ".zip":
        _refuse_options(options, "a zarr store", "variables")
        return from_zarr(path, variables=options.variables)
    raise ArgumentError(f"{path} is of an unknown kind; pass {KNOWN}")


def _suffix(path: str) -> str:
    return PurePosixPath(urlsplit(path).path if "://" in path else path).suffix.lower()


def open_records(path: str) -> Dataset | None:
    """Opens files of records without options; None if there are none at the path."""
    local = None if "|" in path else local_path(path)
    return _open_shards(path, local, argparse.Namespace(source=path, **dict.fromkeys(_OPTIONS)))


def _open_shards(path: str, local: Path | None, options: argparse.Namespace) -> Dataset | None:
    """Opens files of records; None if there are none at the path."""
    if _holds(path, local, is_tar):
        _refuse_options(options, "made of tar files", "variables", "size")
        return from_webdataset(path, columns=options.variables, decode=True, size=options.size)
    if _holds(path, local, is_tfrecord):
        _refuse_options(options, "made of TFRecord files")
        return from_tfrecord(path)
    if local is not None and _holds(path, local, is_array_record):
        _refuse_options(options, "made of ArrayRecord files", "dtype", "pad_to")
        return from_array_record(path, dtype=options.dtype, pad_to=options.pad_to)
    return None


def _holds(path: str, local: Path | None, is_one: Callable[[str], bool]) -> bool:
    """Whether a path is a file of a kind, or a local folder with such files."""
    if local is not None and local.is_dir():
        return any(is_one(file.name) and not file.name.startswith(".") for file in local.iterdir())
    return is_one(file_name(path))


def open_table(path: str) -> tuple[str, Dataset] | None:
    """The function that opens a path or URL of tables, and the dataset; None for another kind of data."""
    kind = _table_kind(path, None if "|" in path else local_path(path))
    return None if kind is None else (kind, _TABLES[kind](path))


def _table_kind(path: str, local: Path | None) -> str | None:
    """The function that opens a file, folder or pattern of tables; None for another kind of data."""
    if local is None or not local.is_dir():
        return None if "|" in path else table_function([file_name(path)])
    names = [file.name for file in local.iterdir()]
    kind = None if set(names) & set(_ZARR) else table_function(names)
    # A list of what is in the other files is not the data.
    listed = kind is not None and (holds_images(path) or any(is_one(name) for is_one in RECORDS for name in names))
    return None if listed else kind


def holds_images(path: str) -> bool:
    """Whether a local folder is not a zarr store, and has images at any depth."""
    folder = None if "|" in path else local_path(path)
    if folder is None or not folder.is_dir() or any((folder / name).exists() for name in _ZARR):
        return False
    for _, folders, files in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        if any(name.lower().endswith(ENDINGS) for name in files):
            return True
    return False


def _refuse_options(options: argparse.Namespace, kind: str, *meant: str) -> None:
    """Raises if an option does not apply to this kind of data."""
    for name in _OPTIONS:
        if getattr(options, name) is not None and name not in meant:
            option = name.replace("_", "-")
            raise ArgumentError(f"{options.source} is {kind}, to which --{option} does not apply; leave it out")


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name for name in text.split(",") if name)
    if not names:
        raise argparse.ArgumentTypeError(f"{text!r} names no array; pass names separated by commas")
    return names


def _size(text: str) -> tuple[int, int]:
    match: Any = re.fullmatch(r"(\d+)(?:x(\d+))?", text)
    if match is None or int(match[1]) < 1 or int(match[2] or 1) < 1:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a size; pass one number for squares, or HEIGHTxWIDTH, such as 224x288"
        )
    return int(match[1]), int(match[2] or match[1])
