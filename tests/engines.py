"""Real engines for passes over all rows: threads, processes, a Dask cluster and executorlib, on this machine.

An engine is a text, so that programs which tests start can make the same executor: "threads:2", "processes:2",
"dask:tcp://127.0.0.1:8786" or "executorlib:2".
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, final

import psutil

from loadax.cli.executor_option import executor_maker
from tests.limits import until

NAMES = ("threads", "processes", "dask", "executorlib")
ROOT = Path(__file__).parents[1]
WORKERS = 2

# Clients of Dask in this process by the scheduler's address: a cluster closes them before it ends, else each logs
# traceback after traceback from a thread of its own while it tries to reach the scheduler. They are not closed with
# their executors: garbage may be collected in Dask's own thread, which can't wait for what closes a client.
_clients: dict[str, list[Any]] = {}


def engine_maker(text: str) -> Callable[[], Executor]:
    """A function that makes the executor which a text names."""
    kind, _, count = text.partition(":")
    if kind == "dask":
        return partial(_dask, count)
    return partial(_executorlib, int(count)) if kind == "executorlib" else executor_maker(text)


def _dask(address: str) -> Executor:
    from distributed import Client

    # not the default: what is closed last may leave it to later computations of Dask in this process
    client = Client(address, timeout=10, set_as_default=False)
    _clients.setdefault(address, []).append(client)
    executor: Executor = client.get_executor(pure=False)
    return executor


def _executorlib(count: int) -> Executor:
    from executorlib import SingleNodeExecutor

    executor: Executor = SingleNodeExecutor(max_workers=count, block_allocation=True)
    return executor


def worker_pids(of: int) -> list[int]:
    """Processes below `of` that run tasks: of process pools, of executorlib, or of Dask's nannies."""
    with suppress(psutil.NoSuchProcess):
        return [child.pid for child in psutil.Process(of).children(recursive=True) if _runs_tasks(child)]
    return []


def _runs_tasks(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        command = " ".join(process.cmdline())
        return "spawn_main" in command or "interactive_serial" in command
    return False


@final
class DaskCluster:
    """A Dask scheduler and two workers as processes on 127.0.0.1. Their nannies replace workers that die.

    Attributes:
        engine: text of the engine.
        nanny: process that starts the workers, see `worker_pids`.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._contact = Path(self._folder.name, "scheduler.json")
        self._log = Path(self._folder.name, "log").open("w+b")  # noqa: SIM115 - closed with the cluster
        self._processes: list[subprocess.Popen[bytes]] = []
        self._address = ""
        try:
            self._start("scheduler", "--port", "0")
            workers = ["--nworkers", str(WORKERS), "--nthreads", "1", "--local-directory", self._folder.name]
            self.nanny = self._start("worker", *workers)
            until(lambda: self._contact.exists() and self._contact.stat().st_size > 0)
            self._address = json.loads(self._contact.read_text())["address"]
            self.engine = f"dask:{self._address}"
            until(lambda: self._said(b"Registered to") == WORKERS)
        except BaseException:
            self.close()
            raise

    def _start(self, program: str, *options: str) -> int:
        command = [sys.executable, "-m", f"distributed.cli.dask_{program}", "--host", "127.0.0.1", "--no-dashboard"]
        process = subprocess.Popen(
            [*command, "--scheduler-file", str(self._contact), *options],
            stdout=self._log,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            start_new_session=True,
        )
        self._processes.append(process)
        return process.pid

    def _said(self, words: bytes) -> int:
        said = Path(self._log.name).read_bytes()
        assert all(process.poll() is None for process in self._processes), said.decode(errors="replace")
        return said.count(words)

    def close(self) -> None:
        """Closes the clients of this process, and kills all processes of the cluster."""
        for client in _clients.pop(self._address, ()):
            client.close()
        for process in reversed(self._processes):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._log.close()
        self._folder.cleanup()
