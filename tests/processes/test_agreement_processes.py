import pytest

from tests.processes.launch import run_processes


@pytest.mark.parametrize("processes", [2, 4])
def test_hosts_agree_or_say_who_differs(processes: int) -> None:
    run_processes("tests.processes.agreement_bodies:both", processes, 8 // processes)
