"""Finds the function that opens the data of a command: its kind follows from the path."""

import argparse
import os
import re
from collections.abc import Sequence
from inspect import signature
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from loadax import io
from loadax.cli.functions import import_function
from loadax.core.formatting import some
from loadax.dataset import Dataset
from loadax.errors import ArgumentError
from loadax.redaction import redact
from loadax.sources.formats import FORMATS
from loadax.sources.images.folder import ENDINGS
from loadax.sources.io.expand import file_name
from loadax.sources.io.neighbours import is_hidden
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
_OPTIONS = ("columns", "seq_len", "dtype", "size", "pad_to", "cache")
_TABLES = {"from_parquet", "from_jsonl", "from_csv"}
_LISTED = {function: one for function, one in FORMATS.items() if function != "from_tokens"}


class Opener(NamedTuple):
    """The call that opens the data of a command.

    Args:
        function: Name of a function of loadax, or `module:function` of the user's.
        path: Path or URL of the data; None for a function of the user's.
        arguments: Further arguments of the function.
    """

    function: str
    path: str | None
    arguments: dict[str, Any]

    @property
    def code(self) -> str:
        """The call as Python code, without secrets of a URL."""
        if self.path is None:
            return f"{self.function.replace(':', '.')}()"
        own = {name: value for name, value in self.arguments.items() if name != "pad_to"}
        arguments = [redact(repr(self.path)), *(f"{name}={value!r}" for name, value in own.items())]
        call = f"loadax.{self.function}({', '.join(arguments)})".replace("<class 'bytes'>", "bytes")
        return f"{call}.pad({self.arguments['pad_to']})" if "pad_to" in self.arguments else call

    def open(self) -> Dataset:
        """Opens the dataset.

        Raises:
            ArgumentError: When the user's function can't be imported, or returns anything else.
            SourceError: When the data can't be read.
        """
        if self.path is not None:
            arguments = {**self.arguments}
            length = arguments.pop("pad_to", None)
            dataset: Dataset = getattr(io, self.function)(self.path, **arguments)
            return dataset if length is None else dataset.pad(length)
        dataset = import_function(self.function, "SRC")()
        if not isinstance(dataset, Dataset):
            raise ArgumentError(f"{self.function}() returned {dataset!r:.80}, not a loadax.Dataset; return one")
        return dataset


