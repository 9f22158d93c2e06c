"""Servers and snippets that need a Python process of their own."""

import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import final

import pytest

from tests.limits import HANG
from tests.servers.loopback import free_port

ROOT = Path(__file__).parents[2]
_ATTEMPTS = 3  # somebody else may take the free port just before the server does


@final
class ChildServer:
    """A server as a child process of this one.

    Args:
        command: from the port to the arguments after `python`.
        ready: a path that the server answers as soon as it serves.
    """

    def __init__(self, command: Callable[[int], list[str]], ready: str):
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the server
        for _ in range(_ATTEMPTS):
            port = free_port()
            self.url = f"http://127.0.0.1:{port}"
            self._process = subprocess.Popen(
                [sys.executable, *command(port)], stdout=self._log, stderr=subprocess.STDOUT, start_new_session=True
            )
            if self._wait(ready):
                return
            self._end()
        self._log.seek(0)
        said = self._log.read().decode(errors="replace")
        self._log.close()
        raise RuntimeError(f"{command(0)} did not start:\n{said}")

    def _wait(self, ready: str) -> bool:
        deadline = time.monotonic() + HANG
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                with urllib.request.urlopen(self.url + ready, timeout=HANG):
                    return True
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                time.sleep(0.05)
        return False

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Ends the process."""
        self._end()
        self._log.close()


def run_python(code: str, env: Mapping[str, str | None] | None = None, timeout: float = HANG) -> str:
    """Runs `code` in a fresh interpreter, for libraries that read their environment once a process.

    Args:
        code: what to run, in the repository's root, with warnings as errors.
        env: added to this process's environment; None takes a variable out.
        timeout: seconds, after which it is killed and the test fails.

    Returns:
        What it printed, which is also what the test shows when it fails.
    """
    changes = env or {}
    environment = {key: value for key, value in os.environ.items() if key not in changes} | {"PYTHONPATH": str(ROOT)}
    environment |= {key: value for key, value in changes.items() if value is not None}
    command = [sys.executable, "-W", "error", "-X", "faulthandler", "-c", code]
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            timeout=timeout,
            check=False,
            stdout=-1,
            stderr=subprocess.STDOUT,
            text=True,
        )
    except subprocess.TimeoutExpired as late:
        said = late.stdout.decode(errors="replace") if isinstance(late.stdout, bytes) else late.stdout
        pytest.fail(f"still running after {timeout:g} s:\n{said or ''}", pytrace=False)
    if done.returncode:
        pytest.fail(f"exit code {done.returncode}:\n{done.stdout}", pytrace=False)
    return done.stdout
