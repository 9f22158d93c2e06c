"""The benchmark beside Grain and Hugging Face runs, and says something of every part."""

from tests.scripts.benchmarks.scripts import run


def test_it_runs() -> None:
    lines = run("neighbours.py", "--rows", "300", "--rounds", "1").splitlines()
    for part, count in (("huggingface", 6), ("grain in", 3), ("grain out", 8)):
        assert sum(line.startswith(part) and line.endswith("rows/s") for line in lines) == count
