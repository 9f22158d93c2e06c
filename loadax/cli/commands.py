"""The commands: their parser, and how their errors are shown."""

import argparse
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

import loadax
from loadax.cli import convert, env, index, inspect, preflight, report, verify
from loadax.cli.command import code_advice, error_text
from loadax.cli.functions import place_of
from loadax.cli.terminal import is_interrupt, is_of_output, say
from loadax.errors import LoadaxError
from loadax.redaction import redact

_WRONG = 2  # exit code for invalid arguments or data, as in argparse


def run_command(arguments: Sequence[str] | None) -> int:
    """Runs a command; returns the exit code: 0, 1 if a check failed, 2 for an error.

    Args:
        arguments: Arguments of the command line, without the program's name; None: those of this process.
    """
    options = parser().parse_args(arguments)
    try:
        with _log_on_stderr():
            return int(options.run(options))
    except BaseException as error:
        if is_interrupt(error) or is_of_output(error):
            lines = None
        else:
            lines = _lines(error, options)
        if lines is None:
            raise
        say(*lines)
    return _WRONG


def _lines(error: BaseException, options: argparse.Namespace) -> list[str] | None:
    """Text about an exception that a command raised; None for one of loadax itself, which is a bug."""
    notes = [
        note.partition(":\nTraceback ")[0] for note in getattr(error, "__notes__", ())
    ]
    if isinstance(error, LoadaxError):
        return [
            f"loadax: error: {error_text(error, options)}",
            *notes,
            *code_advice(error, options),
        ]
    place = place_of(error, options)
    if place is None:
        return None
    return [f"loadax: error: {place}{type(error).__name__}: {error}", *notes]


def parser() -> argparse.ArgumentParser:
    """Builds the parser of the command line."""
    top = _Parser(
        prog="loadax",
        description="Inspects, writes, checks and indexes training data.",
    )
    top.add_argument(
        "--version", action="version", version=f"loadax {loadax.__version__}"
    )
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    for module in (inspect, convert, verify, index, preflight, report, env):
        module.add(commands)
    return top


class _Parser(argparse.ArgumentParser):
    """A parser whose errors show no passwords, and no control characters."""

    def error(self, message: str) -> NoReturn:
        super().error(redact(message))


@contextmanager
def _log_on_stderr() -> Iterator[None]:
    """Shows the log of loadax, such as a server that does not respond."""
    log = logging.getLogger("loadax")
    handler = logging.StreamHandler()
    handler.setFormatter(_Printable("loadax: %(message)s"))
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


class _Printable(logging.Formatter):
    """Formats log records without control characters."""

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))
