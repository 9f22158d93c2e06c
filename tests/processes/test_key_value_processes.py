from tests.processes.launch import run_processes


def test_processes_share_keys() -> None:
    run_processes("tests.processes.key_value_bodies:shared", 2, 1)
