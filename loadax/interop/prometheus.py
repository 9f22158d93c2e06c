"""Exports a run's statistics to Prometheus, read from the iterator only when it is scraped."""

from collections.abc import Callable, Iterator
from typing import Any, final

from loadax.core.arguments import integer, text
from loadax.errors import ArgumentError
from loadax.interop.ledgers import ledger_finder
from loadax.loader.metrics.exported import GAUGES, STAGE_TEXT, STEP_TEXT, TOTALS
from loadax.loader.metrics.stats import STAGES, Stats
from loadax.sources.library import require


def serve(batches: Any, port: int = 0, host: str = "127.0.0.1") -> "Exporter":
    """Serves a run's statistics to Prometheus until it is closed.

    Nothing is counted for this: each scrape calls `stats()`. The exporter does not keep the iterator alive; when it is
    gone, its last statistics are served until there is a new one.

    Args:
        batches: Iterator, or a `Dataloader` for its latest iterator. Pass the loader to watch `for batch in loader:`,
            and several runs one after another.
        port: Port to listen on. 0: any free port; see `url`.
        host: Address to listen on. The default is reachable only from this machine; "0.0.0.0" listens on all
            interfaces.

    Raises:
        ArgumentError: If the port is in use, or `batches` has no statistics.
        UnsupportedError: If prometheus_client is not installed.

    Examples:
        >>> import numpy as np, urllib.request
        >>> from loadax import Dataloader
        >>> from loadax.interop.prometheus import serve
        >>> loader = Dataloader(np.zeros((64, 2), np.float32), 8)
        >>> with serve(loader) as exporter, loader.iterate() as batches:
        ...     first = next(batches)
        ...     text = urllib.request.urlopen(exporter.url).read().decode()
        >>> print(*(line for line in text.splitlines() if line.startswith("loadax_steps_total")))
        loadax_steps_total 1.0
    """
    port = integer("port", port, 0, 65535)
    text(
        "host",
        host,
        "the address to listen on, such as '127.0.0.1', or '0.0.0.0' for all",
    )
    return Exporter(ledger_finder(batches), port, host)


@final
class Exporter:
    """An HTTP server for Prometheus, made by `serve`.

    Args:
        find: Returns the iterator or its counters; None if there is none.
        port: Port to listen on; 0 for any free port.
        host: Address to listen on.

    Attributes:
        port: Port that it listens on.
        url: URL for Prometheus to scrape.
    """

    def __init__(self, find: Callable[[], Any], port: int, host: str):
        require(
            "loadax.interop.prometheus",
            {"prometheus-client": "prometheus_client"},
            "prometheus",
        )
        from prometheus_client import CollectorRegistry, start_http_server

        registry = CollectorRegistry()
        registry.register(_Collector(find))
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except (OSError, UnicodeError) as error:
            raise ArgumentError(
                f"can't listen on port={port!r} of host={host!r} ({error}); pass "
                "another, or port=0 for any free port"
            ) from error
        self.port: int = self._server.server_port
        self.url = (
            f"http://{f'[{host}]' if ':' in host else host}:{self.port}/metrics"
        )

    def close(self) -> None:
        """Stops listening. Idempotent."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> "Exporter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@final
class _Collector:
    """Collects metrics at each scrape, as prometheus_client calls it."""

    def __init__(self, find: Callable[[], Any]):
        self._find = find

    def describe(self) -> list[Any]:
        """Empty, so that registering does not collect."""
        return []

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        batches = self._find()
        if batches is None:
            return
        stats: Stats = batches.stats()
        for name, meaning, value in TOTALS:
            yield CounterMetricFamily(f"loadax_{name}", meaning, value=value(stats))
        stages = CounterMetricFamily(
            "loadax_stage_seconds", STAGE_TEXT, labels=["stage"]
        )
        for stage in STAGES:
            stages.add_metric([stage], getattr(stats, stage))
        yield stages
        for name, meaning, value in GAUGES:
            yield GaugeMetricFamily(f"loadax_{name}", meaning, value=value(stats))
        yield GaugeMetricFamily("loadax_step", STEP_TEXT, value=batches.step)
