"""Runs of real JAX processes on this machine: each function of the modules of bodies checks its law on every process.

A case is one run, or several in one folder, where later ones find what the first has saved.
"""

from pathlib import Path

import pytest

from tests.limits import HANG, until
from tests.processes.launch import output_of, run_processes, started

PACKED = ["lengths", "lengths.json", "split", "split"]  # what a folder has after `pack`, up to the first hyphen
SAVED = ("save", 2, 4)
CASES: dict[str, list[tuple[str, int, int]]] = {
    "agreement of 2": [("both", 2, 4)],
    "agreement of 4": [("both", 4, 2)],
    "buckets and balance of 2 that 4 and 1 resume": [("every_batch", 2, 4), ("go_on", 4, 2), ("go_on", 1, 8)],
    "device of 4, every mesh": [("every_mesh", 4, 2)],
    "device without another process": [("small_cases", 2, 4)],
    "grain checkpoint": [("checkpointed_by_grain", 2, 4)],
    "host leaves and masked rows": [("all_cases", 2, 4)],
    "large_run of 1 that 4 resume": [("save", 1, 8), ("go_on", 4, 2)],
    "loader of 2, every mesh and partition": [("every_mesh", 2, 4)],
    "loader of 4, every mesh and partition": [("every_mesh", 4, 2)],
    "loader of 2, errors, ends and shares": [("small_cases", 2, 4)],
    "loader of 4, errors, ends and shares": [("small_cases", 4, 2)],
    "loader of 4, columns of a store": [("columns_of_a_store", 4, 2)],
    "loader with a late host": [("late_host", 2, 4)],
    "loader of 2 that 4 and 1 resume": [SAVED, ("restore", 4, 2), ("restore", 1, 8)],
    "orbax checkpoint of 2 that 4 and 1 restore": [SAVED, ("restore", 4, 2), ("restore", 1, 8)],
    "packing": [("packed_batches", 2, 4)],
    "row_index of 2, built before": [("build", 1, 1), ("everything", 2, 4)],
    "row_index that can't be shared": [("refusals", 2, 1)],
    "row_index that 2 build": [("shared", 2, 1), ("shared_once", 1, 1)],
    "row_index that 4 build": [("shared", 4, 1), ("shared_once", 1, 1)],
    "sharding of 2, every mesh": [("all_cases", 2, 4)],
    "sharding of 4, every mesh": [("all_cases", 4, 2)],
    "sharding with a late host": [("late_host", 2, 4)],
    "stream of 2 that 4 and 1 restore": [SAVED, ("restore", 4, 2), ("restore", 1, 8)],
    "weights of 2 hosts": [("both", 2, 1)],
    "weights of 3 hosts": [("both", 3, 1)],
    "weights of 4 hosts": [("both", 4, 1)],
    "worker deaths and errors on one host": [("all_cases", 2, 4)],
}


@pytest.mark.parametrize("case", CASES)
def test_law_holds_in_every_process(case: str, tmp_path: Path) -> None:
    for body, processes, devices in CASES[case]:
        name = f"tests.processes.{case.split(maxsplit=1)[0]}_bodies:{body}"
        run_processes(name, processes, devices, {"folder": str(tmp_path)})


@pytest.mark.parametrize("processes", [2, 4])
def test_killed_process_leaves_its_parts_of_a_pass_to_the_others(processes: int, tmp_path: Path) -> None:
    folder = {"folder": str(tmp_path)}
    with started("tests.processes.row_index_bodies:endure", processes, 1, folder) as (children, logs):
        until(lambda: len([*tmp_path.glob("index/*.parts/*.npz")]) >= 5)
        until((tmp_path / f"calls-{processes - 1}").exists)
        children[-1].kill()
        children[-1].wait()
        for child, log in zip(children[:-1], logs, strict=False):
            assert child.wait(HANG) == 0, output_of(log)
    calls = [row for log in tmp_path.glob("calls-*") for row in log.read_text().split()]
    assert {*calls} == {*map(str, range(1000))}
    sample, threads, part = 33, 8, 16
    assert len(calls) <= 1000 + processes * (sample + 16) + threads * part
    assert sorted(path.name.partition("-")[0] for path in (tmp_path / "index").iterdir()) == PACKED
