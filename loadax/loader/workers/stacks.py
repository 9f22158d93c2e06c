"""State and Python stack of a worker process, for messages about one that does not answer."""

import os
import signal
import tempfile
import time
from pathlib import Path
from typing import final

# Makes a worker process write its Python stacks.
STACK_SIGNAL = signal.SIGUSR1

# What a state of the kernel means, if it means something.
STATES = {
    "D": ", which waits for a disk or a network file system",
    "Z": ", which has ended",
}

# seconds for an answer, and between two looks
_TIMEOUT = 0.5
_POLL = 0.01


def state_of(process: int) -> str:
    """State of a process by its letter in `/proc`: R runs, S sleeps, D waits for a disk, T is stopped; "?": unknown."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:  # no such process, or no such folder on this system
        return "?"
    return stat.rpartition(")")[2].split()[0]


@final
class WorkerStacks:
    """A file to which a worker process writes its Python stacks when it gets a signal, even while C code runs."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        self.descriptor = self._file.fileno()

    def read(self, process: int) -> str:
        """The present stacks, on lines of their own; empty if there is no answer."""
        try:
            # raises once closed: the process may be another one by then
            descriptor = self._file.fileno()
            before = os.fstat(descriptor).st_size
            os.kill(process, STACK_SIGNAL)
            size = before
            deadline = time.monotonic() + _TIMEOUT
            # It is written line by line, so wait until no more comes.
            while time.monotonic() < deadline:
                time.sleep(_POLL)
                now = os.fstat(descriptor).st_size
                if before < now == size:
                    break
                size = now
            text = os.pread(descriptor, size - before, before).decode(
                errors="replace"
            )
        except (OSError, ValueError):  # the process, or the file, is gone
            return ""
        if text:
            return f"\n{text.strip()}\n"
        return ""

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
