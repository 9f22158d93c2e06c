"""Helpers of all commands: adding one and its options, and the library's arguments as options in messages."""

import argparse
import sys
from collections.abc import Callable
from typing import Any

from loadax.cli.data_opener import SOURCES
from loadax.core.arguments import shown
from loadax.errors import LeafError, LeafTypeError, LoadaxError

# Arguments of the library with an option of the same name and meaning.
_ARGUMENTS = {
    "cache", "chunk_rows", "columns", "dtype", "executor", "index", "overwrite", "pad_to", "resume", "seq_len",
    "shard_rows", "size", "variables", "workers",
}  # fmt: skip


def add_command(
    commands: Any, run: Callable[[argparse.Namespace], int]
) -> argparse.ArgumentParser:
    """Adds a command that calls `run`. Its name and its help are those of the docstring of `run`'s module.

    The first line of that is the summary, the second paragraph the description, and the rest is at the end of the help.
    """
    title, _, text = (
        (sys.modules[run.__module__].__doc__ or "")
        .replace("{SOURCES}", SOURCES)
        .partition("\n\n")
    )
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


def add_value(
    command: Any, name: str, metavar: str, text: str, parse: Any = int, **others: Any
) -> None:
    """Adds an option that takes a value, by default an int."""
    command.add_argument(name, metavar=metavar, type=parse, help=text, **others)


def error_text(error: LoadaxError, options: argparse.Namespace) -> str:
    """An error's message with its option: in front if it was passed (`--chunk-rows 0: …`), else at the end."""
    message = str(error)
    if error.argument == "variables":
        name = "columns"
    else:
        name = error.argument
    if name is None or name not in _ARGUMENTS or not hasattr(options, name):
        return message
    value = getattr(options, name)
    option = f"--{name.replace('_', '-')}"
    stated = f"{name}={shown(value)}"
    if isinstance(value, str | int) and not isinstance(value, bool):
        option += f" {value}"
    if message.startswith((f"{stated}:", f"{stated} ")):
        return option + message.removeprefix(stated)
    if value is None or value is False:
        return f"{message} ({option})"
    return f"{option}: {message}"


def code_advice(error: LoadaxError, options: argparse.Namespace) -> list[str]:
    """Lines that say where the code belongs that an error advises to write."""
    source = getattr(options, "source", "")
    is_path = "/" in source or ":" not in source
    needs_code = isinstance(error, LeafError | LeafTypeError) or "nulls=" in str(
        error
    )
    if not (source and is_path and needs_code):
        return []
    return [
        (
            "loadax: code goes into a function that returns the dataset: pass "
            f"MODULE:FUNCTION instead of {source}"
        )
    ]
