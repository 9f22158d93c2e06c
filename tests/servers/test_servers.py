"""The servers that other tests use do what they say, as a bare HTTP client sees it."""

import http.client
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.limits import ENDLESS, HANG, until
from tests.servers.child import ChildServer, run_python
from tests.servers.faults import Exchange, Fault, FaultProxy
from tests.servers.ranges import RangeServer

pytest_plugins = ["tests.servers.fixtures"]

TEXT = bytes(range(256)) * 8


def ask(url: str, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    with closing(http.client.HTTPConnection(urlsplit(url).netloc, timeout=HANG)) as connection:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read()


@pytest.fixture
def proxy(http_proxy: FaultProxy, tmp_path: Path) -> FaultProxy:
    """A proxy before two files, `text` and `other`."""
    for name in ("text", "other"):
        (tmp_path / name).write_bytes(TEXT)
    return http_proxy


class TestRangeServer:
    @pytest.mark.parametrize(
        ("header", "status", "span"),
        [
            ("bytes=0-0", 206, (0, 1)),
            ("bytes=5-9999", 206, (5, 2048)),
            ("bytes=2000-", 206, (2000, 2048)),
            ("bytes=-48", 206, (2000, 2048)),
            ("bytes=-9999", 206, (0, 2048)),
            ("bytes=2048-", 416, (0, 0)),
            ("bytes=-0", 416, (0, 0)),
            ("bytes=0-1,4-5", 200, (0, 2048)),
        ],
    )
    def test_ranges(self, header: str, status: int, span: tuple[int, int], proxy: FaultProxy) -> None:
        found, headers, body = ask(proxy.url, "/text", Range=header)
        assert (found, body, headers["Content-Length"]) == (status, TEXT[slice(*span)], str(len(body)))
        expected = {206: f"bytes {span[0]}-{span[1] - 1}/2048", 416: "bytes */2048"}
        assert headers.get("Content-Range") == expected.get(status)

    @pytest.mark.parametrize("path", ["/none", "/folder", "/../outside", "/%2e%2e/outside"])
    def test_only_files_below_the_folder_are_found(self, path: str, tmp_path: Path) -> None:
        (tmp_path / "outside").write_bytes(TEXT)
        (tmp_path / "root" / "folder").mkdir(parents=True)
        with closing(RangeServer(tmp_path / "root")) as server:
            assert ask(server.url, path)[0] == 404
        with pytest.raises(ConnectionRefusedError):
            ask(server.url, path)

    def test_a_file_has_a_tag_until_it_changes(self, proxy: FaultProxy, tmp_path: Path) -> None:
        tag = ask(proxy.url, "/text", "HEAD")[1]["ETag"]
        assert ask(proxy.url, "/text", If_None_Match=tag)[::2] == (304, b"")
        assert ask(proxy.url, "/text", If_Match=tag)[::2] == (200, TEXT)
        (tmp_path / "text").write_bytes(TEXT[1:])
        assert ask(proxy.url, "/text", If_None_Match=tag)[::2] == (200, TEXT[1:])
        assert ask(proxy.url, "/text", If_Match=tag)[::2] == (412, b"")


class TestFaultProxy:
    def test_everything_passes_through_and_is_counted(self, proxy: FaultProxy) -> None:
        assert ask(proxy.url, "/text?a=b", Range="bytes=-7")[::2] == (206, TEXT[-7:])
        assert ask(proxy.url, "/text", "HEAD")[::2] == (200, b"")
        assert ask(proxy.url, "/none")[0] == 404
        assert proxy.log == [
            Exchange("GET", "/text?a=b", "bytes=-7", 206, 7),
            Exchange("HEAD", "/text", None, 200, 0),
            Exchange("GET", "/none", None, 404, 9),
        ]
        assert proxy.requests == {"/text?a=b": 1, "/text": 1, "/none": 1}
        assert proxy.bytes_sent == {"/text?a=b": 7, "/text": 0, "/none": 9}
        proxy.clear()
        assert proxy.log == []

    @pytest.mark.parametrize(
        ("status", "code"),
        [(403, b"AccessDenied"), (404, b"NoSuchKey"), (429, b"TooMany"), (500, b"Internal"), (503, b"SlowDown")],
    )
    def test_status_has_the_code_of_s3(self, status: int, code: bytes, proxy: FaultProxy) -> None:
        proxy.add(fault := Fault("status", status=status, times=1))
        found, _, body = ask(proxy.url, "/text")
        assert (found, b"<Code>" + code in body, fault.hits) == (status, True, 1)
        assert ask(proxy.url, "/text")[2] == TEXT

    def test_faults_happen_to_requests_that_match(self, proxy: FaultProxy) -> None:
        proxy.add(Fault("status", match="oth", every=2, times=2))
        found = [ask(proxy.url, path)[0] for path in ("/text", "/other") * 6]
        assert found[::2] == [200] * 6
        assert found[1::2] == [503, 200, 503, 200, 200, 200]
        proxy.clear()
        proxy.add(Fault("status", match=lambda path, span: span == "bytes=0-3"))
        assert [ask(proxy.url, "/text")[0], ask(proxy.url, "/text", Range="bytes=0-3")[0]] == [200, 503]

    @pytest.mark.parametrize(
        ("kind", "error"), [("reset", ConnectionResetError), ("truncate", http.client.IncompleteRead)]
    )
    def test_broken_connections(self, kind: Any, error: type[Exception], proxy: FaultProxy) -> None:
        proxy.add(Fault(kind, times=1))
        with pytest.raises((error, http.client.IncompleteRead)):
            ask(proxy.url, "/text")
        assert proxy.bytes_sent == {"/text": 1024}
        assert ask(proxy.url, "/text")[2] == TEXT

    def test_one_corrupt_byte(self, proxy: FaultProxy) -> None:
        proxy.add(Fault("corrupt", times=1))
        body = ask(proxy.url, "/text")[2]
        assert [at for at, (left, right) in enumerate(zip(body, TEXT, strict=True)) if left != right] == [1024]

    def test_waits(self, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> None:
        """No answer before all 16 requests are there, then each is late; pieces come one by one."""
        seconds: list[float] = []
        monkeypatch.setattr(proxy, "closing", SimpleNamespace(wait=seconds.append, is_set=lambda: False))
        proxy.add(Fault("together", many=16), Fault("delay", seconds=0.3))
        with ThreadPoolExecutor(16) as pool:
            assert [*pool.map(lambda _: ask(proxy.url, "/text")[2], range(16))] == [TEXT] * 16
        assert seconds == [0.3] * 16
        proxy.clear()
        seconds.clear()
        proxy.add(Fault("drip", seconds=0.05))
        assert ask(proxy.url, "/text")[2] == TEXT
        assert seconds == [0.05] * 7

    @pytest.mark.parametrize("fault", [Fault("silent"), Fault("together", many=2), Fault("delay", seconds=ENDLESS)])
    def test_close_ends_all_that_waits(self, fault: Fault, proxy: FaultProxy) -> None:
        before = {*threading.enumerate()}
        proxy.add(fault)
        with ThreadPoolExecutor(1) as pool:
            waits = pool.submit(ask, proxy.url, "/text")
            until(lambda: fault.hits)
            with pytest.raises(TimeoutError):
                waits.result(0.1)
            proxy.close()
            waits.exception(HANG)
        assert before - {*threading.enumerate()}  # its own thread has ended
        until(lambda: not any("process_request" in each.name for each in {*threading.enumerate()} - before))


class TestChildren:
    def test_a_server_serves_until_it_is_closed(self, tmp_path: Path) -> None:
        (tmp_path / "text").write_bytes(TEXT)
        command = ["-m", "http.server", "--bind", "127.0.0.1", "--directory", str(tmp_path)]
        server = ChildServer(lambda port: [*command, str(port)], "/text")
        server.close()
        with pytest.raises(urllib.error.URLError):
            urllib.request.urlopen(f"{server.url}/text", timeout=HANG)
        with pytest.raises(RuntimeError, match=r"(?s)did not start.*no port today"):
            ChildServer(lambda port: ["-c", "raise SystemExit('no port today')"], "/")

    def test_environment_of_a_process_of_its_own(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("KEPT", "1")
        monkeypatch.setenv("TAKEN", "1")
        code = "import os, tests.servers.child; print([os.environ.get(name) for name in ('KEPT', 'TAKEN', 'ADDED')])"
        assert run_python(code, {"TAKEN": None, "ADDED": "2"}) == "['1', None, '2']\n"

    @pytest.mark.parametrize("code", ["raise SystemExit('too bad')", "import warnings; warnings.warn('too bad')"])
    def test_its_failure_is_the_tests(self, code: str) -> None:
        with pytest.raises(pytest.fail.Exception, match=r"(?s)exit code 1.*too bad"):
            run_python(code)

    def test_late_process_is_killed(self) -> None:
        code = f"import time; print('about to sleep', flush=True); time.sleep({ENDLESS})"
        with pytest.raises(pytest.fail.Exception, match=r"(?s)still running after 5 s:.*about to sleep"):
            run_python(code, timeout=5)
