from pathlib import Path

import pytest

from tests.processes.launch import run_processes

BODIES = "tests.processes.orbax_bodies"


@pytest.fixture(scope="module")
def saved_by_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    run_processes(f"{BODIES}:save", 2, 4, {"folder": str(folder)})
    return folder


@pytest.mark.parametrize(("processes", "devices"), [(1, 8), (4, 2)])
def test_a_checkpoint_of_two_processes_is_restored_by(processes: int, devices: int, saved_by_two: Path) -> None:
    run_processes(f"{BODIES}:restore", processes, devices, {"folder": str(saved_by_two)})
