import pytest

from tests.processes.launch import run_processes


@pytest.mark.parametrize("body", ["every_mesh", "parts"])
def test_each_process_has_the_host_leaves_of_its_rows(body: str) -> None:
    run_processes(f"tests.processes.host_bodies:{body}", 2, 4)
