"""Law: whoever is killed, batches and states are those of a loader that reads by itself."""

from contextlib import closing
from pathlib import Path

import pytest

from tests.chaos.remote import BATCH, kill_while_reading
from tests.engines import DaskCluster


@pytest.mark.processes
@pytest.mark.timeout(200)
def test_batches_stay_when_dask_workers_are_killed(tmp_path: Path) -> None:
    """`python -m tests.chaos.remote` kills one every second for twenty seconds."""
    with closing(DaskCluster()) as cluster:
        outcome = kill_while_reading(cluster, tmp_path, 3, 1.0, 0.002, print)
    assert outcome.steps > 0
    # Rows are decoded twice only if they were given out twice, or read here too, in pieces of up to 16 steps; or if
    # they were read ahead when the run ended.
    assert outcome.extra <= 16 * BATCH * (outcome.again + 16) + outcome.here
