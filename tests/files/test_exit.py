"""A program that has read remote files ends as any other: by its own exit code, at once."""

import asyncio
import os
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from loadax.files import exit as at_exit
from tests.limits import HANG
from tests.servers.faults import FaultProxy

pytest_plugins = ["tests.servers.fixtures"]

READ = "import sys; from loadax.files.files import Files; assert Files().sizes(sys.argv[1:]) == [12] * 8"


@pytest.mark.processes
def test_programs_that_have_just_read_a_remote_file_end_well(tmp_path: Path, http_proxy: FaultProxy) -> None:
    """Without the wait at the end, about one in five was aborted."""
    for number in range(8):
        (tmp_path / f"{number}.bin").write_bytes(bytes(12))
    command = [sys.executable, "-c", READ, *(f"{http_proxy.url}/{number}.bin" for number in range(8))]
    programs = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(8)]
    ends = [(program.communicate(timeout=HANG)[1], program.returncode) for program in programs]
    assert ends == [(b"", 0)] * 8


def test_requests_that_are_still_open_are_cancelled_and_no_others_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(at_exit, "_over", threading.Event())
    begun: Future[None] = Future()

    async def wait() -> None:
        with at_exit.cancelled_at_exit():
            begun.set_result(None)
            await asyncio.sleep(HANG)

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(asyncio.run, wait())
        begun.result(HANG)
        at_exit._end(os.getpid() + 1)  # in a fork of another process
        assert not waiting.done()
        at_exit._end(os.getpid())
        with pytest.raises(asyncio.CancelledError):
            waiting.result(HANG)
    assert not at_exit._open
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(wait())
