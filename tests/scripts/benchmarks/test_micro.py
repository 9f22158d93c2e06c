"""The micro-benchmarks run: every part, on what the loader is made of now. What they measure here means nothing."""

import json
from pathlib import Path

from tests.scripts.benchmarks.scripts import run


def test_every_part_runs_and_is_kept(tmp_path: Path) -> None:
    text = run("micro.py", "--quick", "--json", str(tmp_path / "micro.json"))
    found = json.loads((tmp_path / "micro.json").read_text())["stages"]
    assert {
        "permute 256 of 50,000",
        "plan 8 x 1,024, shuffled",
        "assemble 8 x 256 tokens",
        "place 1,024 images",
    } <= found.keys()
    assert {"assemble 1 x 256 records", "by hand: gather 256 records"} <= found.keys()
    assert all(what in text and each["seconds"] > 0 for what, each in found.items())
