"""Processes of a run that begin different passes, or whose process 0 fails or ends, find out."""

from pathlib import Path

from tests.processes.launch import run_processes

pytest_plugins = ["tests.servers.fixtures"]

LIMIT = 120.0  # seconds


def test_processes_with_different_passes_are_told(tmp_path: Path) -> None:
    outputs = run_processes(
        "tests.processes.shared_pass_bodies:all_cases", 2, 1, {"folder": str(tmp_path)}, timeout=LIMIT
    )
    assert "filter: waiting for process 0 to begin it, for 1 s" in outputs[1]


def test_process_0_trains_without_the_pass(tmp_path: Path) -> None:
    run_processes("tests.processes.shared_pass_bodies:process_0_trains", 2, 1, {"folder": str(tmp_path)}, timeout=LIMIT)


def test_process_0_ends_without_the_pass(tmp_path: Path) -> None:
    run_processes("tests.processes.shared_pass_bodies:process_0_leaves", 2, 1, {"folder": str(tmp_path)}, timeout=LIMIT)


def test_process_without_its_share_of_a_bucket(bucket: str) -> None:
    url = f"s3://{bucket}/squares"
    run_processes("tests.processes.shared_pass_bodies:shares_of_a_bucket", 2, 1, {"url": url}, timeout=LIMIT)
