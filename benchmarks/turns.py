"""Contestants in processes of their own, which take turns."""

import json
import os
import platform
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, final

from stores import Stored
from workloads import Workload

_HERE = Path(__file__).parent
_DEVICES = 8
_LIMIT = 120.0  # seconds that an answer may take; the bugs of loaders are hangs


@final
class Child:
    """A contestant's process, to which commands are sent. It is stopped whenever it is not asked anything: not even reading ahead goes on."""

    def __init__(self, name: str, process: "subprocess.Popen[str]"):
        self._name, self._process = name, process

    def ask(self, do: str, **arguments: Any) -> Any:
        """The answer to one command.

        Raises:
            RuntimeError: when the process ended, or took so long that it was ended.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.send_signal(signal.SIGCONT)
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
        self._process.send_signal(signal.SIGSTOP)
        return json.loads(line)


@contextmanager
def child(name: str, workload: Workload | Stored, folder: Path) -> Iterator[Child]:
    """A process for a contestant, ended afterwards."""
    command = [
        sys.executable,
        str(_HERE / "contestant.py"),
        name,
        type(workload).__name__,
        json.dumps(asdict(workload)),
        str(folder),
    ]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment())
    try:
        yield Child(name, process)
    finally:
        process.kill()
        process.communicate()


def take_turns(children: dict[str, Child], rounds: int, arguments: dict[str, dict[str, Any]]) -> Iterator[tuple[str, Any]]:
    """In each round a turn of every contestant, in an order that changes.

    Args:
        children: by name.
        rounds: how many.
        arguments: of the command "round", by name.

    Yields:
        the name and what it measured.
    """
    order = random.Random(0)
    for number in range(rounds):
        for name in order.sample(list(children), len(children)):
            yield name, children[name].ask("round", **arguments[name])
        if sys.stderr.isatty():
            print(f"\rround {number + 1} of {rounds}", end="\r", file=sys.stderr, flush=True)


def environment() -> dict[str, str]:
    """Of a process that measures: eight virtual CPU devices."""
    return {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(_DEVICES)}


def machine(*packages: str) -> dict[str, str]:
    """What the numbers were measured on, with the versions of the packages that matter."""
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=_HERE, capture_output=True, text=True, check=False)
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        **{name: version(name) for name in packages},
        "commit": commit.stdout.strip() or "unknown",
    }
