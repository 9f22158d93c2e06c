"""Checks that a source can be pickled and read in a fresh process, as in worker processes."""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
from typing import Any

from loadax.core.spec import check_batch
from loadax.core.tree import flatten
from loadax.testing.comparison import difference
from loadax.testing.laws import Law, show_error
from loadax.testing.subject import Subject

PROCESS = Law(
    "fresh process",
    "a pickled source must read the same rows in another process (reopen files in __setstate__); "
    "pass pickled=False to skip this check",
)

_ROWS = 16
_REMEDIES = {
    "__main__": "it is defined in the running script or notebook; move it to a module of its own, which another "
    "process can import",
    "local object": "it is defined inside a function; move it to the top level of a module",
    "<locals>": "it is defined inside a function; move it to the top level of a module",
}


def check_process(subject: Subject, timeout: float) -> None:
    """Checks that a fresh process reads the same from the pickled source as this one."""
    rows = subject.draw(min(_ROWS, 2 * len(subject.sample)))
    try:
        parcel = pickle.dumps((subject.source, subject.spec, rows, subject.expected(rows)))
    except Exception as error:
        raise _broken(subject, f"pickling it raised {show_error(error)}") from error
    failure = _ask(parcel, timeout)
    if failure:
        raise _broken(subject, failure)


def answer() -> None:
    """Main function of the fresh process: unpickles the check from stdin, and writes its error, if any, to stdout."""
    # Prints of the source must not get into the reply.
    reply = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    doing = "unpickling it"
    try:
        source, spec, rows, expected = pickle.load(sys.stdin.buffer)  # noqa: S301 - written by the process that started this one
        doing = "reading"
        got, structure = flatten(check_batch(source.read(rows), len(rows), spec, "read"))
        differing = difference(got, expected, structure.paths, rows)
        failure = f"in a fresh process, {differing}" if differing else ""
    except Exception as error:  # noqa: BLE001 - reported to the parent
        failure = f"{doing} in a fresh process raised {show_error(error)}"
    with reply:
        pickle.dump(failure, reply)


def _ask(parcel: bytes, timeout: float) -> str:
    """Sends the pickled check to a fresh process; returns its error, if any."""
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
                return f"a fresh process had not read it after {timeout:g} s (a deadlock, or pass a larger timeout)"
            raise
    if child.returncode or not reply:
        last = complaints.decode(errors="replace").strip().splitlines()[-1:]
        return ": ".join([f"a fresh process that read it ended with code {child.returncode}", *last])
    failure: str = pickle.loads(reply)  # noqa: S301 - written by `answer`
    return failure


def _broken(subject: Subject, failure: str) -> Any:
    remedy = next((f" ({remedy})" for sign, remedy in _REMEDIES.items() if sign in failure), "")
    return PROCESS.broken(subject.name, f"{failure}{remedy}")
