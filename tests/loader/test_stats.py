"""The numbers add up: rows and bytes exactly, seconds within what the clock on the wall allows."""

import time
from typing import Any

import numpy as np
import pytest

from loadax import Dataloader, from_arrays
from loadax.loader.stats import Stats, Timing
from loadax.protocols import ArraySpec
from loadax.sharding import data_parallel
from tests.loader.oracle import arrays


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
    assert stats.rows_per_second == pytest.approx(stats.rows / stats.elapsed)


def test_seconds_on_one_thread_are_parts_of_the_wait() -> None:
    def slow(batch: Any) -> Any:
        time.sleep(0.01)
        return batch

    with iter(Dataloader(from_arrays(arrays(80)).map_batch(slow), 16, num_workers=0)) as batches:
        for _ in batches:
            time.sleep(0.01)
        stats = batches.stats()
    assert stats.transform >= 0.05
    assert stats.read > 0
    assert stats.assemble > 0
    assert stats.place > 0
    assert stats.read + stats.transform + stats.assemble + stats.place <= stats.wait
    assert stats.wait + 0.05 <= stats.elapsed


def test_a_reader_that_is_ahead_is_not_waited_for() -> None:
    with iter(Dataloader(arrays(800), 16, num_workers=1, prefetch=2)) as batches:
        next(batches)
        before = batches.stats()
        for _ in range(20):
            time.sleep(0.01)
            next(batches)
        after = batches.stats()
    assert after.wait - before.wait < 0.1
    assert after.steps == 21
    assert after.rows >= 21 * 16


def test_looking_does_not_touch() -> None:
    with iter(Dataloader(arrays(80), 16, num_workers=0)) as batches:
        first = batches.stats()
        next(batches)
        assert first.steps == 0
        assert batches.stats().steps == 1


def test_the_look_at_the_first_row_is_not_counted() -> None:
    data = from_arrays(arrays(80)).map(lambda example: {"x": example["label"]})
    with iter(Dataloader(data, 16, mesh=data_parallel(), num_workers=0)) as batches:
        list(batches)
        assert batches.stats().rows == 80


def test_adding() -> None:
    stats = Stats()
    stats.add(Timing(1.0, 2.0, 3.0, 4.0, 5, 6))
    stats.add(Timing(read=0.5, rows=1))
    assert (stats.read, stats.transform, stats.assemble, stats.place, stats.rows, stats.bytes) == (1.5, 2.0, 3.0, 4.0, 6, 6)
    assert Stats().rows_per_second == 0.0
    assert isinstance(np.float64(stats.rows_per_second), float)


def test_one_line() -> None:
    assert str(Stats(wait=0.5, elapsed=10.0)) == "waited 0.500 s of 10.0 s for data (5.0%)"


@pytest.mark.parametrize(("spec", "probed"), [(None, 1), ({"x": ArraySpec((), np.dtype(np.int64))}, 0)])
def test_the_look_at_the_first_row_is_counted_apart(spec: Any, probed: int) -> None:
    data = from_arrays({"x": np.arange(16)}).map(lambda example: example, spec=spec)
    with iter(Dataloader(data, 8)) as batches:
        assert sum(1 for _ in batches) == 2
        assert (batches.stats().probed, batches.stats().rows) == (probed, 16)
