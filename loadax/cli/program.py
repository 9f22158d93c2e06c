"""`loadax` as a program: exit codes, Ctrl-C, and a stdout that nobody reads."""

import os
import select
import shlex
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from loadax.cli.terminal import discard, is_interrupt, is_of_output, say

_WRONG = 2  # exit code for invalid arguments or data, as in argparse
_INTERRUPTED = 130  # exit code after Ctrl-C, as in shells
# exit code of a program whose output is no longer read, as in shells
_BROKEN_PIPE = 141
_GRACE = 1.5  # seconds from Ctrl-C to the end
_RESUME = "loadax: pass --resume to continue a store that was begun"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit code: 0, 1 if a check failed, 2 for an error, 130 after Ctrl-C.

    Args:
        arguments: Arguments of the command line, without the program's name. None: those of this process, which ends
            within 2 seconds of a Ctrl-C, and at once after a second one.
    """
    told = threading.Event()
    if arguments is None:
        _end_after_interrupt(told)
        for name in ("stdout", "stderr"):  # None where the shell has closed them
            if getattr(sys, name) is None:
                setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - until the end of the process
    try:
        from loadax.cli.commands import run_command  # takes long enough for a Ctrl-C

        try:
            return run_command(arguments)
        finally:
            sys.stdout.flush()
    except BaseException as error:
        if is_interrupt(error):
            told.set()
            say(
                "loadax: interrupted",
                *getattr(error, "__notes__", ()),
                *_repeated(arguments),
            )
            return _INTERRUPTED
        if not is_of_output(error):
            raise
        discard(sys.stdout)
        if isinstance(error, BrokenPipeError):
            return _BROKEN_PIPE
        say(
            "loadax: error: the output can't be written: "
            f"{getattr(error, 'strerror', error)}"
        )
        return _WRONG


def _repeated(arguments: Sequence[str] | None) -> list[str]:
    """The line that resumes the command, if that is the same command again: finished parts of an index are kept."""
    command = sys.argv[1:] if arguments is None else arguments
    if command[:1] != ["index"] and not _keeps_findings(command):
        return []
    return [
        (
            "loadax: to continue, run the same command: "
            f"{shlex.join(['loadax', *command])}"
        )
    ]


def _keeps_findings(command: Sequence[str]) -> bool:
    """Whether it is a check whose finished parts are kept."""
    return command[:1] == ["preflight"] and any(
        word == "--index" or word.startswith("--index=") for word in command
    )


def _end_after_interrupt(told: threading.Event) -> None:
    """Lets a thread end this process after a Ctrl-C, even if the main thread is inside C code or waits for others.

    Args:
        told: Event that is set once the user was told.
    """
    arrived, signalled = os.pipe()
    os.set_blocking(signalled, False)
    # C code writes there whatever the main thread does
    signal.set_wakeup_fd(signalled, warn_on_full_buffer=False)

    def end() -> None:
        # a module of the user's may handle other signals
        while os.read(arrived, 1) != bytes([signal.SIGINT]):
            pass
        select.select([arrived], [], [], _GRACE)  # until a second one
        if not told.is_set():
            say(
                "loadax: interrupted",
                *[_RESUME] * (sys.argv[1:2] == ["convert"]),
                *_repeated(None),
            )
        os._exit(_INTERRUPTED)

    threading.Thread(target=end, name="loadax-interrupts", daemon=True).start()
