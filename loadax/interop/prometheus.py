"""A run's figures for Prometheus: read from the iterator when somebody asks, and at no other time."""

import weakref
from collections.abc import Callable, Iterator
from typing import Any, final

from loadax.core.arguments import integer, shown, text
from loadax.errors import ArgumentError
from loadax.loader.dataloader import Dataloader
from loadax.loader.metrics.stats import Stats

_COUNTERS: tuple[tuple[str, str, Callable[[Stats], float]], ...] = (
    ("loadax_steps", "Batches handed out.", lambda stats: stats.steps),
    ("loadax_rows", "Rows that this process read.", lambda stats: stats.rows),
    ("loadax_bytes", "Bytes of these rows, as the devices want them.", lambda stats: stats.bytes),
    ("loadax_wait_seconds", "Seconds that training waited for data.", lambda stats: stats.wait),
    ("loadax_train_seconds", "Seconds that training took, from the third step on.", lambda stats: stats.trained),
    ("loadax_cpu_seconds", "Processor seconds of this process, training's own included.", lambda stats: stats.cpu),
)
_GAUGES: tuple[tuple[str, str, Callable[[Stats], float]], ...] = (
    ("loadax_ready_batches", "Placed batches that wait for training.", lambda stats: stats.ready),
    ("loadax_first_batch_seconds", "Seconds that the first batch took.", lambda stats: stats.first),
    ("loadax_longest_wait_seconds", "The longest wait from the third step on.", lambda stats: stats.longest),
    ("loadax_workers", "Threads or processes that read ahead.", lambda stats: stats.workers),
)
_STAGES = ("read", "transform", "assemble", "place")


def serve(batches: Any, port: int = 0, host: str = "127.0.0.1") -> "Exporter":
    """Serves a run's figures for Prometheus to scrape, until it is closed.

    Nothing is counted for it: what `stats()` says is asked for when Prometheus comes. The iterator is not held; when it
    is gone, its last figures are shown on, until there is a new one.

    Args:
        batches: an iterator, or a `Dataloader`, for the iterator of it that was made last: then also
            `for batch in loader:` can be watched, and one run after the other.
        port: to listen on. 0: any that is free; see `url`.
        host: the address to listen on. This machine alone can see it unless you say otherwise, say "0.0.0.0".

    Raises:
        ArgumentError: when prometheus_client is not installed, the port is taken, or `batches` have no figures.

    Examples:
        >>> import numpy as np, urllib.request
        >>> from loadax import Dataloader
        >>> loader = Dataloader(np.zeros((64, 2), np.float32), 8)
        >>> with serve(loader) as exporter, loader.iterate() as batches:
        ...     first = next(batches)
        ...     text = urllib.request.urlopen(exporter.url).read().decode()
        >>> print(*(line for line in text.splitlines() if line.startswith("loadax_steps_total")))
        loadax_steps_total 1.0
    """
    port = integer("port", port, 0, 65535)
    text("host", host, "the address to listen on, such as '127.0.0.1', or '0.0.0.0' for all")
    return Exporter(_finder(batches), port, host)


def _finder(batches: Any) -> Callable[[], Any]:
    if isinstance(batches, Dataloader):
        return lambda: batches.ledger
    ledger = getattr(batches, "ledger", None)
    if ledger is not None:
        return lambda: ledger
    if not hasattr(batches, "stats") or not hasattr(batches, "step"):
        raise ArgumentError(f"batches={shown(batches)}: pass a Dataloader, or an iterator of one: loader.iterate()")
    return weakref.ref(batches)


@final
class Exporter:
    """Listens until it is closed. Made by `serve`.

    Args:
        find: gives the iterator or what it counts; None when there is none.
        port: to listen on; 0 for any.
        host: the address.
    """

    def __init__(self, find: Callable[[], Any], port: int, host: str):
        try:
            from prometheus_client import CollectorRegistry, start_http_server
        except ImportError as error:
            raise ArgumentError(
                "serve() needs prometheus_client, which is not installed; pip install prometheus-client"
            ) from error
        registry = CollectorRegistry()
        registry.register(_Collector(find))
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except (OSError, UnicodeError) as error:
            raise ArgumentError(
                f"port={port!r} of host={host!r} can't be listened on ({error}); "
                "pass another one, or port=0 for any that is free"
            ) from error
        self.port: int = self._server.server_port
        """Where it listens."""
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.port}/metrics"
        """What Prometheus is to scrape."""

    def close(self) -> None:
        """Stops listening. Idempotent."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> "Exporter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Exporter({self.url!r})"


@final
class _Collector:
    """What prometheus_client asks for metrics, at each scrape."""

    def __init__(self, find: Callable[[], Any]):
        self._find = find

    def describe(self) -> list[Any]:
        """Nothing: so that registering this scrapes nothing."""
        return []

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        batches = self._find()
        if batches is None:
            return
        stats: Stats = batches.stats()
        for name, what, value in _COUNTERS:
            yield CounterMetricFamily(name, what, value=value(stats))
        stages = CounterMetricFamily(
            "loadax_stage_seconds", "Seconds of work, summed over all workers.", labels=["stage"]
        )
        for stage in _STAGES:
            stages.add_metric([stage], getattr(stats, stage))
        yield stages
        for name, what, value in _GAUGES:
            yield GaugeMetricFamily(name, what, value=value(stats))
        yield GaugeMetricFamily("loadax_step", "The number of the next step of the run.", value=batches.step)
