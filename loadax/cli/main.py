"""`loadax`: the parser of the command line, and exit codes."""

import argparse
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from loadax.cli import audit, bench, convert, doctor, index, inspect, new, plan, verify
from loadax.cli.options import code_advice, error_text
from loadax.errors import LoadaxError

_WRONG = 2  # exit code for invalid arguments or data, as in argparse
_INTERRUPTED = 130  # exit code after Ctrl-C, as in shells


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit code: 0, 1 if a check failed, 2 for an error, 130 after Ctrl-C.

    Args:
        arguments: Arguments of the command line, without the program's name.
    """
    options = parser().parse_args(arguments)
    try:
        with _log_on_stderr():
            return int(options.run(options))
    except LoadaxError as error:
        notes = (*getattr(error, "__notes__", ()), *code_advice(error, options))
        _say(f"loadax: error: {error_text(error, options)}", *notes)
        return _WRONG
    except KeyboardInterrupt as error:
        _say("loadax: interrupted", *getattr(error, "__notes__", ()))
        return _INTERRUPTED


def parser() -> argparse.ArgumentParser:
    """Builds the parser of the command line."""
    top = argparse.ArgumentParser(
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


_COMPLETION = "print a script that completes commands and options in bash, zsh or tcsh"


class _NoCompletion(argparse.Action):
    """Says what `--print-completion` needs."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        parser.error("--print-completion needs shtab, which is not installed; pip install shtab")


@contextmanager
def _log_on_stderr() -> Iterator[None]:
    """Shows the log of loadax, such as a server that does not respond."""
    log, handler = logging.getLogger("loadax"), logging.StreamHandler()
    handler.setFormatter(logging.Formatter("loadax: %(message)s"))
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


def _say(*lines: str) -> None:
    print(*lines, sep="\n", file=sys.stderr)  # noqa: T201 - a command line prints
