"""What tests measure with: the simulated machine, and counted work."""

import threading
from functools import partial
from typing import Any

import numpy as np
import pytest

from loadax import Dataloader, from_arrays
from tests.clocks import Machine
from tests.work import lines_of, peak_of


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def test_threads_sleep_side_by_side_and_work_one_after_the_other(machine: Machine) -> None:
    spent = []

    def both() -> None:
        machine.sleep(5.0)
        machine.work(2.0)
        spent.append(machine.thread_time())

    began = machine.perf_counter()
    threads = [machine._thread(target=both) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert machine.perf_counter() - began == 11.0
    assert spent == [2.0] * 3
    assert machine.process_time() == 6.0


def test_a_wait_ends_when_it_is_told_or_late(machine: Machine) -> None:
    lock = threading.RLock()
    condition = machine._condition(lock)

    def tell() -> None:
        machine.sleep(3.0)
        with condition:
            condition.notify()

    thread = machine._thread(target=tell)
    began = machine.perf_counter()
    with condition:
        thread.start()
        assert not condition.wait(1.0)
        assert machine.perf_counter() - began == 1.0
        assert condition.wait()
        assert machine.perf_counter() - began == 3.0
    thread.join(1.0)
    assert not thread.is_alive()


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
