"""Finds the function that opens the data of a command: its kind follows from the path."""

import argparse
import os
import re
import textwrap
from typing import Any, NamedTuple

from loadax import io
from loadax.cli.functions import import_function
from loadax.dataset import Dataset
from loadax.errors import ArgumentError
from loadax.files.paths import local_path
from loadax.redaction import redact
from loadax.sources.format import Format
from loadax.sources.formats import FORMATS, find_format


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


_NOUNS = ", ".join(
    one.noun + f" (with {_option(one.needs)})" * bool(one.needs)
    for one in FORMATS.values()
)
SOURCES = textwrap.fill(
    f"SRC is {_NOUNS}; several files as a folder or a pattern; or MODULE:FUNCTION "
    "that makes a loadax.Dataset",
    120,
)
_OPTIONS = ("columns", "seq_len", "dtype", "size", "pad_to", "cache")


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
        own = {
            name: value for name, value in self.arguments.items() if name != "pad_to"
        }
        arguments = [
            redact(repr(self.path)),
            *(f"{name}={value!r}" for name, value in own.items()),
        ]
        call = f"loadax.{self.function}({', '.join(arguments)})".replace(
            "<class 'bytes'>", "bytes"
        )
        if "pad_to" in self.arguments:
            return f"{call}.pad({self.arguments['pad_to']})"
        return call

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
            if length is None:
                return dataset
            return dataset.pad(length)
        dataset = import_function(self.function, "SRC")()
        if not isinstance(dataset, Dataset):
            raise ArgumentError(
                f"{self.function}() returned {dataset!r:.80}, not a loadax.Dataset; "
                "return one"
            )
        return dataset


def add_source_options(command: argparse.ArgumentParser) -> None:
    """Adds SRC and its options to a command."""
    command.add_argument(
        "source",
        metavar="SRC",
        help="path or URL of the data, or MODULE:FUNCTION that makes the dataset",
    )
    columns = "columns, arrays, members or features to read, by name (default: all)"
    command.add_argument(
        "--columns", "--variables", metavar="A,B", type=_names, help=columns
    )
    command.add_argument(
        "--seq-len",
        metavar="L",
        type=int,
        help="tokens per row; each row gets one more",
    )
    command.add_argument(
        "--dtype",
        help="dtype of tokens in .bin files, or of records of numbers, such as uint16",
    )
    command.add_argument(
        "--size",
        metavar="HxW",
        type=_size,
        help="size of images, such as 224 or 224x288",
    )
    command.add_argument(
        "--pad-to",
        metavar="N",
        type=int,
        help="length to which records are padded with zeros",
    )
    kept = "local folder that keeps decompressed files, and bytes of remote files"
    command.add_argument("--cache", metavar="FOLDER", help=kept)


def find_opener(options: argparse.Namespace) -> Opener:
    """The call that opens a command's data, without opening it.

    Raises:
        ArgumentError: When there is no data, its kind is unknown, or an option does not apply to its kind.
    """
    source = options.source
    # A name with a colon is a function, except for URLs and existing files.
    if ":" in source and not (
        "/" in source or "|" in source or os.path.exists(source)  # noqa: PTH110 - Path.exists raises for a name that is too long
    ):
        _arguments(options, None)
        return Opener(source, None, {})
    one = _format_of(options)
    given = _arguments(options, one)
    if one.needs and one.needs not in given:
        raise ArgumentError(f"{source} is {one.noun}: pass {_option(one.needs)} too")
    return Opener(one.function, source, one.command_arguments(source, given))


def _format_of(options: argparse.Namespace) -> Format:
    path = options.source
    # An option that one format needs says which one it is.
    needed = (
        one
        for one in FORMATS.values()
        if one.needs and getattr(options, one.needs) is not None
    )
    found = next(needed, None) or find_format(path, guess=True)
    if "|" in path:
        local = None
    else:
        local = local_path(path)
    if local is not None and not local.exists() and not re.search(r"[*?\[{]", path):
        raise ArgumentError(
            f"{path} does not exist; pass the path or URL of {_NOUNS}"
        )
    if found is None or found.function not in FORMATS:
        raise ArgumentError(
            f"{path} is of an unknown kind; pass {_NOUNS}, or MODULE:FUNCTION"
        )
    return found


def _arguments(options: argparse.Namespace, one: Format | None) -> dict[str, Any]:
    """The arguments that options set; refuses an option that does not apply to a format, or to a function: None."""
    given = {
        name: value
        for name in _OPTIONS
        if (value := getattr(options, name)) is not None
    }
    for name in given:
        if one is None or name not in one.options:
            if one is None:
                opened = "a function"
            else:
                opened = one.function
            raise ArgumentError(
                f"{options.source} is opened by {opened}, which takes no "
                f"{_option(name)}; leave it out"
            )
    return {
        one.columns if one is not None and name == "columns" else name: value
        for name, value in given.items()
    }


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name for name in text.split(",") if name)
    if not names:
        raise argparse.ArgumentTypeError(
            f"{text!r} has no names; pass names separated by commas"
        )
    return names


def _size(text: str) -> tuple[int, int]:
    match: Any = re.fullmatch(r"(\d+)(?:x(\d+))?", text)
    if match is None or int(match[1]) < 1 or int(match[2] or 1) < 1:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a size; pass one number for squares, or HEIGHTxWIDTH, "
            "such as 224x288"
        )
    return int(match[1]), int(match[2] or match[1])
