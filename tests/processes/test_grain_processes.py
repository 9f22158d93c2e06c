"""Grain's checkpoint handler in runs of several processes."""

from pathlib import Path

from tests.processes.launch import run_processes


def test_grains_checkpoint_handler(tmp_path: Path) -> None:
    run_processes("tests.processes.grain_bodies:checkpointed_by_grain", 2, 4, {"folder": str(tmp_path)})
