"""Runs contestants in turns, each in its own process."""

import json
import os
import platform
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import monotonic
from typing import Any, final

import psutil

_HERE = Path(__file__).parent
_DEVICES = 8
_LIMIT = 120.0  # seconds that an answer may take; the bugs of loaders are hangs
_PARTING = 5.0  # seconds that a process may take to exit
_FEWEST = 3  # rounds, however long they take


@final
class Child:
    """A contestant's process, to which commands are sent.

    Between commands, it and its child processes are stopped by SIGSTOP, so that they don't even read ahead.
    """

    def __init__(self, name: str, process: "subprocess.Popen[str]"):
        self._name, self._process = name, process

    def ask(self, do: str, **arguments: Any) -> Any:
        """Executes a command; returns the reply.

        Raises:
            RuntimeError: When the process ended or timed out.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.signal(signal.SIGCONT)
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()
        timer = threading.Timer(_LIMIT, self._process.kill)
        timer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            raise RuntimeError(
                f"{self._name} ended in {do!r}, with code {self._process.wait()}, or took more than {_LIMIT:.0f} s"
            )
        self.signal(signal.SIGSTOP)
        return json.loads(line)

    def signal(self, signal_number: int) -> None:
        """Sends a signal to the process and all its descendants, in any process group."""
        for process in _family(self._process.pid, signal_number):
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal_number)

    def end(self) -> None:
        """Lets the process exit, so that it frees its shared memory; kills it after a timeout."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        family = _family(self._process.pid)
        self.signal(signal.SIGCONT)
        with suppress(OSError, subprocess.TimeoutExpired):
            self._process.stdin.close()
            self._process.wait(_PARTING)
        self._process.kill()
        self._process.wait()
        _, alive = psutil.wait_procs(family, _PARTING)
        for process in alive:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.stdout.close()


@contextmanager
def child(name: str, workload: str, folder: Path, quick: bool) -> Iterator[Child]:
    """Starts the process of a contestant, and ends it afterwards."""
    command = [sys.executable, str(_HERE / "contestant.py"), name, workload, str(folder), "quick" if quick else "full"]
    with started(name, command, environment()) as contestant:
        yield contestant


@contextmanager
def started(name: str, command: Sequence[str], variables: dict[str, str]) -> Iterator[Child]:
    """Starts a process that answers commands, and ends it afterwards."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    # Its own process group in this session: if this process is killed, the kernel ends stopped processes of the group.
    process = subprocess.Popen(command, env=variables, process_group=0, **pipes)
    contestant = Child(name, process)
    try:
        yield contestant
    finally:
        contestant.end()


@final
class Race:
    """The contestants of a run. One that fails is dropped, and its error is recorded."""

    def __init__(self, children: dict[str, Child]):
        self._children = children
        self.failed: dict[str, str] = {}

    @property
    def names(self) -> list[str]:
        """Names of contestants that have not failed."""
        return [name for name in self._children if name not in self.failed]

    def ask(self, name: str, do: str, **arguments: Any) -> Any:
        """A contestant's reply to a command; None if it failed, now or before."""
        if name in self.failed:
            return None
        try:
            return self._children[name].ask(do, **arguments)
        except RuntimeError as error:
            self.failed[name] = str(error)
            return None

    def turns(self, rounds: int, arguments: dict[str, dict[str, Any]], until: float) -> Iterator[tuple[str, Any]]:
        """Runs rounds with a turn of every contestant, in an order that changes.

        Args:
            rounds: Number of rounds.
            arguments: Keyword arguments of the command "round".
            until: Time of the monotonic clock after which no round starts, except the first three.

        Yields:
            Name of the contestant, and its measurements.
        """
        order = random.Random(0)
        for index in range(rounds):
            if index >= _FEWEST and monotonic() > until:
                return
            for name in order.sample(self.names, len(self.names)):
                turn = self.ask(name, "round", **arguments[name])
                if turn is not None:
                    yield name, turn
            if sys.stderr.isatty():
                print(f"\rround {index + 1} of {rounds}", end="\r", file=sys.stderr, flush=True)


def environment() -> dict[str, str]:
    """Environment of a contestant's process: eight virtual CPU devices, and little logging."""
    return {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(_DEVICES), "TF_CPP_MIN_LOG_LEVEL": "3"}


def machine(checkout: Path = _HERE) -> dict[str, str]:
    """The machine, the versions of relevant packages, and the commit of a checkout."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=checkout, capture_output=True, text=True, check=False
    )
    packages = (
        "jax",
        "numpy",
        "tensorstore",
        "grain",
        "torch",
        "tensorflow-cpu",
        "jax-dataloader",
        "spdl",
        "pillow",
        "pyarrow",
        "obstore",
        "datasets",
        "webdataset",
        "loadax",
    )
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        **{name: installed for name in packages if (installed := _version(name))},
        "commit": commit.stdout.strip() or "unknown",
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _family(pid: int, signal_number: int = 0) -> list[psutil.Process]:
    """A process and all its descendants. Stop it first, so that it starts no others meanwhile."""
    try:
        process = psutil.Process(pid)
        if signal_number:
            process.send_signal(signal_number)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []  # which the next question finds out
