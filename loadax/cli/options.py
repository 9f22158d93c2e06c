"""Helpers of all commands: adding one, shuffle options, and the library's arguments as options in messages."""

import argparse
import sys
import warnings
from collections.abc import Callable
from typing import Any

from loadax.cli.source import SOURCES
from loadax.core.arguments import shown
from loadax.dataset import Dataset
from loadax.errors import ArgumentError, LeafError, LeafTypeError, LoadaxError

# Arguments of the library with an option of the same name and meaning.
_ARGUMENTS = {
    "batch_size", "cache", "cache_bytes", "chunk_rows", "columns", "dtype", "executor", "hosts", "index",
    "overwrite", "pad_to", "partition", "prefetch_bytes", "remainder", "resume", "seq_len",
    "shard_rows", "size", "variables", "workers",
}  # fmt: skip


def add_command(commands: Any, run: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
    """Adds a command that calls `run`. Its name and its help are those of the docstring of `run`'s module.

    The first line of that is the summary, the second paragraph the description, and the rest is at the end of the help.
    """
    title, _, text = (sys.modules[run.__module__].__doc__ or "").replace("{SOURCES}", SOURCES).partition("\n\n")
    description, _, ending = text.partition("\n\n")
    command: argparse.ArgumentParser = commands.add_parser(
        run.__module__.rpartition(".")[2],
        help=title.partition(": ")[2].removesuffix("."),
        description=description,
        epilog=ending,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.set_defaults(run=run)
    return command


def add_value(command: Any, name: str, metavar: str, text: str, parse: Any = int, **others: Any) -> None:
    """Adds an option that takes a value, by default an int."""
    command.add_argument(name, metavar=metavar, type=parse, help=text, **others)


def add_shuffle_seed(command: argparse.ArgumentParser) -> None:
    """Adds `--shuffle`."""
    add_value(command, "--shuffle", "SEED", "seed of a random order (default: stored order)")
    command.set_defaults(block=None)


def add_shuffle_options(command: argparse.ArgumentParser) -> None:
    """Adds `--shuffle` and `--block`."""
    add_shuffle_seed(command)
    add_value(command, "--block", "ROWS", "rows of the blocks to shuffle, or 'chunks' (default: single rows)", _block)


def shuffled(dataset: Dataset, options: argparse.Namespace) -> Dataset:
    """Applies `--shuffle` and `--block`, without the warning about chunks that are decoded often.

    Raises:
        ArgumentError: When `--block` is passed without `--shuffle`.
    """
    if options.shuffle is None:
        if options.block is not None:
            raise ArgumentError(f"--block {options.block} needs a shuffle: pass --shuffle SEED as well")
        return dataset
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the command's own figures show it
        return dataset.shuffle(options.shuffle, block=options.block)


def error_text(error: LoadaxError, options: argparse.Namespace) -> str:
    """An error's message with its option: in front if it was passed (`--batch-size 0: …`), else at the end."""
    message, name = str(error), "columns" if error.argument == "variables" else error.argument
    if name is None or name not in _ARGUMENTS or not hasattr(options, name):
        return message
    value = getattr(options, name)
    option, stated = f"--{name.replace('_', '-')}", f"{name}={shown(value)}"
    if isinstance(value, str | int) and not isinstance(value, bool):
        option += f" {value}"
    if message.startswith((f"{stated}:", f"{stated} ")):
        return option + message.removeprefix(stated)
    return f"{message} ({option})" if value is None or value is False else f"{option}: {message}"


def code_advice(error: LoadaxError, options: argparse.Namespace) -> list[str]:
    """Lines that say where the code belongs that an error advises to write."""
    source = getattr(options, "source", "")
    is_path = "/" in source or ":" not in source
    needs_code = isinstance(error, LeafError | LeafTypeError) or "nulls=" in str(error)
    if not (source and is_path and needs_code):
        return []
    return [f"loadax: code goes into a function that returns the dataset: pass MODULE:FUNCTION instead of {source}"]


def _block(text: str) -> int | str:
    if text == "chunks":
        return text
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a block; pass a number of rows, or 'chunks'")
    return int(text)
