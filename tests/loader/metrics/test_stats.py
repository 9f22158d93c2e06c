"""Statistics add up: rows, bytes, and the seconds of a simulated machine."""

import threading
from functools import partial
from typing import Any

import numpy as np
import pytest

from loadax import Dataloader, from_arrays, from_source
from loadax.loader.metrics.stats import Stats, Timing
from loadax.protocols import ArraySpec, Integers
from tests.clocks import Machine
from tests.limits import until
from tests.loader.oracle import arrays


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("remainder", ["drop", "pad"])
def test_rows_bytes_and_steps(workers: int, remainder: Any) -> None:
    loader = Dataloader(arrays(90), 16, num_epochs=2, num_workers=workers, remainder=remainder)
    with iter(loader) as batches:
        for _ in batches:
            pass
        stats = batches.stats()
    assert stats.steps == len(loader)
    assert stats.rows == (160 if remainder == "drop" else 180)
    # image and tokens: 2 rows of 32 bytes fill their 64; label: 8 of 64; mask: 2 of 64
    each = 8 * (64 + 64 + 64 + (64 if remainder == "pad" else 0))
    assert stats.bytes == len(loader) * each
    assert stats.ready == 0
    assert stats.batch_rows == (160 if remainder == "drop" else 180)
    assert stats.rows_per_second == pytest.approx(stats.batch_rows / stats.active)


def test_seconds_on_one_thread_are_parts_of_the_wait(machine: Machine) -> None:
    machine.tick = 2.0**-20

    def slow(batch: Any) -> Any:
        machine.sleep(0.01)
        return batch

    with iter(Dataloader(from_arrays(arrays(80)).map_batch(slow), 16, num_workers=0)) as batches:
        for _ in batches:
            machine.sleep(0.01)
        stats = batches.stats()
    assert stats.transform == pytest.approx(0.05, rel=1e-3)
    assert stats.read > 0
    assert stats.assemble > 0
    assert stats.place > 0
    assert stats.read + stats.transform + stats.assemble + stats.place <= stats.wait
    assert stats.wait + 0.05 <= stats.elapsed


def test_a_reader_that_is_ahead_is_not_waited_for(machine: Machine) -> None:
    with iter(Dataloader(arrays(800), 16, num_workers=1, prefetch=2)) as batches:
        next(batches)
        before = batches.stats()
        for _ in range(20):
            machine.sleep(0.01)
            next(batches)
        after = batches.stats()
    assert after.wait == before.wait
    assert after.steps == 21
    assert after.rows >= 21 * 16


def test_adding_timings() -> None:
    stats = Stats()
    stats.add(Timing(1.0, 2.0, 3.0, 4.0, 5, 6, read_cpu=0.25, transform_cpu=1.5))
    stats.add(Timing(read=0.5, rows=1, transform_cpu=0.5, worker=4711))
    assert (stats.read, stats.transform, stats.assemble, stats.place) == (1.5, 2.0, 3.0, 4.0)
    assert (stats.rows, stats.bytes, stats.read_cpu, stats.transform_cpu) == (6, 6, 0.25, 2.0)
    assert Stats().rows_per_second == 0.0


def test_the_first_steps_are_counted_apart() -> None:
    stats = Stats()
    for step, (waited, away) in enumerate([(3.0, 9.0), (0.5, 20.0), (0.25, 1.0), (0.125, 2.0)], 10):
        stats.took(step, waited, away, 8)
    assert (stats.steps, stats.wait, stats.first) == (4, 3.875, 3.0)
    assert (stats.measured, stats.waited, stats.trained) == (2, 0.375, 3.0)
    assert (stats.longest, stats.longest_step) == (0.25, 12)
    assert stats.step_seconds == 3.375 / 2
    assert stats.waited_share == 0.375 / 3.375
    assert Stats().step_seconds == Stats().waited_share == 0.0


def test_plus_sums_amounts_and_keeps_the_latest_settings() -> None:
    common: dict[str, Any] = {"probed": 1, "longest": 0.5, "longest_step": 2}
    earlier = Stats(steps=3, wait=1.0, first=0.25, ready=2, workers=1, cpu=1.0, active=2.0, **common)
    changed: dict[str, Any] = {"longest": 0.25, "longest_step": 6, "worker_type": "process"}
    later = Stats(steps=4, wait=2.0, first=0.5, ready=1, workers=2, cpu=0.5, active=1.0, **{**common, **changed})
    both = earlier.plus(later)
    assert (both.first, both.probed) == (0.25, 1)
    assert (both.steps, both.wait, both.ready, both.cpu, both.active) == (7, 3.0, 1, 1.5, 3.0)
    assert (both.longest, both.longest_step) == (0.5, 2)
    assert (both.workers, both.worker_type) == (2, "process")
    assert later.plus(earlier).longest_step == 2
    assert Stats().plus(later) == later


def test_a_run_that_is_over_stands_still(machine: Machine) -> None:
    machine.tick = 2.0**-20
    with iter(Dataloader(arrays(80), 16, num_workers=1)) as batches:
        assert len(list(batches)) == 5
    stats = batches.stats()
    machine.work(60.0)
    assert batches.stats() == stats
    assert 0 < stats.active <= stats.elapsed
    assert (stats.workers, stats.prefetch, stats.prefetch_bytes, stats.worker_type) == (1, 2, 256 << 20, "thread")


