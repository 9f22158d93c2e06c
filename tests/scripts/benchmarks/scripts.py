"""The scripts of benchmarks/, run as a user runs them, and imported as they import each other."""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

from tests import forkserver

FOLDER = Path(__file__).parents[3] / "benchmarks"


def run(script: str, *arguments: str) -> str:
    """What it printed."""
    result = forkserver.run([FOLDER / script, *arguments])
    assert result.returncode == 0, result.stderr
    return result.stdout


def quick(folder: Path, workload: str, *arguments: str) -> tuple[str, dict[str, Any]]:
    """A quick run of one workload: what it printed, and the run."""
    text = run("run.py", workload, "--quick", "--json", str(folder), *arguments)
    return text, json.loads((folder / f"{workload}.json").read_text())["runs"][0]


def load(name: str) -> Any:
    """A module of that folder."""
    sys.path.insert(0, str(FOLDER))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(FOLDER))
