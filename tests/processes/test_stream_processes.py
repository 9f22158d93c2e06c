from pathlib import Path

import pytest

from tests.processes.launch import run_processes
from tests.processes.stream_bodies import restore

BODIES = "tests.processes.stream_bodies"


@pytest.fixture(scope="module")
def saved_by_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    run_processes(f"{BODIES}:save", 2, 4, {"folder": str(folder)})
    return folder


def test_a_stream_of_two_processes_is_restored_by_four(saved_by_two: Path) -> None:
    run_processes(f"{BODIES}:restore", 4, 2, {"folder": str(saved_by_two)})


def test_a_stream_of_two_processes_is_restored_by_one(saved_by_two: Path) -> None:
    restore(str(saved_by_two))
