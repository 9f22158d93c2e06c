"""Runs a function in several real `jax.distributed` processes on this machine, and fails when any one fails or hangs.

    def test_something() -> None:
        run_processes("tests.processes.some_bodies:some_function", processes=2, devices=4, args={"steps": 3})

The function gets those of `args` (anything JSON can carry) that it takes, as keywords, after
`jax.distributed.initialize`; it asserts what it proves.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

from tests.forkserver import Child
from tests.limits import HANG, until
from tests.stacks import abort

ROOT = Path(__file__).parents[2]
GRACE = 5.0
"""Seconds that the others have to end by themselves when one has failed.

They may be about to fail for the same reason.
"""


def run_processes(
    body: str, processes: int, devices: int, args: Mapping[str, Any] | None = None, timeout: float = HANG
) -> list[str]:
    """Runs `body` in fresh interpreters that make one JAX run over loopback.

    Args:
        body: "module:function".
        processes: how many.
        devices: virtual CPU devices of each.
        args: keywords for the function.
        timeout: seconds, after which all are killed and the test fails.

    Returns:
        What each process printed.
    """
    with started(body, processes, devices, args) as (children, logs):
        try:
            problem = _wait(children, timeout)
        finally:
            for child in children:
                _kill(child)
            outputs = [output_of(log) for log in logs]
            if sys.exc_info()[0] is not None:  # pytest's own time limit, or Ctrl-C
                print(_together(outputs))  # noqa: T201
    if problem:
        pytest.fail(
            f"{body} on {processes} processes of {devices} devices: {problem}\n{_together(outputs)}", pytrace=False
        )
    return outputs


@contextmanager
def started(
    body: str, processes: int, devices: int, args: Mapping[str, Any] | None = None
) -> Iterator[tuple[list[Child], list[Path]]]:
    """Starts what `run_processes` runs; kills what still runs in the end.

    Yields:
        The processes, and the files that have what each printed.
    """
    job = {"body": body, "processes": processes, "port": free_port(), "args": dict(args or {})}
    with tempfile.TemporaryDirectory() as folder:
        logs = [Path(folder, f"{number}.log") for number in range(processes)]
        children = [_start(job | {"process": number}, devices, log) for number, log in enumerate(logs)]
        try:
            yield children, logs
        finally:
            for child in children:
                _kill(child)


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _start(job: dict[str, Any], devices: int, log: Path) -> Child:
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices), "PYTHONPATH": str(ROOT)}
    # A session of its own, so that whatever the process starts can be ended with it.
    with log.open("wb") as output:
        return Child(
            ["-m", "tests.processes.launch", json.dumps(job)],
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            new_session=True,
        )


def _wait(children: list[Child], timeout: float) -> str | None:
    """Waits for all; says what went wrong, if anything.

    A process that runs longer than `timeout` seconds has its stacks in its log.
    """
    deadline = time.monotonic() + timeout
    failed: str | None = None
    while any(child.poll() is None for child in children):
        codes = [child.poll() for child in children]
        if failed is None and any(codes):
            failed = f"exit codes {codes}"
            deadline = min(deadline, time.monotonic() + GRACE)
        if time.monotonic() > deadline:
            running = [number for number, code in enumerate(codes) if code is None]
            if failed:
                return failed
            stacks = "".join(abort(children[number].pid) for number in running)
            return f"the processes {running} still ran after {timeout:g} s{stacks}"
        time.sleep(0.02)
    codes = [child.poll() for child in children]
    return f"exit codes {codes}" if any(codes) else None


def _kill(child: Child) -> None:
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def output_of(log: Path) -> str:
    """What a process printed."""
    return log.read_text(errors="replace").strip()


def _together(outputs: list[str]) -> str:
    return "\n".join(f"--- process {number}\n{output}" for number, output in enumerate(outputs))


def main(job: dict[str, Any]) -> None:
    """One of the processes."""
    # JAX's network library writes to file descriptor 1, with several threads at once: Python's output gets its own.
    sys.stdout = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if job["process"]:
        until(lambda: _listens(job["port"]))  # a client that comes too early tries again a second later
    jax.distributed.initialize(
        f"127.0.0.1:{job['port']}",
        num_processes=job["processes"],
        process_id=job["process"],
        initialization_timeout=int(HANG),
    )
    module, function = job["body"].split(":")
    try:
        body = getattr(import_module(module), function)
        body(**{name: value for name, value in job["args"].items() if name in signature(body).parameters})
        settle()
    except BaseException:  # noqa: BLE001 - whatever it is, the test shall show it
        traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        # The usual way out waits for the other processes, which may wait for this one.
        os._exit(1)
    jax.distributed.shutdown()
    # How a program ends is for `test_stopping.py` and `test_worker_programs.py`: taking apart all modules is a third of
    # the processor time of a process that does little.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _listens(port: int) -> bool:
    with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port), HANG):
        return True
    return False


def settle() -> None:
    """Waits for all collectives that this process takes part in.

    JAX returns a replicated value when one device has it. The other devices may still be connecting to those of other
    processes, by way of the coordinator: where that shuts down meanwhile, they wait for ever, and the end of the
    process waits for them. Collectives of a process run one after the other, so the last one is awaited.
    """
    mesh = Mesh(np.array(jax.devices()), ("all",))
    ones = jax.make_array_from_callback((mesh.size,), NamedSharding(mesh, P("all")), lambda _: np.ones(1, np.int32))
    jax.block_until_ready(jax.jit(lambda array: array, out_shardings=NamedSharding(mesh, P()))(ones))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
