"""What every test runs under: eight virtual CPU devices, and nothing left running when it ends."""

import os

# Before anything imports JAX: it reads them once. Set, not defaulted: the tests mean exactly this machine, whatever the shell has.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_NUM_CPU_DEVICES"] = "8"

import gc
import threading
import time
from collections.abc import Iterator

import psutil
import pytest

GRACE = 3.0
"""Seconds that what was told to stop has for it."""


class Running:
    """The threads of loadax and the child processes that exist at this moment."""

    def __init__(self) -> None:
        self.threads = {thread for thread in threading.enumerate() if thread.name.startswith("loadax")}
        self.processes = {child for child in psutil.Process().children(recursive=True) if _counts(child)}

    def forget(self, before: "Running") -> "Running":
        """This, without what ran before."""
        self.threads -= before.threads
        self.processes -= before.processes
        return self

    def __bool__(self) -> bool:
        return bool(self.threads or self.processes)

    def __str__(self) -> str:
        threads = [f"thread {thread.name!r}" for thread in self.threads]
        return ", ".join(sorted(threads + [f"process {child.pid} ({_command(child)!r})" for child in self.processes]))


def _command(child: psutil.Process) -> str:
    try:
        return " ".join(child.cmdline())
    except psutil.Error:
        return ""


def _counts(child: psutil.Process) -> bool:
    """Whether a child is a process that somebody has to end."""
    try:
        gone = child.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
    # Python's resource tracker belongs to the interpreter and ends with it.
    return not gone and "multiprocessing.resource_tracker" not in _command(child)


def wait_for_leaks(before: Running, grace: float = GRACE) -> Running:
    """What a test left running, after `grace` seconds and a garbage collection; empty as soon as nothing is left."""
    deadline = time.monotonic() + grace
    while (leaked := Running().forget(before)) and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.02)
    return leaked


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    """Fails a test that leaves a thread of loadax or a child process behind, and names it."""
    before = Running()
    yield
    leaked = wait_for_leaks(before)
    if leaked:
        message = f"the test left running: {leaked}"
        for child in leaked.processes:
            child.kill()
        pytest.fail(message, pytrace=False)
