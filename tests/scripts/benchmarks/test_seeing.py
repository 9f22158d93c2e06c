"""The benchmark of what seeing costs runs, and has two lines for every case."""

from tests.scripts.benchmarks.scripts import run


def test_it_runs() -> None:
    assert sum("for seeing" in line for line in run("seeing.py", "1").splitlines()) == 18
