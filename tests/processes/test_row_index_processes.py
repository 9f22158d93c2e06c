"""Row indices in runs of several processes: built before, read by all."""

from pathlib import Path

import pytest

from tests.processes.launch import run_processes
from tests.row_index.filters import data, small, user

BODIES = "tests.processes.row_index_bodies"


@pytest.mark.parametrize(("processes", "devices"), [(2, 4), (3, 1)])
def test_all_read_what_was_built_before(processes: int, devices: int, tmp_path: Path) -> None:
    data().filter(small, "small", index=tmp_path)
    data().split_by(user, 0.5, index=tmp_path)
    run_processes(f"{BODIES}:everything", processes, devices, {"folder": str(tmp_path)})


def test_what_several_processes_must_not_do(tmp_path: Path) -> None:
    run_processes(f"{BODIES}:refusals", 2, 1, {"folder": str(tmp_path)})
