"""A cache whose program is killed again and again calls the function of each row about once."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from loadax import from_source
from tests.limits import HANG, until

ROOT = Path(__file__).parents[2]
ROWS = 20_000
PROGRAM = f"""
import sys
import numpy as np
from loadax import from_source

def square(row):
    with open(sys.argv[2], "a") as calls:
        calls.write("x")
    return {{"square": np.int64(row * row)}}

from_source(range({ROWS})).map(square).cache(sys.argv[1], key="square", progress=False)
"""


@pytest.mark.processes
def test_cache_killed_three_times_calls_the_function_about_once_a_row(tmp_path: Path) -> None:
    calls, store = tmp_path / "calls", tmp_path / "store"
    calls.touch()
    command = [sys.executable, "-c", PROGRAM, str(store), str(calls)]
    for _ in range(3):
        before = calls.stat().st_size
        with subprocess.Popen(command, cwd=ROOT) as process:
            until(lambda before=before: calls.stat().st_size >= before + 5000)  # type: ignore[misc]
            process.kill()
    with subprocess.Popen(command, cwd=ROOT) as process:
        assert process.wait(HANG) == 0
    assert ROWS <= calls.stat().st_size <= 1.2 * ROWS
    stored = from_source(range(ROWS)).map(lambda row: {"square": np.int64(row * row)}).cache(store, key="square")
    assert stored[ROWS - 1]["square"] == (ROWS - 1) ** 2
