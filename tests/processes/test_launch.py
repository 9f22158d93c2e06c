import subprocess
import sys
from pathlib import Path

import pytest

from tests.forkserver import Child
from tests.limits import until
from tests.processes.launch import run_processes, wait

HANGS = f"""
import subprocess, time

WORKER = '''
import time
def works():
    print("begun", flush=True)
    time.sleep(3600)
works()
'''

def waits(worker):
    worker.stdout.readline()
    print("both have begun", flush=True)
    worker.wait()

waits(subprocess.Popen([{sys.executable!r}, "-c", WORKER], stdout=subprocess.PIPE))
"""


def test_a_process_ends_when_all_its_collectives_have() -> None:
    run_processes("tests.processes.launch_bodies:collectives_go_on", 2, 4)


def test_processes_that_hang_show_their_stacks_and_their_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    monkeypatch.setenv("PATH", str(tmp_path))  # which has no gdb, that would take seconds
    with log.open("wb") as output, Child(["-c", HANGS], stdout=output, stderr=subprocess.STDOUT) as hanging:
        until(lambda: "both have begun" in log.read_text())
        assert wait([hanging], 0.0) == "the processes [0] still ran after 0 s"
    assert all(f"in {function}" in log.read_text() for function in ("waits", "works"))


def test_a_program_that_hangs_is_reported_with_its_stacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # which has no gdb, that would take seconds
    with Child(["-c", HANGS], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as hanging:
        assert hanging.stdout is not None
        hanging.stdout.readline()
        with pytest.raises(subprocess.TimeoutExpired) as caught:
            hanging.communicate(0.0)
    assert all(f"in {function}" in caught.value.__notes__[0] for function in ("waits", "works"))
