from pathlib import Path

import pytest

from tests.processes.launch import run_processes

BODIES = "tests.processes.keeping_bodies"


@pytest.mark.parametrize(("processes", "devices"), [(2, 4), (3, 1)])
def test_each_looks_at_its_share_and_all_have_the_whole(processes: int, devices: int, tmp_path: Path) -> None:
    run_processes(f"{BODIES}:everything", processes, devices, {"folder": str(tmp_path)})


def test_what_several_processes_must_not_do(tmp_path: Path) -> None:
    run_processes(f"{BODIES}:refusals", 2, 1, {"folder": str(tmp_path)})


def test_a_process_that_is_late_and_slow_is_waited_for(tmp_path: Path) -> None:
    run_processes(f"{BODIES}:late", 3, 1, {"folder": str(tmp_path)})


def test_a_process_that_never_comes_is_not_waited_for_and_nothing_is_done_twice(tmp_path: Path) -> None:
    run_processes(f"{BODIES}:missing", 2, 1, {"folder": str(tmp_path)})
