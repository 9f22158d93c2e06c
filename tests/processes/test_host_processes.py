import pytest

from tests.processes.launch import run_processes


@pytest.mark.parametrize("body", ["every_mesh", "parts", "masked"])
def test_each_process_has_what_belongs_to_its_rows(body: str) -> None:
    run_processes(f"tests.processes.host_bodies:{body}", 2, 4)