def test_processor_seconds_are_not_those_of_sleeping(machine: Machine) -> None:
    class Source:
        spec = ArraySpec((), np.dtype(np.int64))

        def __len__(self) -> int:
            return 80

        def read(self, rows: Integers) -> Any:
            machine.work(0.25)
            return rows

    def slow(batch: Any) -> Any:
        machine.sleep(2.0)
        machine.work(0.5)
        return batch

    with iter(Dataloader(from_source(Source()).map_batch(slow), 16, num_workers=1)) as batches:
        before = batches.stats()
        for _ in batches:
            machine.work(1.0)
    stats = batches.stats()
    assert (stats.steps, stats.transform_cpu, stats.read_cpu) == (5, 2.5, 1.25)
    assert stats.transform >= 12.5  # and more, where it waited for training
    assert stats.cpu - before.cpu <= 8.75
    assert stats.cpu == 8.75  # with training's own


def test_another_thread_counts_no_step_twice() -> None:
    """Where batches of another size begin, what was counted goes over to what counts from there on."""
    data = from_arrays({"x": np.arange(400.0)}).map(lambda example: example)
    loader = Dataloader(data, {0: 8, 20: 80}, num_workers=2)
    seen: list[int] = []
    over = threading.Event()

    def has_looked_again(before: int) -> bool:
        return len(seen) > before

    def watch() -> None:
        while not over.is_set():
            seen.append(batches.stats().steps)

    with iter(loader) as batches:
        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            for _ in range(21):
                next(batches)
                until(partial(has_looked_again, len(seen)))
        finally:
            over.set()
            watcher.join()
        stats = batches.stats()
    assert seen == sorted(seen)
    assert max(seen) <= stats.steps == 21
    assert stats.probed == 1  # one look, which all batch sizes share


def test_one_line() -> None:
    assert str(Stats(wait=0.5, elapsed=10.0)) == "waited 0.500 s of 10.0 s for data (5.0%)"
    assert repr(Stats(wait=0.5, elapsed=10.0)) == "Stats: waited 0.500 s of 10.0 s for data (5.0%)"


def test_settled_leaves_out_early_statistics() -> None:
    early = Stats(steps=2, read=1.0, transform=4.0, cpu=3.0, active=9.0, rows=16, workers=1)
    measured: dict[str, Any] = {"steps": 12, "measured": 10, "waited": 1.0, "rows": 96, "workers": 2, "active": 10.0}
    one = Stats(read=3.0, transform=4.5, cpu=5.0, early=early, **measured)
    settled = one.settled()
    assert (settled.read, settled.transform, settled.cpu, settled.active, settled.rows) == (2.0, 0.5, 2.0, 1.0, 80)
    assert (settled.waited, settled.measured, settled.workers, settled.early) == (1.0, 10, 2, None)
    assert Stats(read=1.0).settled() == Stats(read=1.0)
    idle = Stats(steps=12, read=1.0, transform=4.0, early=early)
    assert idle.settled() is idle  # all was read before
    both = one.plus(one)
    assert both.early == early.plus(early)
    assert both.settled().read == 4.0
    short = Stats(steps=1, read=8.0)  # too short for any of it to be measured
    assert one.plus(short).early == early.plus(short)
    assert short.plus(one).settled().read == 2.0


def test_early_statistics_are_those_of_the_first_two_steps(machine: Machine) -> None:
    machine.tick = 2.0**-20

    def busy(batch: Any) -> Any:
        machine.work(2.0**-8)
        return batch

    with iter(Dataloader(from_arrays(arrays(800)).map_batch(busy), 16, num_workers=1)) as batches:
        next(batches)
        assert batches.stats().early is None
        for _ in range(9):
            next(batches)
        stats = batches.stats()
    early = stats.early
    assert early is not None
    assert (early.steps, early.measured) == (2, 0)
    assert early.wait + stats.waited == pytest.approx(stats.wait)
    assert 0 < early.active < stats.active
    assert 0 < early.cpu < stats.cpu
    assert 0 < early.read <= stats.read


@pytest.mark.parametrize(("spec", "probed"), [(None, 1), ({"x": ArraySpec((), np.dtype(np.int64))}, 0)])
def test_the_look_at_the_first_row_is_counted_apart(spec: Any, probed: int) -> None:
    data = from_arrays({"x": np.arange(16)}).map(lambda example: example, spec=spec)
    with iter(Dataloader(data, 8)) as batches:
        assert sum(1 for _ in batches) == 2
        assert (batches.stats().probed, batches.stats().rows) == (probed, 16)


@pytest.mark.processes
def test_processes_are_counted_and_not_their_threads() -> None:
    with Dataloader(arrays(80), 16, num_workers=2, worker_type="process").iterate() as batches:
        assert len(list(batches)) == 5
        stats = batches.stats()
    assert (stats.workers, stats.at_work, stats.tried, stats.worker_type) == (2, 2, 2, "process")
    assert stats.rows == 80
    assert stats.read > 0
