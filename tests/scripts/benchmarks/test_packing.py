"""The packing benchmark runs, and its tables have a line for every method."""

from tests.scripts.benchmarks.scripts import run


def test_it_runs() -> None:
    lines = run("packing.py", "--documents", "3000", "--grain", "300", "--seq-len", "512").splitlines()
    for method in ("split", "first_fit", "best_fit"):
        assert sum(line.startswith(method) for line in lines) == 2
