"""Instructions of a step, counted by valgrind, for `gate.py`.

They show what neither calls a function nor takes memory: a search through a list for each row, a permutation of more
rounds, a slower decoder. valgrind plays the same processor on every x86-64 machine, and runs one thread at a time. But
a count holds for one build of Python, NumPy, JAX and the rest: `machine_code` names them.
"""

import ctypes
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

_PACKAGES = "jaxlib", "numpy", "tensorstore"
# What only the macros of valgrind's header can say, in a library that Python calls.
_MARKS = """
#include <valgrind/callgrind.h>
void begin(void) { CALLGRIND_START_INSTRUMENTATION; CALLGRIND_ZERO_STATS; }
void end(const char *name) { CALLGRIND_DUMP_STATS_AT(name); CALLGRIND_STOP_INSTRUMENTATION; }
"""
_LIMIT = 120.0  # seconds; the gate's workloads take 18 of a processor


def missing() -> str:
    """The programs that are not installed, as text; empty if instructions can be counted."""
    return " and ".join(name for name in ("valgrind", "cc") if shutil.which(name) is None)


def machine_code() -> str:
    """What is counted: Python with its compiler, and the packages that run code of their own."""
    python = f"{platform.machine()}, Python {platform.python_version()} by {platform.python_compiler()}"
    return ", ".join([python, " ".join(platform.libc_ver()), *(f"{name} {version(name)}" for name in _PACKAGES)])


def marks() -> Callable[[str, str], object]:
    """A function of a name and a side, "begin" or "end", of what is counted. Only a process under valgrind calls it.

    Raises:
        CalledProcessError: If `cc` can't compile it, such as without valgrind's header.
    """
    with tempfile.TemporaryDirectory(prefix="loadax-gate-") as folder:
        path = Path(folder, "marks.so")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", path, "-x", "c", "-"], input=_MARKS, text=True, check=True)
        library = ctypes.CDLL(str(path))
    return lambda name, side: library.begin() if side == "begin" else library.end(name.encode())


def count(command: Sequence[str | Path]) -> dict[str, int]:
    """Instructions between the two marks of each name that a program sets.

    Args:
        command: The program, with its arguments.

    Raises:
        RuntimeError: If valgrind or the program fails, with the end of what it said.
    """
    with tempfile.TemporaryDirectory(prefix="loadax-gate-") as folder:
        files = f"--callgrind-out-file={folder}/counts"
        valgrind = ["valgrind", "-q", "--tool=callgrind", "--instr-atstart=no", files]
        # the order of a set, and so the work of it, is the same each time
        settings = {**os.environ, "PYTHONHASHSEED": "0"}
        run = subprocess.run(
            [*valgrind, *command], capture_output=True, text=True, check=False, timeout=_LIMIT, env=settings
        )
        if run.returncode:
            raise RuntimeError(run.stderr.strip()[-200:])
        found = {}
        for path in Path(folder).iterdir():
            text = path.read_text("utf-8", "replace")
            name = re.search(r"^desc: Trigger: Client Request: (.*)$", text, re.MULTILINE)
            total = re.search(r"^totals: (\d+)$", text, re.MULTILINE)
            if name and total:  # or it is the file of the process's end
                found[name[1]] = int(total[1])
        return found
