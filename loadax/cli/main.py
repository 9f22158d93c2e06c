"""`loadax`: what can be said on the command line, and how it ends."""

import argparse
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from loadax.cli import audit, bench, convert, index, inspect, plan, verify
from loadax.cli.wording import as_options
from loadax.errors import LoadaxError

_WRONG = 2  # exit codes: the arguments or the data can't be used (argparse's own code too); Ctrl-C, as shells count it
_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit code: 0, 1 when `verify` found damage, 2 for an error, 130 after Ctrl-C.

    Args:
        arguments: those of the command line, without the program's name.
    """
    options = parser().parse_args(arguments)
    try:
        with _log_on_stderr():
            return int(options.run(options))
    except LoadaxError as error:
        _say(f"loadax: error: {as_options(str(error), vars(options))}")
        for note in getattr(error, "__notes__", ()):
            _say(as_options(note, vars(options)))
        return _WRONG
    except KeyboardInterrupt as error:
        _say("loadax: interrupted")
        for note in getattr(error, "__notes__", ()):
            _say(note)
        return _INTERRUPTED


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    top = argparse.ArgumentParser(
        prog="loadax",
        description="Writes, checks and explains the stores that loadax reads training data from.",
    )
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    for module in (convert, verify, inspect, index, plan, audit, bench):
        module.add_command(commands)
    return top


@contextmanager
def _log_on_stderr() -> Iterator[None]:
    """What loadax logs, such as a server that does not answer, is for the one who waits."""
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


def _say(text: str) -> None:
    print(text, file=sys.stderr)  # noqa: T201 - a command line prints
