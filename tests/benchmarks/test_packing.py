"""The packing benchmark runs, and its tables have a line for every method."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "packing.py"


def test_it_runs() -> None:
    command = [sys.executable, str(SCRIPT), "--documents", "3000", "--grain", "300", "--seq-len", "512"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=50)
    for method in ("split", "first_fit", "best_fit"):
        assert sum(line.startswith(method) for line in ran.stdout.splitlines()) == 2
