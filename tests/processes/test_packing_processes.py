from pathlib import Path

import pytest

from tests.processes.launch import run_processes


@pytest.mark.parametrize(("processes", "devices"), [(2, 4)])
def test_packed_batches_are_the_same_on_all_hosts(processes: int, devices: int, tmp_path: Path) -> None:
    run_processes(
        "tests.processes.packing_bodies:packed_batches", processes, devices, {"index": str(tmp_path / "index")}
    )
