"""`loadax watch`: lines about a running job."""

import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import numpy as np
import pytest

from loadax import Dataloader
from loadax.cli import main, watch
from loadax.cli.watch import status_line
from loadax.interop.prometheus import serve
from tests.limits import HANG


def test_a_running_job(capsys: Any) -> None:
    loader = Dataloader(np.zeros((64, 4), np.float32), 8)
    with loader.iterate() as batches, serve(loader) as exporter:
        next(batches)
        assert main(["watch", f"127.0.0.1:{exporter.port}", "--seconds", "0.01", "--count", "2"]) == 0
        assert capsys.readouterr().out.splitlines() == ["step 1  no step in 0.0 s"] * 2
    assert main(["watch", exporter.url]) == 2
    assert f"{exporter.url} does not answer" in capsys.readouterr().err


def metrics(steps: float, **others: float) -> dict[str, float]:
    scale = {
        "loadax_rows_total": 8,
        "loadax_bytes_total": 1024,
        "loadax_wait_seconds_total": 0.01,
        "read": 0.03,
        "place": 0.01,
    }
    return {
        **{name: steps * each for name, each in scale.items()},
        "loadax_steps_total": steps,
        "loadax_step": 100 + steps,
        "loadax_ready_batches": 2,
        "loadax_workers": 4,
        **others,
    }


def test_a_line_is_about_the_time_between_two_scrapes() -> None:
    assert status_line(metrics(10), metrics(50), 2.0) == (
        "step 150  20.0 steps/s  160 rows/s  20 KiB/s  waited 20%  2 ready  4 workers  read 75% of the work"
    )
    assert status_line(metrics(10), metrics(50, loadax_masked_rows_total=3), 2.0).endswith("  3 rows masked")
    # Another iterator counts from 0.
    assert status_line(metrics(50), metrics(10), 2.0).startswith("step 110  5.0 steps/s  40 rows/s")


class Other(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>\n" if self.path == "/page" else b"python_info 1.0\n")

    def log_message(self, *_: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("path", "message"),
    [("page", "is not a Prometheus endpoint"), ("metrics", "has no metrics of loadax; check the port")],
)
def test_other_servers(path: str, message: str, capsys: Any) -> None:
    with HTTPServer(("127.0.0.1", 0), Other) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        assert main(["watch", f"http://127.0.0.1:{server.server_port}/{path}"]) == 2
        server.shutdown()
        thread.join(HANG)
    assert message in capsys.readouterr().err


def test_endless_answer_is_read_to_a_limit(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless(Other):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            with suppress(OSError):  # the reader has enough
                while True:
                    self.wfile.write(b"python_info 1.0\n" * 1000)

    monkeypatch.setattr(watch, "_LONGEST", 100_000)
    with HTTPServer(("127.0.0.1", 0), Endless) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        assert main(["watch", f"http://127.0.0.1:{server.server_port}/"]) == 2
        server.shutdown()
        thread.join(HANG)
    assert "has no metrics of loadax" in capsys.readouterr().err


def test_what_is_no_url(capsys: Any) -> None:
    assert main(["watch", "file:///etc/passwd"]) == 2
    assert "is not an http URL" in capsys.readouterr().err
