from pathlib import Path

import pytest

from tests.processes.large_run_bodies import audit
from tests.processes.launch import run_processes

BODIES = "tests.processes.large_run_bodies"


@pytest.mark.parametrize(("processes", "devices"), [(2, 4), (4, 2)])
def test_one_process_begins_a_large_run_and_several_go_on(processes: int, devices: int, tmp_path: Path) -> None:
    args = {"folder": str(tmp_path), "step": 7}
    run_processes(f"{BODIES}:save", 1, 8, args)
    run_processes(f"{BODIES}:go_on", processes, devices, args)
    audit(str(tmp_path))
