"""The instruments: the names of Prometheus where a collector passes them on, and values read at each collection."""

import gc
import sys
import weakref
from typing import Any

import numpy as np
import pytest

from loadax import Dataloader
from loadax.errors import ArgumentError, UnsupportedError
from loadax.interop.opentelemetry import observe
from tests.interop.test_prometheus import COUNTERS, GAUGES

metrics = pytest.importorskip("opentelemetry.sdk.metrics")
export = pytest.importorskip("opentelemetry.sdk.metrics.export")
api = pytest.importorskip("opentelemetry.metrics")


def loader(**options: Any) -> Dataloader:
    return Dataloader(np.zeros((320, 4), np.float32), 8, num_workers=1, **options)


def observed(batches: Any) -> Any:
    """A reader in memory of what is observed."""
    reader = export.InMemoryMetricReader()
    observe(batches, metrics.MeterProvider([reader], shutdown_on_exit=False).get_meter("train"))
    return reader


def collected(reader: Any) -> dict[str, Any]:
    data = reader.get_metrics_data()
    if data is None:
        return {}
    return {metric.name: metric for metric in data.resource_metrics[0].scope_metrics[0].metrics}


def values(reader: Any) -> dict[str, Any]:
    return {name: metric.data.data_points[0].value for name, metric in collected(reader).items()}


def as_prometheus(metric: Any) -> str:
    """The name that collectors make: with the unit and `_total`, unless it ends in them."""
    name = metric.name.replace(".", "_")
    unit = {"s": "_seconds", "By": "_bytes", "": ""}[metric.unit]
    name = name if name.endswith(unit) else name + unit
    return name + "_total" if isinstance(metric.data, export.Sum) else name


def test_names_are_those_of_prometheus() -> None:
    with loader().iterate() as batches:
        found = collected(observed(batches))
    assert {as_prometheus(metric) for metric in found.values()} == {
        name.partition("{")[0] for name in COUNTERS | GAUGES
    }
    assert all(metric.description for metric in found.values())
    stages = found["loadax.stage"].data.data_points
    assert [point.attributes["stage"] for point in stages] == ["read", "transform", "assemble", "place"]


def test_values() -> None:
    with loader().iterate(start=5) as batches:
        reader = observed(batches)
        assert values(reader)["loadax.steps"] == 0
        for _ in range(7):
            next(batches)
        found = values(reader)
        stats = batches.stats()
        assert found["loadax.steps"] == stats.steps == 7
        assert found["loadax.step"] == batches.step == 12
        assert found["loadax.wait"] == pytest.approx(stats.wait)
        assert found["loadax.workers"] == 1


def test_a_loader_shows_its_latest_iterator_which_is_not_kept() -> None:
    run = loader()
    reader = observed(run)
    assert collected(reader) == {}
    batches = run.iterate()
    next(batches)
    held = weakref.ref(batches)
    del batches
    gc.collect()
    assert held() is None
    assert values(reader)["loadax.steps"] == 1
    for _ in run:
        pass
    assert values(reader)["loadax.steps"] == 40


def test_the_global_meter_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = export.InMemoryMetricReader()
    provider = metrics.MeterProvider([reader], shutdown_on_exit=False)
    # The global provider can be set once in a process.
    monkeypatch.setattr(api, "get_meter", provider.get_meter)
    run = loader()
    observe(run)
    list(run)
    assert values(reader)["loadax.steps"] == 40


def test_objects_without_statistics_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"batches=\[\]: pass a Dataloader, or an iterator of one"):
        observe([])


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.metrics", None)
    with pytest.raises(UnsupportedError, match=r"pip install opentelemetry-api"):
        observe(loader())


def test_loaders_with_meters_of_their_own_are_both_observed() -> None:
    reader = export.InMemoryMetricReader()
    provider = metrics.MeterProvider([reader], shutdown_on_exit=False)
    loaders = {"train": loader(), "validation": loader(num_epochs=2)}
    for name, batches in loaders.items():
        observe(batches, provider.get_meter(name))
        assert len(list(batches)) == len(batches)
    scopes = reader.get_metrics_data().resource_metrics[0].scope_metrics
    steps = {scope.scope.name: scope.metrics[0].data.data_points[0].value for scope in scopes}
    assert steps == {"train": 40, "validation": 80}


def test_a_provider_is_refused_as_a_meter() -> None:
    with pytest.raises(ArgumentError, match=r"meter=<.*MeterProvider.*>: pass a meter, such as MeterProvider\("):
        observe(loader(), metrics.MeterProvider(shutdown_on_exit=False))
