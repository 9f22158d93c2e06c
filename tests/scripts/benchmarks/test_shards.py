"""The benchmark of tar files runs, and names both readers and their ratio."""

from tests.scripts.benchmarks.scripts import run


def test_it_runs() -> None:
    lines = run("shards.py", "--images", "128", "--rounds", "1").splitlines()
    assert [line.partition(" ")[0] for line in lines] == ["folder", "tar", "tar"]
