"""One plain `next()` stays a short trip: calls are counted, not timed."""

from tests.scripts.benchmarks.scripts import run

MOST = 41


def test_few_calls_cross_from_file_to_file() -> None:
    calls, *_ = run("calls_per_next.py").split()
    assert 0 < int(calls) <= MOST
