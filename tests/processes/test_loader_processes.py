from pathlib import Path

import pytest

from tests.processes.launch import run_processes

BODIES = "tests.processes.loader_bodies"

SHAPES = pytest.mark.parametrize(("processes", "devices"), [(2, 4), (4, 2)])


@SHAPES
def test_every_mesh_and_partition_is_bit_equal_and_reads_what_it_holds(processes: int, devices: int) -> None:
    run_processes(f"{BODIES}:every_mesh", processes, devices)


@SHAPES
def test_errors_ends_and_shares_alike_on_all_hosts(processes: int, devices: int) -> None:
    run_processes(f"{BODIES}:small_cases", processes, devices)


@pytest.mark.parametrize(("processes", "devices"), [(4, 2)])
def test_a_store_is_read_in_the_columns_that_are_held(processes: int, devices: int, tmp_path: Path) -> None:
    run_processes(f"{BODIES}:columns_of_a_store", processes, devices, {"folder": str(tmp_path)})


def test_a_late_host_holds_up_nobody(tmp_path: Path) -> None:
    run_processes(f"{BODIES}:late_host", 2, 4, {"folder": str(tmp_path)})


def test_two_processes_save_and_four_and_one_go_on(tmp_path: Path) -> None:
    args = {"folder": str(tmp_path), "step": 8}
    run_processes(f"{BODIES}:save", 2, 4, args)
    run_processes(f"{BODIES}:restore", 4, 2, args)
    run_processes(f"{BODIES}:restore", 1, 8, args)
