from tests.processes.launch import run_processes

BODIES = "tests.processes.worker_bodies"


def test_every_host_has_workers_of_its_own() -> None:
    run_processes(f"{BODIES}:every_mesh", 2, 4)


def test_a_death_on_one_host_is_no_matter_of_the_others() -> None:
    run_processes(f"{BODIES}:deaths", 2, 4)


def test_an_error_on_one_host_is_its_own() -> None:
    run_processes(f"{BODIES}:errors_are_the_hosts_own", 2, 4)
