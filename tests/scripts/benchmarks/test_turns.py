"""Contestants take turns: whoever is not asked anything stands still, with all processes that it started."""

import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.scripts.benchmarks.scripts import load


@pytest.fixture(scope="module")
def ceiling(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The contestant of two processes, on a little data, until the last test ends it."""
    folder = tmp_path_factory.mktemp("transform")
    load("workloads").find("transform", quick=True).write(folder)
    with load("turns").child("ceiling", "transform", folder, quick=True) as child:
        child.ask("ready")
        child.ask("round", seconds=0.01, lead=0)  # starts its processes, which no test leaves behind then
        yield child


def test_one_that_fails_is_out_of_the_race_and_the_others_go_on(ceiling: Any, tmp_path: Path) -> None:
    turns = load("turns")
    with turns.child("numpy", "transform", tmp_path / "nothing is here", quick=True) as lost:
        race = turns.Race({"lost": lost, "ceiling": ceiling})
        assert race.ask("lost", "ready") is None
        turn = {"seconds": 0.01, "lead": 0}
        found = [name for name, _ in race.turns(2, {"lost": turn, "ceiling": turn}, float("inf"))]
        assert found == ["ceiling"] * 2
        assert race.names == ["ceiling"]
        assert "numpy ended in 'ready', with code 1" in race.failed["lost"]
        assert race.ask("lost", "ready") is None


def test_rounds_end_when_the_time_is_up_but_three_there_are(ceiling: Any) -> None:
    race = load("turns").Race({"ceiling": ceiling})
    assert len(list(race.turns(9, {"ceiling": {"seconds": 0.01, "lead": 0}}, 0.0))) == 3


def test_between_turns_a_contestant_and_its_processes_stand_still(ceiling: Any) -> None:
    assert ceiling.ask("ready") == "transform"
    turn = ceiling.ask("round", seconds=0.05, lead=0.02)
    family = [psutil.Process(ceiling._process.pid), *psutil.Process(ceiling._process.pid).children(recursive=True)]
    assert len(family) == 3
    limit = time.monotonic() + 10  # a signal arrives when its process would go on
    while {each.status() for each in family} != {psutil.STATUS_STOPPED}:
        assert time.monotonic() < limit
        time.sleep(0.01)
    before = [each.cpu_times() for each in family]
    time.sleep(0.1)
    assert [each.cpu_times() for each in family] == before
    # Its processes' time counts: they worked, while it waited for them. Others on this machine may leave them little of
    # it.
    assert turn["cpu_seconds"] > turn["seconds"] / 10
    ceiling.end()
    assert not any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in family)
