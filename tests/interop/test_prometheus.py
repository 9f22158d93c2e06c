"""The metrics: their names, which users' dashboards rely on, and a server that listens where told and shuts down."""

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
from loadax.errors import ArgumentError
from loadax.interop.prometheus import Exporter, serve
from tests.clocks import Machine
from tests.limits import HANG

NAMES = {
    "loadax_steps_total": "counter",
    "loadax_rows_total": "counter",
    "loadax_bytes_total": "counter",
    "loadax_masked_rows_total": "counter",
    "loadax_wait_seconds_total": "counter",
    "loadax_train_seconds_total": "counter",
    "loadax_cpu_seconds_total": "counter",
    'loadax_stage_seconds_total{stage="read"}': "counter",
    'loadax_stage_seconds_total{stage="transform"}': "counter",
    'loadax_stage_seconds_total{stage="assemble"}': "counter",
    'loadax_stage_seconds_total{stage="place"}': "counter",
    "loadax_ready_batches": "gauge",
    "loadax_first_batch_seconds": "gauge",
    "loadax_longest_wait_seconds": "gauge",
    "loadax_workers": "gauge",
    "loadax_step": "gauge",
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


def scrape(exporter: Exporter) -> dict[str, float]:
    with urllib.request.urlopen(exporter.url, timeout=HANG) as answer:
        lines = answer.read().decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


def test_names_are_stable() -> None:
    with loader().iterate() as batches, serve(batches) as exporter:
        next(batches)
        with urllib.request.urlopen(exporter.url, timeout=HANG) as answer:
            text = answer.read().decode()
    kinds = dict(line.split()[2:4] for line in text.splitlines() if line.startswith("# TYPE"))
    found = [line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")]
    assert {name: kinds[name.partition("{")[0]] for name in found} == NAMES
    assert len(found) == len(NAMES)


def test_values_are_those_of_now() -> None:
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


def test_a_loader_shows_the_iterator_that_is_used_now() -> None:
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
def test_it_holds_no_iterator_and_goes_on_with_its_last_figures(of: str, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_the_step_is_that_of_the_run_wherever_it_goes_on() -> None:
    run = Dataloader(np.zeros((320, 4), np.float32), {0: 8, 10: 16}, num_workers=1)
    with run.iterate() as batches, serve(run) as exporter:
        for _ in range(15):
            next(batches)
        assert (scrape(exporter)["loadax_step"], scrape(exporter)["loadax_steps_total"]) == (15, 15)
        batches.set_state(4)
        next(batches)
        assert (scrape(exporter)["loadax_step"], scrape(exporter)["loadax_steps_total"]) == (5, 1)


def test_a_replay_is_shown_as_long_as_it_is_there() -> None:
    replay = loader().replay()
    with serve(replay) as exporter:
        next(replay)
        assert scrape(exporter)["loadax_steps_total"] == 1
        del replay
        gc.collect()
        assert scrape(exporter) == {}


def test_only_this_machine_sees_it() -> None:
    with serve(loader()) as exporter:
        assert exporter.url == f"http://127.0.0.1:{exporter.port}/metrics"
        assert repr(exporter) == f"Exporter('{exporter.url}')"
        assert exporter._server.socket.getsockname()[0] == "127.0.0.1"


def test_it_goes_away() -> None:
    exporter = serve(loader())
    exporter.close()
    exporter.close()
    with pytest.raises(OSError):
        http.client.HTTPConnection("127.0.0.1", exporter.port, timeout=HANG).request("GET", "/metrics")


def test_a_port_that_can_t_be_had() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            ArgumentError,
            match=rf"can't listen on port={port} of host='127.0.0.1' \(.*; pass another one, or port=0",
        ):
            serve(loader(), port=port)


def test_what_has_no_figures() -> None:
    with pytest.raises(ArgumentError, match=r"batches=\[\]: pass a Dataloader, or an iterator of one"):
        serve([])


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ArgumentError, match=r"pip install prometheus-client"):
        serve(loader())
