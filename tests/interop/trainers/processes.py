"""Runs a script in several `jax.distributed` processes on this machine: `tests.processes` without pytest.

Trainers' environments have no pytest. The script calls `join` first.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from subprocess import PIPE, STDOUT

import jax

LIMIT = 300.0  # seconds for each process
DEVICES = 8  # of all processes together, virtual ones


def run_processes(script: str, *arguments: str, processes: int) -> None:
    """Runs a script in fresh interpreters that make one JAX run over loopback.

    Raises:
        RuntimeError: If a process fails; shows what each printed.
        subprocess.TimeoutExpired: If a process still runs after the limit; it is killed.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    def run(process: int) -> subprocess.CompletedProcess[str]:
        run_of = {"JAX_NUM_CPU_DEVICES": str(DEVICES // processes), "TRAINERS_RUN": f"{port} {processes} {process}"}
        command, environment = [sys.executable, script, *arguments], os.environ | run_of
        return subprocess.run(
            command, env=environment, stdout=PIPE, stderr=STDOUT, text=True, timeout=LIMIT, check=False
        )

    with ThreadPoolExecutor(processes) as pool:
        done = list(pool.map(run, range(processes)))
    if any(process.returncode for process in done):
        printed = "\n".join(f"--- exit code {process.returncode}\n{process.stdout}" for process in done)
        raise RuntimeError(f"{script} in {processes} processes:\n{printed}")


def join(body: Callable[[], None]) -> None:
    """Runs a function as one of the processes of `run_processes`."""
    port, processes, process = map(int, os.environ["TRAINERS_RUN"].split())
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=processes, process_id=process)
    try:
        body()
    except BaseException:  # noqa: BLE001 - whatever it is, the log shall show it
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
        os._exit(1)  # the usual way out waits for the other processes, which may wait for this one
    jax.distributed.shutdown()
