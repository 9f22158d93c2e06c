from pathlib import Path

import pytest

from tests.processes.launch import run_processes

BODIES = "tests.processes.sharding_bodies"


@pytest.mark.parametrize(("processes", "devices"), [(2, 4), (4, 2)])
def test_every_mesh_of_the_zoo(processes: int, devices: int) -> None:
    run_processes(f"{BODIES}:all_cases", processes, devices)


def test_a_late_host_holds_up_nobody(tmp_path: Path) -> None:
    run_processes(f"{BODIES}:late_host", 2, 4, {"folder": str(tmp_path)})
