from pathlib import Path

import pytest

from tests.processes.launch import run_processes

BODIES = "tests.processes.certificate_bodies"


@pytest.mark.parametrize(("processes", "devices"), [(2, 4), (4, 2)])
def test_the_certificates_of_all_processes_are_that_of_one(processes: int, devices: int, tmp_path: Path) -> None:
    run_processes(f"{BODIES}:certify", processes, devices, {"folder": str(tmp_path)})
    run_processes(f"{BODIES}:compare", 1, 8, {"folder": str(tmp_path)})
