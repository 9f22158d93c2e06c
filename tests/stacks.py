"""What a program that hangs is doing: the stacks of its threads."""

import shutil
import signal
import subprocess
import time
from contextlib import suppress

import psutil

GRACE = 5.0
"""Seconds that a process has to print its stacks before it is killed."""


def abort(pid: int) -> str:
    """Ends a program and the processes that it started; each prints the Python stacks of its threads to its stderr.

    They need `faulthandler.enable()`, or `PYTHONFAULTHANDLER` in their environment.

    Returns:
        The stacks of C code of all threads if gdb is installed: a program may hang where no Python runs any more.
    """
    try:
        program = psutil.Process(pid)
        family = [program, *program.children(recursive=True)]
    except psutil.NoSuchProcess:
        return ""
    for process in family:  # so that none goes on, or ends, because another one has ended
        _signal(process, signal.SIGSTOP)
    stacks = [_native_stacks(process) for process in family]
    for process in family:  # one after the other, since they may share a stderr
        _signal(process, signal.SIGABRT)
        _signal(process, signal.SIGCONT)
        deadline = time.monotonic() + GRACE
        while _runs(process) and time.monotonic() < deadline:
            time.sleep(0.01)
        _signal(process, signal.SIGKILL)
    return "".join(stacks)


def _signal(process: psutil.Process, number: int) -> None:
    with suppress(psutil.NoSuchProcess):
        process.send_signal(number)


def _runs(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


def _native_stacks(process: psutil.Process) -> str:
    gdb = shutil.which("gdb")
    if gdb is None:
        return ""
    command = [gdb, "-batch", "-p", str(process.pid), "-ex", "thread apply all backtrace 16"]
    try:
        text = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout
    except subprocess.TimeoutExpired:
        return ""
    # Without where a shared library is, and what gdb says of symbols that it lacks.
    frames = [line.split(" from /")[0] for line in text.splitlines() if line.startswith(("#", "Thread"))]
    return "\n".join(["", f"--- gdb: process {process.pid}", *frames])
