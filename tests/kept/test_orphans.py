"""Workers that outlive the program of a pass: what they finish is kept, and nothing is computed beside them."""

import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.engines import worker_pids
from tests.limits import HANG, until

ROOT = Path(__file__).parents[3]
ROWS = 16
PROGRAM = f"""
import os, sys, time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from loadax import from_source

def slow(row):
    with open(os.environ["CALLS"], "a") as calls:
        calls.write(f"{{row}}\\n")
    time.sleep(6 if row in (4, 5) else 0.1)
    return True

if __name__ == "__main__":
    engine = lambda: ProcessPoolExecutor(2, get_context("spawn"))
    from_source(range({ROWS})).filter(slow, "slow", index=sys.argv[1], executor=engine, progress=False)
"""


@pytest.mark.processes
def test_workers_of_a_killed_program_finish_their_parts_for_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = tmp_path / "calls"
    calls.touch()
    monkeypatch.setenv("CALLS", str(calls))
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "index")]

    def computed() -> list[str]:
        return calls.read_text().split()

    orphans = list[int]()
    try:
        with subprocess.Popen(command, cwd=ROOT) as process:
            until(lambda: {"4", "5"} <= {*computed()})
            orphans = worker_pids(process.pid)
            process.kill()
        with subprocess.Popen(command, cwd=ROOT) as process:
            assert process.wait(HANG) == 0
    finally:
        for orphan in orphans:
            with suppress(psutil.NoSuchProcess):
                psutil.Process(orphan).kill()
    assert Counter(computed()) == {str(row): 1 for row in range(ROWS)}