def add_source_options(command: argparse.ArgumentParser) -> None:
    """Adds SRC and its options to a command."""
    command.add_argument(
        "source", metavar="SRC", help="path or URL of the data, or MODULE:FUNCTION that makes the dataset"
    )
    command.add_argument(
        "--columns",
        "--variables",
        metavar="A,B",
        type=_names,
        help="columns of a table, arrays of a zarr group, extensions in .tar files, or features of the "
        "tf.train.Examples in TFRecord files (default: all)",
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
    command.add_argument(
        "--cache", metavar="FOLDER", help="local folder that keeps decompressed JSON lines, and bytes of remote files"
    )


def open_dataset(options: argparse.Namespace) -> Dataset:
    """Opens the dataset at a path or URL, or calls `MODULE:FUNCTION` for it.

    Raises:
        ArgumentError: When there is no dataset, its kind is unknown, or an option does not apply to its kind.
        SourceError: When it can't be read.
    """
    return find_opener(options).open()


def find_opener(options: argparse.Namespace) -> Opener:
    """The call that opens a command's data, without opening it.

    Raises:
        ArgumentError: When there is no data, its kind is unknown, or an option does not apply to its kind.
    """
    source = options.source
    # A name with a colon is a function, except for URLs and existing files.
    if ":" in source and not ("/" in source or "|" in source or os.path.exists(source)):  # noqa: PTH110 - Path.exists raises for a name that is too long
        _arguments(options, "a function", ())
        return Opener(source, None, {})
    function = _function(source, options.seq_len is not None)
    taken = [*signature(getattr(io, function)).parameters, "pad_to" * (function == "from_array_record")]
    given = _arguments(options, function, taken)
    if function == "from_tokens" and options.seq_len is None:
        raise ArgumentError(f"{source} is a file of tokens: pass --seq-len, the number of tokens per row")
    if function == "from_webdataset":
        given["decode"] = True
    if function == "from_tfrecord":
        given |= _features(source, given.pop("features", None))
    return Opener(function, source, given)


def _features(source: str, chosen: Sequence[str] | None) -> dict[str, Any]:
    """The argument `features` of `from_tfrecord`, if records are `tf.train.Example`s.

    Args:
        source: Path or URL of TFRecord files.
        chosen: Names of features; None: all of the first record.

    Raises:
        ArgumentError: When the first record lacks a feature.
    """
    from loadax.sources.shards.tfrecord import features_in

    found = features_in(source)
    absent = sorted(set(chosen or ()) - set(found))
    if absent:
        has = f"but {some(found)}; pass these" if found else "since it is not a tf.train.Example; leave --columns out"
        raise ArgumentError(f"--columns: the first record of {source} has no feature {absent[0]!r}, {has}")
    return {"features": {name: found[name] for name in chosen or found}} if found else {}


def _function(path: str, tokens: bool) -> str:
    """The function of loadax that opens a path or URL; `tokens`: whether it was said to be a file of tokens."""
    local = None if "|" in path else local_path(path)
    folder = local if local is not None and local.is_dir() else None
    names = [file_name(path)] if folder is None else _names_in(folder)
    # The kind of a local folder follows from its files.
    end = "" if folder is not None else _suffix(path)
    stored = "|" in path or end == ".zarr" or not {*names}.isdisjoint(_ZARR)
    shown = [] if stored else [name for name in names if not is_hidden(name)]
    found = [function for function, one in _LISTED.items() if any(map(one.belongs, shown))]
    if local is not None and not local.exists() and not found:  # these may be a pattern
        raise ArgumentError(f"{path} does not exist; pass the path or URL of {KNOWN}")
    if tokens or end in (".bin", ".idx"):
        return "from_tokens"
    # A list of what is in the other files is not the data.
    listed = folder is not None and (holds_images(path) or not _TABLES.issuperset(found))
    of_rows = [name for name in found if not (listed and name in _TABLES)]
    if of_rows or end == ".npy":
        return of_rows[0] if of_rows else "from_npy"
    if holds_images(path):
        return "from_images"
    # Without listing a URL, assume a zarr store, whose name may have any suffix.
    if local is None or folder is not None or end == ".zip":
        return "from_zarr"
    raise ArgumentError(f"{path} is of an unknown kind; pass {KNOWN}, or MODULE:FUNCTION")


def _suffix(path: str) -> str:
    return PurePosixPath(urlsplit(path).path if "://" in path else path).suffix.lower()


def _names_in(folder: Path) -> list[str]:
    """Names of the files in a folder; if none is of a known kind, those in the first folder below that has one."""
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not is_hidden(name))
        if any(name in _ZARR or any(one.belongs(name) for one in _LISTED.values()) for name in names):
            return [name for name in names if parent == str(folder) or not is_hidden(name)]
    return []


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


def _arguments(options: argparse.Namespace, function: str, taken: Sequence[str]) -> dict[str, Any]:
    """The arguments of a function that options set; refuses an option that sets none of those that it takes."""
    given = {}
    for option in _OPTIONS:
        names = ("columns", "variables", "features") if option == "columns" else (option,)
        name = next((name for name in names if name in taken), None)
        if (value := getattr(options, option)) is not None:
            if name is None:
                shown = option.replace("_", "-")
                raise ArgumentError(f"{options.source} is opened by {function}, which takes no --{shown}; leave it out")
            given[name] = value
    return given


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name for name in text.split(",") if name)
    if not names:
        raise argparse.ArgumentTypeError(f"{text!r} has no names; pass names separated by commas")
    return names


def _size(text: str) -> tuple[int, int]:
    match: Any = re.fullmatch(r"(\d+)(?:x(\d+))?", text)
    if match is None or int(match[1]) < 1 or int(match[2] or 1) < 1:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a size; pass one number for squares, or HEIGHTxWIDTH, such as 224x288"
        )
    return int(match[1]), int(match[2] or match[1])
