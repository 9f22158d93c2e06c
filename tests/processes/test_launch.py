import subprocess
import time
from pathlib import Path

import pytest

from tests.forkserver import Child
from tests.limits import HANG
from tests.processes import launch
from tests.processes.launch import run_processes
from tests.processes.launch_bodies import WORKS

BODIES = "tests.processes.launch_bodies"


@pytest.fixture
def no_gdb(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It takes seconds, and may not be installed."""
    monkeypatch.setenv("PATH", str(tmp_path))


def test_a_process_ends_when_all_its_collectives_have() -> None:
    run_processes(f"{BODIES}:collectives_go_on", 2, 4)


def test_one_process_fails_and_the_others_wait_for_it() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"(?s)exit codes.*hello from 0.*ValueError: only here"):
        run_processes(f"{BODIES}:fails_on_one", 2, 1)


def test_processes_that_hang_are_killed_and_show_their_output_and_stacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_gdb: None
) -> None:
    class Clock:
        """The limit is over when both processes hang."""

        sleep = staticmethod(time.sleep)

        def monotonic(self) -> float:
            return 2 * HANG * (tmp_path / "0").exists() * (tmp_path / "1").exists()

    monkeypatch.setattr(launch, "time", Clock())
    with pytest.raises(pytest.fail.Exception, match=r"the processes \[0, 1\] still ran after 120 s") as caught:
        run_processes(f"{BODIES}:hangs", 2, 1, {"folder": str(tmp_path)})
    for output in str(caught.value).split("--- process ")[1:]:
        assert all(text in output for text in ("before", "in hangs", "in works"))


HANGS = f"""
import subprocess, sys

with subprocess.Popen([sys.executable, "-c", {WORKS!r}], stdout=subprocess.PIPE) as worker:
    worker.stdout.readline()
    print("both have begun", flush=True)
    worker.wait()
"""


def test_a_program_that_hangs_is_reported_with_its_stacks(no_gdb: None) -> None:
    with Child(["-c", HANGS], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as hanging:
        assert hanging.stdout is not None
        hanging.stdout.readline()
        with pytest.raises(subprocess.TimeoutExpired) as caught:
            hanging.communicate(0.0)
    (stacks,) = caught.value.__notes__
    assert stacks.count("Fatal Python error: Aborted") == 2
    assert "in works" in stacks
