"""The packing benchmark runs, its tables have a line for every method, and its file has their figures."""

import json
from pathlib import Path

from tests.scripts.benchmarks.scripts import run


def test_it_runs(tmp_path: Path) -> None:
    arguments = ["--documents", "3000", "--grain", "300", "--seq-len", "512", "--json", str(tmp_path / "packing.json")]
    lines = run("packing.py", *arguments).splitlines()
    kept = json.loads((tmp_path / "packing.json").read_text())["packing"]
    for method in ("split", "first_fit", "best_fit"):
        beside, alone = (line for line in lines if line.startswith(method))
        assert f"{kept[f'{method} beside Grain']['grain_full']:.3%}" in beside
        assert f"{kept[method]['full']:.3%}" in alone
