"""The benchmark of device feeding runs: every way, on whatever there is. What it measures here means nothing."""

import json
from pathlib import Path

from tests.scripts.benchmarks.scripts import run


def test_every_way_runs_and_is_kept(tmp_path: Path) -> None:
    small = ("--rows", "128", "--batch", "16", "--width", "16", "--rounds", "1", "--seconds", "0.05")
    text = run("device.py", *small, "--json", str(tmp_path / "device.json"))
    found = json.loads((tmp_path / "device.json").read_text())
    assert set(found["ways"]) == {"one batch", "device_map", "keep_on_device", "map on the host", "nothing read ahead"}
    assert found["ways"]["one batch"]["ratio"] == 1
    assert all(name in text and each["step_ms"] > 0 for name, each in found["ways"].items())
