"""What tests measure with: the simulated machine, and counted work."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from loadax import Dataloader, from_arrays
from tests.clocks import Machine
from tests.work_counts import lines_of, peak_of


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def test_a_run_takes_the_time_that_the_test_says(machine: Machine) -> None:
    def slow(batch: Any) -> Any:
        machine.work(0.25)
        return batch

    data = from_arrays({"x": np.arange(64)}).map_batch(slow)
    with Dataloader(data, 8, num_workers=1).iterate() as batches:
        list(batches)
        stats = batches.stats()
    assert (stats.transform, stats.transform_cpu, stats.read, stats.place) == (2.0, 2.0, 0.0, 0.0)
    assert stats.wait == stats.elapsed == 2.0


def test_lines_are_counted_in_functions_loops_and_comprehensions() -> None:
    def loop(count: int) -> None:
        for _ in range(count):
            pass

    def both(count: int) -> None:
        loop(count)
        [each + 1 for each in range(count)]

    few, many = (lines_of(partial(both, count)) for count in (10, 1000))
    assert few < 100
    assert many - few >= 990 * 2


def test_memory_is_that_of_the_peak() -> None:
    assert 8_000_000 <= peak_of(lambda: np.zeros(1_000_000).sum()) < 9_000_000
