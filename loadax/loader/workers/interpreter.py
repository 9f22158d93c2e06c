"""Finds the Python that worker processes run, and refuses programs that would start themselves instead.

In a frozen program (PyInstaller, cx_Freeze) and in one that embeds Python (uWSGI, Blender), `sys.executable` is the
program. It ignores the arguments of a worker process and runs from the top, so each copy would start more copies.
"""

import os
import re
import sys
from multiprocessing.spawn import get_executable
from pathlib import Path

from loadax.errors import WorkerError

# Set in worker processes, until they serve: with it, a program knows that it is a copy.
_MARK = "LOADAX_WORKER_OF"
_PYTHON = re.compile(
    r"\.?(python|pypy|graalpy|hython|mayapy|pvpython)", re.IGNORECASE
)
_REMEDY = (
    "use worker_type='thread', or name a Python that can import loadax and the "
    "data's modules: multiprocessing.set_executable('/usr/bin/python3')"
)


def interpreter() -> str:
    """The Python to start: that of `multiprocessing.set_executable`, else `sys.executable`.

    Raises:
        WorkerError: When there is none, it is another program, or this process is a copy of one.
    """
    if _MARK in os.environ:
        raise WorkerError(
            "worker_type='process': this program was started as a worker process of "
            f"process {os.environ[_MARK]}, and runs from the top instead, so it "
            f"would start itself again and again; {_REMEDY}"
        )
    given = get_executable()
    if given:
        path = os.fsdecode(given)
    else:
        path = sys.executable
    if not path:
        raise WorkerError(
            "worker_type='process': no interpreter to start (sys.executable is "
            "empty); use worker_type='thread'"
        )
    is_own = path == sys.executable
    names = Path(path).name, Path(path).resolve().name
    if is_own and (
        getattr(sys, "frozen", False) or not any(map(_PYTHON.match, names))
    ):
        raise WorkerError(
            f"worker_type='process': sys.executable is {path}, a frozen program or "
            f"one that embeds Python, which would start itself again; {_REMEDY}"
        )
    return path


def mark() -> dict[str, str]:
    """The environment variable that tells a worker process that it is one."""
    return {_MARK: str(os.getpid())}


def unmark() -> None:
    """Lets this worker process, which serves, start programs of the user's."""
    os.environ.pop(_MARK, None)
