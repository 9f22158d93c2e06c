"""The benchmark of what seeing costs runs, and has two lines for every case."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "seeing.py"


def test_it_runs() -> None:
    ran = subprocess.run([sys.executable, str(SCRIPT), "1"], capture_output=True, text=True, check=True, timeout=50)
    assert sum("for seeing" in line for line in ran.stdout.splitlines()) == 18
