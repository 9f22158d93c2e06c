"""`loadax`: the parser of the command line, and exit codes."""

import argparse
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from loadax.cli import audit, bench, convert, index, inspect, plan, verify
from loadax.cli.options import error_text
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
        _say(f"loadax: error: {error_text(error, options)}", *getattr(error, "__notes__", ()))
        return _WRONG
    except KeyboardInterrupt as error:
        _say("loadax: interrupted", *getattr(error, "__notes__", ()))
        return _INTERRUPTED


def parser() -> argparse.ArgumentParser:
    """Builds the parser of the command line."""
    top = argparse.ArgumentParser(
        prog="loadax",
        description="Writes, checks and explains the stores that loadax reads training data from.",
    )
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    for module in (convert, verify, inspect, index, plan, audit, bench):
        module.add(commands)
    return top


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
