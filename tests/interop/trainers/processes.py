"""Runs a script in several `jax.distributed` processes on this machine: `tests.processes` without pytest.

Trainers' environments have no pytest. The script calls `join` first.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import jax

LIMIT = 300.0  # seconds for all processes together
DEVICES = 8  # of all processes together, virtual ones


def run_processes(script: str, *arguments: str, processes: int) -> None:
    """Runs a script in fresh interpreters that make one JAX run over loopback.

    Raises:
        RuntimeError: When a process fails, or still runs after the limit; with what each printed.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        logs = [Path(folder, f"{process}.log") for process in range(processes)]
        running = []
        try:
            for process, log in enumerate(logs):
                environment = {
                    **os.environ,
                    "JAX_NUM_CPU_DEVICES": str(DEVICES // processes),
                    "TRAINERS_RUN": f"{port} {processes} {process}",
                }
                with log.open("wb") as output:
                    command = [sys.executable, script, *arguments]
                    running.append(
                        subprocess.Popen(
                            command, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
                        )
                    )
            deadline = time.monotonic() + LIMIT
            codes: list[int | None] = [None]
            while None in codes and not any(codes) and time.monotonic() < deadline:
                time.sleep(0.05)
                codes = [child.poll() for child in running]
        finally:
            for child in running:
                with suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        if any(code != 0 for code in codes):
            printed = "\n".join(f"--- process {process}\n{log.read_text()}" for process, log in enumerate(logs))
            raise RuntimeError(f"{script} in {processes} processes: exit codes {codes} (None: killed)\n{printed}")


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
