"""A program that has read remote files ends as any other: by its own exit code, at once."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from pathlib import Path

import pytest

from loadax.files.requests import Request, Requests
from tests.limits import HANG
from tests.servers.child import run_python
from tests.servers.faults import Fault, FaultProxy

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


@pytest.mark.processes
def test_program_ends_while_requests_made_ahead_are_open(tmp_path: Path, http_proxy: FaultProxy) -> None:
    """Those that were sent are waited for, for two seconds at most; the others are cancelled."""
    (tmp_path / "x.bin").write_bytes(bytes(12))
    code = (
        "import sys\n"
        "from loadax.files.byte_ranges import ByteRange\n"
        "from loadax.files.remote import RemoteFiles\n"
        "files = RemoteFiles()\n"
        "files.begin([ByteRange(sys.argv[1], 0, 12)] * 200, urgent=False)\n"
    )
    for seconds, most in ((0.1, 6.0), (HANG, 9.0)):
        http_proxy.clear()
        http_proxy.add(delay := Fault("delay", seconds=seconds))
        program = subprocess.Popen([sys.executable, "-c", code, f"{http_proxy.url}/x.bin"], stderr=subprocess.PIPE)
        _wait_for(lambda: bool(delay.hits))
        start = time.monotonic()
        assert program.communicate(timeout=HANG)[1] == b""
        assert program.returncode == 0
        assert time.monotonic() - start < most


@pytest.mark.processes
def test_interrupt_of_a_waiting_program(tmp_path: Path, http_proxy: FaultProxy) -> None:
    """Ctrl-C ends the wait at once, and the program two seconds later, whatever the server does."""
    (tmp_path / "x.bin").write_bytes(bytes(12))
    http_proxy.add(Fault("silent"))
    code = "import sys; from loadax.files.files import Files; Files().sizes(sys.argv[1:])"
    program = subprocess.Popen([sys.executable, "-c", code, f"{http_proxy.url}/x.bin"], stderr=subprocess.PIPE)
    _wait_for(lambda: bool(http_proxy.requests))
    time.sleep(0.1)  # it waits for the answer
    start = time.monotonic()
    program.send_signal(signal.SIGINT)
    said = program.communicate(timeout=HANG)[1]
    assert said.endswith(b"KeyboardInterrupt\n")
    assert program.returncode == -signal.SIGINT
    assert time.monotonic() - start < 8


@pytest.mark.processes
def test_fork_of_a_process_that_has_read_remote_files(tmp_path: Path, http_proxy: FaultProxy) -> None:
    """It has none of obstore's threads, so it says so; a fork before the first read works."""
    (tmp_path / "x.bin").write_bytes(bytes(12))
    code = (
        "import os\n"
        "from loadax.errors import StorageError\n"
        "from loadax.files.files import Files\n"
        "def read():\n"
        f"    return Files().sizes(['{http_proxy.url}/x.bin'])\n"
        "def forked():\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        "        try:\n"
        "            print(read(), flush=True)\n"
        "        except StorageError as error:\n"
        "            print(error, flush=True)\n"
        "        os._exit(0)\n"
        "    os.waitpid(child, 0)\n"
        "forked()\n"
        "read()\n"
        "forked()\n"
    )
    said = run_python(code, {"PYTHONWARNINGS": None}).splitlines()
    assert said[0] == "[12]"
    assert said[-1].startswith("remote files can't be read in a process that was forked")
    assert said[-1].endswith("start it with the method 'spawn' or 'forkserver'")


def test_closed_requests_take_no_more() -> None:
    requests, begun, go_on = Requests(), threading.Event(), threading.Event()

    def send(item: object) -> object:
        begun.set()
        go_on.wait(HANG)
        return item

    request = Request(send, 3, "server", 1, urgent=True, is_known=True)
    (running,) = requests.begin([request])
    assert begun.wait(HANG)
    waiting = requests.begin([request] * 100)
    threading.Timer(0.1, go_on.set).start()
    requests.close()
    assert running.result() == 3
    assert isinstance(waiting[-1].exception(), CancelledError)
    with pytest.raises(CancelledError):
        requests.begin([request])


def _wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + HANG
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
