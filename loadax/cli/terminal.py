"""Output of commands on stdout and stderr, and which errors end a command without a text of their own."""

import os
import sys
import traceback
from pathlib import Path
from typing import IO

from loadax.redaction import redact


def show(*lines: str) -> None:
    """Writes lines to stdout."""
    sys.stdout.writelines(f"{redact(line)}\n" for line in lines)


def say(*lines: str) -> None:
    """Writes lines to stderr."""
    try:
        sys.stderr.write("".join(f"{redact(line)}\n" for line in lines))
        sys.stderr.flush()
    except OSError:
        discard(sys.stderr)


def discard(stream: IO[str]) -> None:
    """Discards what a stream still holds, which Python would write at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def is_interrupt(error: BaseException | None) -> bool:
    """Whether a Ctrl-C is the cause, which may strike anywhere and make other exceptions follow, as of a lock."""
    return error is not None and (
        isinstance(error, KeyboardInterrupt) or is_interrupt(error.__context__)
    )


def is_of_output(error: BaseException) -> bool:
    """Whether stdout could not be written: the only file that modules of this folder write without looking after it."""
    frames = traceback.extract_tb(error.__traceback__)
    return (
        isinstance(error, OSError)
        and Path(frames[-1].filename).parent == Path(__file__).parent
    )
