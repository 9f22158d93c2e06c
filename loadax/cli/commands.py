"""The commands: their parser, and how their errors are shown."""

import argparse
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from loadax.cli import audit, bench, convert, doctor, index, inspect, new, plan, verify
from loadax.cli.errors import is_interrupt, is_of_output, say
from loadax.cli.functions import place_of
from loadax.cli.options import code_advice, error_text
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
        lines = None if is_interrupt(error) or is_of_output(error) else _lines(error, options)
        if lines is None:
            raise
        say(*lines)
    return _WRONG


def _lines(error: BaseException, options: argparse.Namespace) -> list[str] | None:
    """Text about an exception that a command raised; None for one of loadax itself, which is a bug."""
    notes = [note.partition(":\nTraceback ")[0] for note in getattr(error, "__notes__", ())]
    if isinstance(error, LoadaxError):
        return [f"loadax: error: {error_text(error, options)}", *notes, *code_advice(error, options)]
    place = place_of(error, options)
    return None if place is None else [f"loadax: error: {place}{type(error).__name__}: {error}", *notes]


def parser() -> argparse.ArgumentParser:
    """Builds the parser of the command line."""
    top = _Parser(
        prog="loadax",
        description="Inspects, writes, checks and explains training data, and the runs that read it.",
    )
    top.add_argument("--version", action="version", version=f"loadax {_version()}")
    _add_completion(top)
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    for module in (inspect, new, convert, verify, index, plan, audit, bench, doctor):
        module.add(commands)
    return top


def _version() -> str:
    from loadax import __version__

    return __version__


def _add_completion(top: argparse.ArgumentParser) -> None:
    """Adds `--print-completion SHELL`; by shtab, where it is installed."""
    try:
        import shtab
    except ImportError:
        top.add_argument("--print-completion", action=_NoCompletion, metavar="SHELL", help=_COMPLETION)
    else:
        shtab.add_argument_to(top, ["--print-completion"], help=_COMPLETION)


_COMPLETION = "print a script that completes commands and options in this shell"


class _Parser(argparse.ArgumentParser):
    """A parser whose errors show no passwords, and no control characters."""

    def error(self, message: str) -> NoReturn:
        super().error(redact(message))


class _NoCompletion(argparse.Action):
    """Says what `--print-completion` needs."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        parser.error("--print-completion needs shtab, which is not installed; pip install shtab")


@contextmanager
def _log_on_stderr() -> Iterator[None]:
    """Shows the log of loadax, such as a server that does not respond."""
    log, handler = logging.getLogger("loadax"), logging.StreamHandler()
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
