"""The metrics: their names, which users' dashboards rely on, and a server that listens on one address until closed."""

import gc
import http.client
import socket
import sys
import threading
import urllib.request
import weakref
from typing import Any

import numpy as np
import pytest

from loadax import Dataloader
from loadax.errors import ArgumentError, UnsupportedError
from loadax.interop.prometheus import Exporter, serve
from tests.clocks import Machine
from tests.limits import HANG

COUNTERS = {
    f"loadax_{name}_total" for name in ("steps", "batch_rows", "rows", "bytes", "masked_rows", "refused_requests")
}
COUNTERS |= {f"loadax_{name}_seconds_total" for name in ("wait", "train", "cpu")}
COUNTERS |= {f'loadax_stage_seconds_total{{stage="{stage}"}}' for stage in ("read", "transform", "assemble", "place")}
GAUGES = {
    f"loadax_{name}"
    for name in (
        "ready_batches",
        "requests_in_flight",
        "first_batch_seconds",
        "longest_wait_seconds",
        "workers",
        "step",
    )
}


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Any:
    before = set(threading.enumerate())
    yield
    left = [thread for thread in threading.enumerate() if thread not in before and thread.name != "Thread-tqdm"]
    for thread in left:
        thread.join(HANG)
    assert not [thread for thread in left if thread.is_alive()]


def loader(**options: Any) -> Dataloader:
    return Dataloader(np.zeros((320, 4), np.float32), 8, num_workers=1, **options)


def scraped_text(exporter: Exporter) -> list[str]:
    with urllib.request.urlopen(exporter.url, timeout=HANG) as answer:
        lines: list[str] = answer.read().decode().splitlines()
    return lines


def scrape(exporter: Exporter) -> dict[str, float]:
    samples = (line.rpartition(" ") for line in scraped_text(exporter) if not line.startswith("#"))
    return {name: float(value) for name, _, value in samples}


def test_names_are_stable() -> None:
    with loader().iterate() as batches, serve(batches) as exporter:
        next(batches)
        lines, names = scraped_text(exporter), list(scrape(exporter))
    kinds = dict(line.split()[2:4] for line in lines if line.startswith("# TYPE"))
    assert sorted(names) == sorted(COUNTERS | GAUGES)
    assert all(kinds[name.partition("{")[0]] == ("counter" if name in COUNTERS else "gauge") for name in names)


def test_values() -> None:
    with loader().iterate(start=5) as batches, serve(batches) as exporter:
        assert scrape(exporter)["loadax_steps_total"] == 0
        for _ in range(7):
            next(batches)
        found, stats = scrape(exporter), batches.stats()
        assert found["loadax_steps_total"] == stats.steps == 7
        assert found["loadax_step"] == batches.step == 12
        assert found["loadax_wait_seconds_total"] == pytest.approx(stats.wait)
        assert found["loadax_first_batch_seconds"] == pytest.approx(stats.first)
        assert 56 <= found["loadax_rows_total"] <= stats.rows
        assert found['loadax_stage_seconds_total{stage="place"}'] > 0
        assert found["loadax_workers"] == 1


def test_loader_exports_its_latest_iterator() -> None:
    run = loader(num_epochs=2)
    with serve(run) as exporter:
        assert scrape(exporter) == {}
        for batch in run:
            del batch
            break
        gc.collect()
        assert scrape(exporter)["loadax_steps_total"] == 1
        seen = []
        for epoch in run.epochs():
            for _ in epoch:
                pass
            seen.append(scrape(exporter)["loadax_steps_total"])
        assert seen == [40, 80]


@pytest.mark.parametrize("of", ["iterator", "loader", "epoch"])
def test_exporter_keeps_no_iterator_alive_but_its_last_figures(of: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    machine.tick = 2.0**-20
    run = loader()
    epochs = run.epochs()
    batches: Any = next(epochs) if of == "epoch" else run.iterate(3)
    with serve(run if of == "loader" else batches) as exporter:
        assert scrape(exporter)["loadax_steps_total"] == 0
        for _ in range(7):
            next(batches)
        stats = batches.stats()
        held = weakref.ref(batches)
        del batches, epochs
        gc.collect()
        assert held() is None
        last = scrape(exporter)
        assert (last["loadax_steps_total"], last["loadax_ready_batches"]) == (7, 0)
        assert last["loadax_step"] == (7 if of == "epoch" else 10)
        assert last["loadax_wait_seconds_total"] == pytest.approx(stats.wait)
        machine.work(60.0)
        assert scrape(exporter) == last
        with run.iterate():
            assert (scrape(exporter) == last) == (of != "loader")


def test_step_follows_batch_sizes_and_set_state() -> None:
    run = Dataloader(np.zeros((320, 4), np.float32), {0: 8, 10: 16}, num_workers=1)
    with run.iterate() as batches, serve(run) as exporter:
        for _ in range(15):
            next(batches)
        assert (scrape(exporter)["loadax_step"], scrape(exporter)["loadax_steps_total"]) == (15, 15)
        batches.set_state(4)
        next(batches)
        assert (scrape(exporter)["loadax_step"], scrape(exporter)["loadax_steps_total"]) == (5, 1)


def test_listens_on_loopback_until_closed() -> None:
    exporter = serve(loader())
    assert exporter.url == f"http://127.0.0.1:{exporter.port}/metrics"
    assert exporter._server.socket.getsockname()[0] == "127.0.0.1"
    exporter.close()
    exporter.close()
    with pytest.raises(OSError):
        http.client.HTTPConnection("127.0.0.1", exporter.port, timeout=HANG).request("GET", "/metrics")


def test_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        message = rf"can't listen on port={port} of host='127.0.0.1' \(.*; pass another, or port=0"
        with pytest.raises(ArgumentError, match=message):
            serve(loader(), port=port)


def test_objects_without_statistics_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"batches=\[\]: pass a Dataloader, or an iterator of one"):
        serve([])


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(UnsupportedError, match=r"pip install prometheus-client"):
        serve(loader())
