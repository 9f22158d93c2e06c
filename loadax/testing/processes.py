"""Checks that a source can be pickled and read in a fresh process, as in worker processes."""

import contextlib
import os
import pickle
import signal
import subprocess
import sys

from loadax.testing.laws import Law, show_error, show_rows
from loadax.testing.subject import Subject

PROCESS = Law(
    "fresh process",
    "a pickled source must read the same rows in another process: define it at the top level of a module of its own, "
    "and reopen files in __setstate__; or pass pickled=False to skip this check",
)

_ROWS = 16


def check_process(subject: Subject, timeout: float) -> None:
    """Checks that a fresh process reads the same from the pickled source as this one."""
    rows = subject.draw(min(_ROWS, 2 * len(subject.sample)))
    with PROCESS.during(subject.name, "pickling it"):
        parcel = pickle.dumps((subject.source, rows))
    reply, failure = _ask(parcel, timeout)
    if failure:
        raise PROCESS.broken(subject.name, failure)
    got = subject.read(rows, PROCESS, lambda _: pickle.loads(reply))  # noqa: S301 - written by `answer`
    subject.compare(got, rows, PROCESS, f"in a fresh process, in read({show_rows(rows)})")


def answer() -> None:
    """Main function of the fresh process: unpickles a source and rows from stdin, and writes the rows to stdout."""
    # Prints of the source must not get into the reply.
    reply = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    doing = "unpickling it"
    try:
        source, rows = pickle.load(sys.stdin.buffer)  # noqa: S301 - written by the process that started this one
        doing = "reading"
        result = pickle.dumps(source.read(rows))
    except Exception as error:  # noqa: BLE001 - reported to the parent
        sys.exit(" ".join(f"{doing} in a fresh process raised {show_error(error)}".split()))
    with reply:
        reply.write(result)


def _ask(parcel: bytes, timeout: float) -> tuple[bytes, str]:
    """Sends the pickled check to a fresh process; returns its answer, and what failed."""
    # Not multiprocessing, which would run the caller's script again. The search path is this process's.
    program = f"import sys; sys.path[:] = {sys.path!r}; from loadax.testing.processes import answer; answer()"
    child = subprocess.Popen(  # noqa: S603 - the command is this interpreter and the line above
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},  # a module that imports JAX must not claim the accelerators
        start_new_session=True,
    )
    with child:
        try:
            reply, complaints = child.communicate(parcel, timeout)
        except BaseException as error:
            # The whole process group, because its children would keep the pipes open.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                return b"", f"a fresh process had not read it after {timeout:g} s (a deadlock, or pass another timeout)"
            raise
    if child.returncode or not reply:
        last = complaints.decode(errors="replace").strip().splitlines()[-1:]
        return b"", ": ".join([f"a fresh process that read it ended with code {child.returncode}", *last])
    return reply, ""
