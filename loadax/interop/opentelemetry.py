"""Exports a run's statistics by OpenTelemetry, read from the iterator only when a reader collects them."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from loadax.core.arguments import shown
from loadax.core.version import __version__
from loadax.errors import ArgumentError
from loadax.interop.ledgers import ledger_finder
from loadax.loader.metrics import exported
from loadax.loader.metrics.stats import STAGES
from loadax.loader.stretch import Ledger
from loadax.sources.library import require

# Numbers with their attributes.
_Values = Iterable[tuple[float, dict[str, str]]]


def observe(batches: Any, meter: Any = None) -> None:
    """Registers a run's statistics as asynchronous instruments, for the exporters of your `MeterProvider`.

    Names are those of Prometheus with dots, without the unit: `loadax.wait`, in `s`, becomes
    `loadax_wait_seconds_total` where a collector passes it on to Prometheus. The iterator is not kept alive; when it is
    gone, its last statistics are collected. Call it once a loader, since OpenTelemetry can't remove instruments, and
    pass each of several loaders a meter of its own name, since it keeps the first instrument of a name alone.

    Args:
        batches: Iterator, or a `Dataloader` for its latest iterator. Pass the loader to watch `for batch in loader:`,
            and several runs one after another.
        meter: Meter of OpenTelemetry. None: that of the global `MeterProvider`.

    Raises:
        ArgumentError: If `batches` has no statistics, or `meter` is not a meter.
        UnsupportedError: If opentelemetry-api is not installed.

    Examples:
        >>> import numpy as np
        >>> from opentelemetry.sdk.metrics import MeterProvider
        >>> from opentelemetry.sdk.metrics.export import InMemoryMetricReader
        >>> from loadax import Dataloader
        >>> from loadax.interop.opentelemetry import observe
        >>> reader = InMemoryMetricReader()
        >>> loader = Dataloader(np.zeros((64, 2), np.float32), 8)
        >>> observe(loader, MeterProvider([reader]).get_meter("train"))
        >>> for batch in loader:
        ...     pass
        >>> metrics = reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
        >>> [(metric.name, metric.data.data_points[0].value) for metric in metrics[:2]]
        [('loadax.steps', 8), ('loadax.batch_rows', 64)]
    """
    require(
        "loadax.interop.opentelemetry",
        {"opentelemetry-api": "opentelemetry.metrics"},
        "opentelemetry",
    )
    from opentelemetry import metrics

    if meter is None:
        meter = metrics.get_meter("loadax", __version__)
    if not isinstance(meter, metrics.Meter):
        raise ArgumentError(
            f"meter={shown(meter)}: pass a meter, such as "
            "MeterProvider(…).get_meter('train')"
        )
    counter = meter.create_observable_counter
    gauge = meter.create_observable_gauge
    find = ledger_finder(batches)
    for create, measured in ((counter, exported.TOTALS), (gauge, exported.GAUGES)):
        for metric in measured:
            name, unit = _name_and_unit(metric.name)
            callback = partial(_observe, find, partial(_value, metric))
            create(f"loadax.{name}", [callback], unit, metric.text)
    counter(
        "loadax.stage", [partial(_observe, find, _stages)], "s", exported.STAGE_TEXT
    )
    step = partial(_observe, find, lambda ledger: [(ledger.step, {})])
    gauge("loadax.step", [step], "", exported.STEP_TEXT)


def _name_and_unit(name: str) -> tuple[str, str]:
    if name.endswith("_seconds"):
        return name.removesuffix("_seconds"), "s"
    return name, "By" if name == "bytes" else ""


def _observe(
    find: Callable[[], Ledger | None],
    read: Callable[[Ledger], _Values],
    _options: object,
) -> Iterator[Any]:
    """Observations of one instrument, as OpenTelemetry calls it at each collection."""
    from opentelemetry.metrics import Observation

    ledger = find()
    if ledger is not None:
        for value, attributes in read(ledger):
            yield Observation(value, attributes)


def _value(metric: exported.Metric, ledger: Ledger) -> _Values:
    yield metric.value(ledger.stats()), {}


def _stages(ledger: Ledger) -> _Values:
    stats = ledger.stats()
    for stage in STAGES:
        yield getattr(stats, stage), {"stage": stage}
