"""What commands share: how they are added, the options of a shuffle, and how they spell the library's arguments."""

import argparse
import warnings
from collections.abc import Callable
from textwrap import fill
from typing import Any

from loadax.core.arguments import shown
from loadax.dataset import Dataset
from loadax.errors import ArgumentError, LoadaxError

_ARGUMENTS = {
    "batch_size", "cache_bytes", "chunk_rows", "dtype", "hosts", "num_workers", "overwrite", "pad_to", "partition",
    "prefetch_bytes", "remainder", "resume", "seq_len", "shard_rows", "size", "variables", "worker_type", "workers",
}  # fmt: skip
"""Options whose argument has the same name and the same meaning."""


def add_command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], int], summary: str, description: str, examples: str
) -> argparse.ArgumentParser:
    """Adds a command that `run` runs; its page of help ends with the examples."""
    command: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=fill(description, 120),
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.set_defaults(run=run)
    return command


def add_shuffle_options(command: argparse.ArgumentParser) -> None:
    """Adds `--shuffle` and `--block`."""
    command.add_argument("--shuffle", metavar="SEED", type=int, help="seed of a random order (default: stored order)")
    command.add_argument(
        "--block", metavar="ROWS", type=_block, help="rows of the blocks to shuffle, or 'chunks' (default: single rows)"
    )


def shuffled(dataset: Dataset, options: argparse.Namespace) -> Dataset:
    """The dataset in the order of `--shuffle` and `--block`, without the warning about chunks that are decoded often.

    Raises:
        ArgumentError: When there is a block without a shuffle.
    """
    if options.shuffle is None:
        if options.block is not None:
            raise ArgumentError(f"--block {options.block} is for a shuffle: pass --shuffle SEED as well")
        return dataset
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the command's own figures say it
        return dataset.shuffle(options.shuffle, block=options.block)


def spelling(options: argparse.Namespace) -> Callable[..., str]:
    """How a command spells arguments: `--num-workers 4`; those that are none of its options as Python code does."""

    def spell(name: str, value: Any = None) -> str:
        if name not in _ARGUMENTS or not hasattr(options, name):
            return name if value is None else f"{name}={value!r}"
        option = f"--{name.replace('_', '-')}"
        return f"{option} {value}" if isinstance(value, str | int) and not isinstance(value, bool) else option

    return spell


def error_text(error: LoadaxError, options: argparse.Namespace) -> str:
    """An error's message with the option that it is about: first if it was given (`--batch-size 0: …`), else last."""
    message, name = str(error), error.argument
    if name is None or name not in _ARGUMENTS or not hasattr(options, name):
        return message
    value = getattr(options, name)
    option = spelling(options)(name, value)
    stated = f"{name}={shown(value)}"
    if message.startswith((f"{stated}:", f"{stated} ")):
        return option + message.removeprefix(stated)
    return f"{message} ({option})" if value is None or value is False else f"{option}: {message}"


def _block(text: str) -> int | str:
    if text == "chunks":
        return text
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is no block; pass a number of rows, or 'chunks'")
    return int(text)
