"""Numbers for dashboards: the same names in each call, floats, totals of the statistics, rates of the last steps."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import loadax
from loadax import Dataloader
from loadax.loader.metrics.exported import GAUGES, TOTALS, Rates
from loadax.loader.metrics.stats import STAGES, Stats
from loadax.loader.reports.run_record import run_record
from loadax.sharding import data_parallel
from tests.clocks import Machine

RATES = {"step_seconds", "rows_per_second", "waited_share"}
NAMES = {"step", *RATES, *(metric.name for metric in (*GAUGES, *TOTALS)), *(f"{stage}_seconds" for stage in STAGES)}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def loader(rows: int = 320, **options: Any) -> Dataloader:
    return Dataloader(np.zeros((rows, 4), np.float32), 8, num_workers=1, **options)


def test_all_numbers_are_floats_with_the_same_names_in_each_call() -> None:
    with loader().iterate() as batches:
        calls = [batches.metrics(), *(batches.metrics() for _ in batches)]
    assert len(calls) == 41
    for metrics in calls:
        assert set(metrics) == {f"loadax/{name}" for name in NAMES}
        assert {type(value) for value in metrics.values()} == {float}
    assert json.loads(json.dumps(calls)) == calls
    assert [metrics["loadax/step"] for metrics in calls] == [*range(41)]


def test_totals_are_those_of_the_statistics() -> None:
    with loader().iterate(start=5) as batches:
        for _ in range(7):
            next(batches)
        metrics = batches.metrics()
        stats = batches.stats()
    assert metrics["loadax/step"] == 12
    assert metrics["loadax/steps"] == stats.steps == 7
    assert metrics["loadax/wait_seconds"] == stats.wait > 0
    assert metrics["loadax/read_seconds"] > 0


def test_rates_are_of_the_steps_since_the_call_before(machine: Machine) -> None:
    def slow_at_first(batch: Any, rows: Any) -> Any:
        machine.sleep(0.03 if rows[0] < 80 else 0.0)
        return batch

    data = loadax.from_arrays(np.arange(320)).map_batch(slow_at_first, with_index=True)
    with Dataloader(data, 8, num_workers=0, prefetch=0).iterate() as batches:
        assert {batches.metrics()[f"loadax/{name}"] for name in RATES} == {0.0}
        rates: list[Any] = []
        for step, _ in enumerate(batches, 1):
            if step % 10 == 0:
                metrics = batches.metrics()
                assert batches.metrics() == metrics  # another call at the same step
                rates.append((metrics["loadax/step_seconds"], metrics["loadax/waited_share"]))
            machine.sleep(0.01)
    # 9 steps of training before the tenth batch, then 10 before each of the others
    assert rates[0] == pytest.approx((0.039, 0.3 / 0.39))
    for later in rates[1:]:
        assert later == pytest.approx((0.01, 0.0), abs=1e-3)


def test_rows_per_second_are_those_of_the_batches() -> None:
    rates = Rates()
    rates.at(Stats(steps=2, rows=900, batch_rows=100, active=1.0))
    assert rates.at(Stats(steps=6, rows=900, batch_rows=400, active=3.0, wait=1.5)) == {
        "step_seconds": 0.5,
        "rows_per_second": 150.0,
        "waited_share": 0.75,
    }


def test_statistics_that_begin_again_begin_the_rates_again() -> None:
    with loader(800).iterate() as batches:
        for _ in range(5):
            next(batches)
        batches.metrics()
        batches.set_state(0)
        for _ in range(20):
            next(batches)
        metrics = batches.metrics()
    assert metrics["loadax/steps"] == 20
    assert metrics["loadax/rows_per_second"] > 0
    assert 0 <= metrics["loadax/waited_share"] <= 1


@pytest.mark.parametrize(("rank", "read"), [(0, 52), (1, 48)])
def test_batch_rows_are_those_of_all_shards_without_padding(rank: int, read: int) -> None:
    data = {"x": np.zeros(100)}
    run = Dataloader(data, 16, remainder="pad", shard_index=rank, shard_count=2, num_workers=1)
    with run.iterate() as batches:
        taken = [batches.metrics()["loadax/batch_rows"] for _ in batches]
    report = batches.report()
    assert taken == [16, 32, 48, 64, 80, 96, 100]
    assert (report.stats.batch_rows, report.stats.rows) == (100, read)
    assert report.stats.rows_per_second == pytest.approx(100 / report.stats.active)
    assert report.snapshot is not None
    record = run_record(report, report.snapshot)
    assert ["rows per second", f"{report.stats.rows_per_second:,.0f}"] in record.numbers
    assert sum(rows for *_, rows, _ in record.bins) == 100


def test_batch_rows_of_buckets_and_skips_are_counted() -> None:
    rows = loadax.from_source([{"x": np.zeros(length)} for length in (1, 2, 3, 4, 5, 6, 7, 8)])
    run = Dataloader(rows, loadax.Buckets("x", {4: 2, 8: 1}), mesh=data_parallel(jax.devices()[:1]), num_workers=1)
    skipping = Dataloader({"x": np.zeros(100)}, 16, remainder="pad", num_workers=1).skip([0, 2])
    for loader, total in ((run, 8), (skipping, 100 - 32)):
        with loader.iterate() as batches:
            for _ in batches:
                pass
            assert batches.stats().batch_rows == total


def test_an_epoch_and_a_progress_bar_have_them_too() -> None:
    for epoch in loader(num_epochs=2).epochs():
        with loadax.progress(epoch, disable=True) as batches:
            for _ in batches:
                pass
            assert batches.metrics()["loadax/step"] == batches.step


def test_tensorboard_reads_them_back(tmp_path: Path) -> None:
    tensorboard = pytest.importorskip("tensorboardX")
    event = pytest.importorskip("tensorboardX.proto.event_pb2")
    expected = []
    with tensorboard.SummaryWriter(str(tmp_path)) as writer, loader().iterate() as batches:
        for _ in batches:
            for name, value in batches.metrics().items():
                writer.add_scalar(name, value, batches.step)
                expected.append((batches.step, name, np.float32(value)))
    (path,) = tmp_path.iterdir()
    records = [event.Event.FromString(bytes(record)) for record in loadax.from_tfrecord(str(path))]
    scalars = [(record.step, value.tag, value.simple_value) for record in records for value in record.summary.value]
    assert scalars == expected
    assert len(scalars) == 40 * len(NAMES)


def test_the_guide_lists_all() -> None:
    guide = (Path(__file__).parents[3] / "docs/guides/speed.md").read_text("utf-8")
    assert [name for name in sorted(NAMES) if f"`{name}`" not in guide] == []
