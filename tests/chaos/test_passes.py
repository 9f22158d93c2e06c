"""Law: whoever is killed, a pass ends with the index of one thread, and does nothing again that was finished."""

from pathlib import Path
from random import Random

import pytest

from tests.chaos.passes import kill_in_pass


@pytest.mark.processes
@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", ["threads", "processes"])
def test_pass_with_killed_workers_and_drivers_repeats_nothing_finished(name: str, tmp_path: Path) -> None:
    """`python -m tests.chaos.passes` has 1,000 parts, all engines, and kills ten workers and three drivers on each."""
    kill_in_pass(name, tmp_path, 150, 2, 1, Random(f"1 {name}"))
