"""The benchmark runs, its contestants serve the same rows, and its arithmetic is right. What it measures here means nothing."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


def run(tmp_path: Path, *arguments: str) -> tuple[str, Any]:
    report = tmp_path / "report.json"
    command = [sys.executable, str(FOLDER / "throughput.py"), "--quick", "--json", str(report), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=55)
    assert result.returncode == 0, result.stderr
    return result.stdout, json.loads(report.read_text())


@pytest.mark.parametrize(
    ("workload", "rows", "options"),
    [
        ("tokens", 2048, ["--rounds", "1", "--sleep"]),
        ("images", 8192, ["--contestants", "loadax", "numpy", "grain-batches", "--rounds", "2"]),
    ],
)
def test_all_serve_the_same_rows_and_are_measured(tmp_path: Path, workload: str, rows: int, options: list[str]) -> None:
    text, report = run(tmp_path, "--workloads", workload, *options)
    contestants = report["workloads"][workload]["contestants"]
    assert {"loadax", "numpy", "grain-batches"} <= contestants.keys()
    # The quick workloads have whole batches only, so that an epoch is every row once, whoever shuffles.
    assert {each["check"]["rows"] for each in contestants.values()} == {rows}
    assert len({each["check"]["digest"] for each in contestants.values()}) == 1
    for name, each in contestants.items():
        assert name in text
        assert len(each["rounds"]) == int(options[options.index("--rounds") + 1])
        assert each["rows_per_second"] > 0
        assert each["cpu_seconds_per_million_rows"] > 0
        assert set(each["first_batch_seconds"]) == {"cold", "warm"}
    assert set(report["workloads"][workload]["ratios"]) == contestants.keys() - {"loadax"}
    assert report["machine"]["commit"]
    if "--sleep" in options:
        assert 0 < report["sleep"][workload]["share"] < 1


def test_ratios_are_taken_round_by_round() -> None:
    summary = load("report").summarise({"loadax": measured(1, 2, 4), "numpy": measured(2, 1, 1)})
    assert summary["ratios"] == {"numpy": {"median": 2.0, "rounds": [0.5, 2.0, 4.0]}}
    assert summary["contestants"]["loadax"]["rows_per_second"] == 2_000_000
    assert summary["contestants"]["numpy"]["cpu_seconds_per_million_rows"] == 3


def measured(*millions: int) -> dict[str, Any]:
    rounds = [{"rows": 2e6 * speed, "seconds": 2.0, "cpu_seconds": 6.0 * speed} for speed in millions]
    return {"first": {"cold": 1.0, "warm": 0.5}, "check": {}, "rounds": rounds}


def load(name: str) -> Any:
    specification = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module
