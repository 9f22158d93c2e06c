"""A preflight finds the faults that its run masks; killed, it reads no row of a finished part twice."""

from pathlib import Path

import pytest

from tests.chaos import preflight
from tests.forkserver import Child


@pytest.mark.processes
@pytest.mark.timeout(200)
def test_preflight_killed_three_times_finds_37_faults_that_the_run_masks(tmp_path: Path) -> None:
    """`python -m tests.chaos.preflight` has 100,000 rows, workers in processes, and the CPU time."""
    data, work = tmp_path / "data", tmp_path / "work"
    data.mkdir()
    work.mkdir()
    planted = preflight.plant(data, 120, seed=1)
    loader = preflight.loader_of(preflight.opened(data))
    assert len(planted.failing) == 37
    assert loader.preflight().quarantine() == preflight.masked_by_run(loader) == planted.failing
    preflight.kill_drivers(planted, work, Child)
