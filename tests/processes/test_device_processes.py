from pathlib import Path

import pytest

from tests.processes.launch import run_processes

BODIES = "tests.processes.device_bodies"


@pytest.mark.parametrize(("processes", "devices"), [(2, 4), (4, 2)])
def test_every_mesh_is_bit_equal(processes: int, devices: int) -> None:
    run_processes(f"{BODIES}:every_mesh", processes, devices)


def test_no_process_needs_another(tmp_path: Path) -> None:
    run_processes(f"{BODIES}:small_cases", 2, 4, {"folder": str(tmp_path)})
