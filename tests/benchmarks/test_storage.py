"""The benchmark of stores runs, and its contestants serve the same rows. What it measures here means nothing."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("storage")
    command = [sys.executable, str(FOLDER / "storage.py"), "--quick", "--rounds", "1", "--json", str(folder / "report.json")]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, timeout=55)
    assert result.returncode == 0, result.stderr
    return result.stdout, json.loads((folder / "report.json").read_text())


@pytest.mark.parametrize(
    ("workload", "rows", "other"),
    [
        ("fields", 256, "tensorstore"),
        ("chunks", 256, "row-shuffle"),
        ("raw-fields", 256, "numpy"),
        ("raw-tokens", 2048, "numpy"),
        ("tokens", 2048, "numpy"),
    ],
)
def test_both_serve_the_same_rows_and_are_measured(
    results: tuple[str, dict[str, Any]], workload: str, rows: int, other: str
) -> None:
    text, report = results
    summary = report["workloads"][workload]
    assert f"{workload}: " in text
    # The quick workloads are eight batches, all of which are checked: an epoch is every row once.
    assert {name: each["check"]["rows"] for name, each in summary["contestants"].items()} == {"loadax": rows, other: rows}
    assert len({each["check"]["digest"] for each in summary["contestants"].values()}) == 1
    assert list(summary["ratios"]) == [other]
    assert summary["ratios"][other]["median"] > 0


def test_a_turn_of_a_chunk_shuffle_is_whole_epochs(results: tuple[str, dict[str, Any]]) -> None:
    for turn in results[1]["workloads"]["chunks"]["contestants"]["loadax"]["rounds"]:
        assert turn["rows"] % 256 == 0


def test_hosts_of_a_chunk_shuffle_read_little_more_than_their_share(results: tuple[str, dict[str, Any]]) -> None:
    text, report = results
    found = report["workloads"]["chunks"]["amplification"]
    assert {hosts: len(each) for hosts, each in found.items()} == {"1": 1, "2": 2, "4": 4}
    for each in found.values():
        # So small a store is in TensorStore's own cache in the second of the two epochs.
        assert all(0.5 <= one <= 1.1 for one in each)
        assert all(f"{one:.3f}" in text for one in each)
