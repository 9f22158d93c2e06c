"""A lease in a process that is killed again and again."""

from pathlib import Path

import pytest

from tests.processes.lease_bodies import trained


@pytest.mark.processes
def test_killed_run_trains_on_each_prompt_once_whatever_its_rollout_takes(tmp_path: Path) -> None:
    """A soak of the same: `python -m tests.chaos.leases`."""
    assert sorted(trained(tmp_path, prompts=1_500, kills=3, seed=0)) == list(range(1_500))
