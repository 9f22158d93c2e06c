from pathlib import Path

import pytest

from tests.processes.launch import run_processes

BODIES = "tests.processes.sharding_bodies"


@pytest.mark.parametrize(("processes", "devices"), [(2, 4), (4, 2)])
def test_every_mesh_of_the_zoo(processes: int, devices: int) -> None:
    run_processes(f"{BODIES}:all_cases", processes, devices)


def test_a_late_host_holds_up_nobody(tmp_path: Path) -> None:
    run_processes(f"{BODIES}:late_host", 2, 4, {"folder": str(tmp_path)})


def test_the_harness_returns_what_each_process_printed() -> None:
    assert run_processes(f"{BODIES}:prints", 2, 3, {"word": "hello"}) == ["hello 0 2 6", "hello 1 2 6"]


def test_the_harness_fails_when_one_process_fails_and_the_others_wait_for_it() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"(?s)exit codes.*hello from 0.*ValueError: only here"):
        run_processes(f"{BODIES}:fails_on_one", 2, 1)


def test_the_harness_kills_what_hangs_and_shows_its_output() -> None:
    # They would sleep for an hour; the limit leaves them the time to begin, on a busy machine too.
    with pytest.raises(pytest.fail.Exception, match=r"(?s)the processes \[0, 1\] still ran after 20 s.*before"):
        run_processes(f"{BODIES}:hangs", 2, 1, timeout=20)
