"""The servers that other tests lean on do what they say: seen by a bare HTTP client, and by TensorStore alone."""

import http.client
import re
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import boto3  # type: ignore[import-untyped]
import numpy as np
import pytest
import tensorstore as ts

from tests.limits import ENDLESS, HANG, until
from tests.servers.child import ChildServer, run_python
from tests.servers.faults import Exchange, Fault, FaultProxy
from tests.servers.gcs import GcsServer
from tests.servers.loopback import DeadPort, LoopbackServer, free_port
from tests.servers.ranges import RangeServer
from tests.servers.s3 import S3Server

pytest_plugins = ["tests.servers.fixtures"]

VALUES = np.arange(64 * 8 * 16, dtype=np.float32).reshape(64, 8, 16)
ROW_BYTES = 8 * 16 * 4 + 4  # with the checksum
ROWS = np.random.default_rng(0).permutation(64)[:32]
CODECS = [{"name": "bytes"}, {"name": "crc32c"}]
SHARDED: dict[str, Any] = {
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [16, 8, 16]}},
    "codecs": [{"name": "sharding_indexed", "configuration": {"chunk_shape": [1, 8, 16], "codecs": CODECS}}],
}
CHUNKED: dict[str, Any] = {
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [16, 8, 16]}},
    "codecs": CODECS,
}
RETRIES = {"max_retries": 4, "initial_delay": "10ms", "max_delay": "40ms"}
TEXT = bytes(range(256)) * 8


def write(folder: Path, metadata: dict[str, Any] = SHARDED) -> None:
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{folder}/"}, "metadata": metadata}
    ts.open(spec, create=True, dtype=ts.float32, shape=VALUES.shape).result().write(VALUES).result()


def read(kvstore: dict[str, Any], rows: Any = ROWS) -> Any:
    """The rows, through TensorStore with little patience."""
    context = ts.Context({"http_request_retries": RETRIES, "s3_request_retries": RETRIES})
    spec = {"driver": "zarr3", "kvstore": kvstore, "fill_missing_data_reads": False}
    return ts.open(spec, read=True, context=context).result(timeout=HANG)[rows].read().result(timeout=HANG)


def over_http(url: str) -> dict[str, Any]:
    return {"driver": "http", "base_url": url, "path": "/x/"}


def over_s3(url: str, bucket: str) -> dict[str, Any]:
    credentials = {"type": "environment"}
    where = {"bucket": bucket, "path": "x/", "endpoint": url, "aws_region": "us-east-1"}
    return {"driver": "s3", **where, "aws_credentials": credentials}


def ask(
    url: str, path: str, method: str = "GET", headers: dict[str, str] | None = None
) -> tuple[int, dict[str, str], bytes]:
    with closing(http.client.HTTPConnection(urlsplit(url).netloc, timeout=HANG)) as connection:
        connection.request(method, path, headers=headers or {})
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read()


@pytest.fixture
def proxy(http_proxy: FaultProxy, tmp_path: Path) -> FaultProxy:
    """A proxy before one file, `text`."""
    (tmp_path / "text").write_bytes(TEXT)
    return http_proxy


class TestRangeServer:
    @pytest.mark.parametrize(
        ("header", "status", "span"),
        [
            (None, 200, (0, 2048)),
            ("bytes=0-0", 206, (0, 1)),
            ("bytes=5-2047", 206, (5, 2048)),
            ("bytes=5-9999", 206, (5, 2048)),
            ("bytes=2000-", 206, (2000, 2048)),
            ("bytes=-48", 206, (2000, 2048)),
            ("bytes=-9999", 206, (0, 2048)),
            ("bytes=2048-", 416, (0, 0)),
            ("bytes=-0", 416, (0, 0)),
            ("bytes=9-5", 200, (0, 2048)),
            ("bytes=0-1,4-5", 200, (0, 2048)),
            ("rows=0-1", 200, (0, 2048)),
        ],
    )
    def test_ranges(
        self, header: str | None, status: int, span: tuple[int, int], range_server: RangeServer, tmp_path: Path
    ) -> None:
        (tmp_path / "a b").write_bytes(TEXT)
        wanted = {"Range": header} if header else {}
        found, headers, body = ask(range_server.url, "/a%20b", headers=wanted)
        assert (found, body) == (status, TEXT[slice(*span)])
        assert headers["Content-Length"] == str(len(body))
        assert headers["Accept-Ranges"] == "bytes"
        if status == 206:
            assert headers["Content-Range"] == f"bytes {span[0]}-{span[1] - 1}/2048"
        if status == 416:
            assert headers["Content-Range"] == "bytes */2048"

    def test_a_head_is_a_get_without_body(self, range_server: RangeServer, tmp_path: Path) -> None:
        (tmp_path / "text").write_bytes(TEXT)
        status, headers, body = ask(range_server.url, "/text", "HEAD")
        assert (status, headers["Content-Length"], body) == (200, "2048", b"")

    @pytest.mark.parametrize("path", ["/none", "/", "/folder", "/../outside", "/%2e%2e/outside"])
    def test_what_is_not_there(self, path: str, tmp_path: Path) -> None:
        (tmp_path / "outside").write_bytes(TEXT)
        (tmp_path / "root" / "folder").mkdir(parents=True)
        with closing(RangeServer(tmp_path / "root")) as server:
            assert ask(server.url, path)[0] == 404

    def test_a_file_has_a_tag_until_it_changes(self, range_server: RangeServer, tmp_path: Path) -> None:
        (tmp_path / "text").write_bytes(TEXT)
        tag = ask(range_server.url, "/text")[1]["ETag"]
        assert ask(range_server.url, "/text", headers={"If-None-Match": tag})[::2] == (304, b"")
        assert ask(range_server.url, "/text", headers={"If-Match": tag})[::2] == (200, TEXT)
        (tmp_path / "text").write_bytes(TEXT[1:])
        assert ask(range_server.url, "/text", headers={"If-None-Match": tag})[::2] == (200, TEXT[1:])
        assert ask(range_server.url, "/text", headers={"If-Match": tag})[::2] == (412, b"")

    def test_a_connection_serves_many_requests_and_ends_with_the_server(self, tmp_path: Path) -> None:
        (tmp_path / "text").write_bytes(TEXT)
        before = threading.active_count()
        server = RangeServer(tmp_path)
        with closing(http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=HANG)) as connection:
            connection.connect()
            own = connection.sock
            for path in ("/text", "/none", "/text"):
                connection.request("GET", path)
                connection.getresponse().read()
                assert connection.sock is own
            assert threading.active_count() == before + 2  # who accepts, and the one connection
            server.close()
            assert threading.active_count() == before
            assert own.recv(1) == b""
        with pytest.raises(ConnectionRefusedError):
            ask(server.url, "/text")

    def test_many_connections_at_once(self, range_server: RangeServer, tmp_path: Path) -> None:
        (tmp_path / "text").write_bytes(TEXT)
        with ThreadPoolExecutor(64) as pool:
            answers = list(pool.map(lambda _: ask(range_server.url, "/text")[::2], range(64)))
        assert answers == [(200, TEXT)] * 64
        assert LoopbackServer.request_queue_size >= 64  # else the kernel has some of them try again a second later

    def test_shards_are_read_in_ranges(self, http_proxy: FaultProxy, tmp_path: Path) -> None:
        write(tmp_path / "x")
        np.testing.assert_array_equal(read(over_http(http_proxy.url)), VALUES[ROWS])
        assert {exchange.status for exchange in http_proxy.log if "/c/" in exchange.path} == {206}
        assert sum(http_proxy.bytes_sent.values()) < (tmp_path / "x/c/0/0/0").stat().st_size * 4


class TestS3Server:
    def test_what_was_uploaded_is_read(self, s3_server: S3Server, bucket: str, tmp_path: Path) -> None:
        write(tmp_path / "x")
        s3_server.upload(tmp_path, bucket)
        np.testing.assert_array_equal(read(over_s3(s3_server.url, bucket)), VALUES[ROWS])

    def test_every_bucket_is_a_new_one(self, s3_server: S3Server, bucket: str, tmp_path: Path) -> None:
        write(tmp_path)
        s3_server.upload(tmp_path, bucket, "x/")
        other = s3_server.bucket()
        read(over_s3(s3_server.url, bucket))
        with pytest.raises(ValueError, match="NOT_FOUND"):
            read(over_s3(s3_server.url, other))

    def test_what_was_deleted_is_gone(self, s3_server: S3Server, bucket: str, tmp_path: Path) -> None:
        write(tmp_path)
        s3_server.upload(tmp_path, bucket, "x/")
        s3_server.delete(bucket, "x/c/1/0/0")
        read(over_s3(s3_server.url, bucket), np.arange(16))
        with pytest.raises(ValueError, match="NOT_FOUND"):
            read(over_s3(s3_server.url, bucket), np.arange(17))

    def test_the_environment_of_a_client(
        self, s3_server: S3Server, s3_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Who knows S3 by its environment alone comes to this server, or to the proxy before it."""
        with closing(boto3.client("s3", region_name="us-east-1")) as client:
            names = {bucket["Name"] for bucket in client.list_buckets()["Buckets"]}
            assert s3_server.bucket() not in names
        assert len(s3_proxy.log) == 1
        assert s3_server.environment()["AWS_ENDPOINT_URL"] == s3_server.url
        assert s3_server.environment(s3_proxy.url)["AWS_ENDPOINT_URL"] == s3_proxy.url


class TestGcsServer:
    def test_whole_objects_and_ranges_with_a_start(self, gcs_server: GcsServer, tmp_path: Path) -> None:
        write(tmp_path / "x", CHUNKED)
        (tmp_path / "text").write_bytes(TEXT)
        bucket = gcs_server.bucket()
        gcs_server.upload(tmp_path, bucket, "below/")
        with closing(FaultProxy(gcs_server.url)) as proxy:
            code = f"""
import tensorstore as ts
store = ts.open({{"driver": "zarr3", "kvstore": "gs://{bucket}/below/x/"}}, read=True).result(timeout={HANG})
print(store[5, 3, :4].read().result(timeout={HANG}).tolist())
keys = ts.KvStore.open("gs://{bucket}/below/").result(timeout={HANG})
print(list(keys.read("text", byte_range=slice(10, 14)).result(timeout={HANG}).value))
print(sorted(keys.list().result(timeout={HANG}))[:2])
"""
            printed = run_python(code, gcs_server.environment(proxy.url)).splitlines()
            assert proxy.requests
        assert printed[-3:] == [str(VALUES[5, 3, :4].tolist()), "[10, 11, 12, 13]", "[b'text', b'x/c/0/0/0']"]


class TestFaultProxy:
    def test_everything_passes_through_and_is_counted(self, proxy: FaultProxy, tmp_path: Path) -> None:
        (tmp_path / "other").write_bytes(TEXT[:100])
        assert ask(proxy.url, "/text")[::2] == (200, TEXT)
        status, headers, body = ask(proxy.url, "/text?a=b", headers={"Range": "bytes=-7"})
        assert (status, headers["Content-Range"], body) == (206, "bytes 2041-2047/2048", TEXT[-7:])
        status, headers, body = ask(proxy.url, "/text", "HEAD")
        assert (status, headers["Content-Length"], body) == (200, "2048", b"")
        assert ask(proxy.url, "/other")[2] == TEXT[:100]
        assert ask(proxy.url, "/none")[0] == 404
        assert proxy.log == [
            Exchange("GET", "/text", None, 200, 2048),
            Exchange("GET", "/text?a=b", "bytes=-7", 206, 7),
            Exchange("HEAD", "/text", None, 200, 0),
            Exchange("GET", "/other", None, 200, 100),
            Exchange("GET", "/none", None, 404, 9),
        ]
        assert proxy.requests == {"/text": 2, "/text?a=b": 1, "/other": 1, "/none": 1}
        assert proxy.bytes_sent == {"/text": 2048, "/text?a=b": 7, "/other": 100, "/none": 9}
        proxy.clear()
        assert proxy.log == []

    def test_a_body_reaches_the_server(self, s3_server: S3Server, s3_proxy: FaultProxy, bucket: str) -> None:
        keys = ts.KvStore.open(over_s3(s3_proxy.url, bucket)).result(timeout=HANG)
        keys.write("a b/ü", TEXT).result(timeout=HANG)
        assert keys.read("a b/ü").result(timeout=HANG).value == TEXT
        assert [exchange.method for exchange in s3_proxy.log] == ["PUT", "GET"]

    def test_status(self, proxy: FaultProxy) -> None:
        fault = Fault("status", times=2)
        proxy.add(fault)
        answers = [ask(proxy.url, "/text") for _ in range(4)]
        assert [status for status, _, _ in answers] == [503, 503, 200, 200]
        assert b"<Code>SlowDown</Code>" in answers[0][2]
        assert fault.hits == 2

    @pytest.mark.parametrize(
        ("status", "code"), [(403, "AccessDenied"), (404, "NoSuchKey"), (429, "TooMany"), (500, "Internal")]
    )
    def test_other_status(self, status: int, code: str, proxy: FaultProxy) -> None:
        proxy.add(Fault("status", status=status))
        found, _, body = ask(proxy.url, "/text")
        assert found == status
        assert f"<Code>{code}".encode() in body

    def test_which_requests(self, proxy: FaultProxy, tmp_path: Path) -> None:
        (tmp_path / "other").write_bytes(TEXT)
        proxy.add(Fault("status", match="oth", every=2, times=2))
        found = [ask(proxy.url, path)[0] for path in ("/text", "/other") * 6]
        assert found[::2] == [200] * 6
        assert found[1::2] == [503, 200, 503, 200, 200, 200]
        proxy.clear()
        proxy.add(Fault("status", match=lambda path, span: span == "bytes=0-3"))
        assert ask(proxy.url, "/text")[0] == 200
        assert ask(proxy.url, "/text", headers={"Range": "bytes=0-3"})[0] == 503

    def test_reset(self, proxy: FaultProxy) -> None:
        proxy.add(Fault("reset", times=1))
        with pytest.raises((ConnectionResetError, http.client.IncompleteRead)):
            ask(proxy.url, "/text")
        assert proxy.bytes_sent == {"/text": 1024}
        assert ask(proxy.url, "/text")[2] == TEXT

    def test_a_reset_is_one_for_the_kernel_too(self, proxy: FaultProxy) -> None:
        proxy.add(Fault("reset"))
        address = urlsplit(proxy.url)
        with socket.create_connection((str(address.hostname), int(address.port or 0)), timeout=HANG) as connection:
            connection.sendall(b"GET /text HTTP/1.1\r\nHost: x\r\n\r\n")
            with pytest.raises(ConnectionResetError):
                list(iter(lambda: connection.recv(1 << 16), b""))

    def test_truncate(self, proxy: FaultProxy) -> None:
        proxy.add(Fault("truncate", times=1))
        with pytest.raises(http.client.IncompleteRead, match=r"1024 bytes read, 1024 more expected"):
            ask(proxy.url, "/text")
        assert ask(proxy.url, "/text")[2] == TEXT

    def test_corrupt(self, proxy: FaultProxy) -> None:
        proxy.add(Fault("corrupt", times=1))
        body = ask(proxy.url, "/text")[2]
        assert [at for at, (left, right) in enumerate(zip(body, TEXT, strict=True)) if left != right] == [1024]
        assert ask(proxy.url, "/text")[2] == TEXT

    @pytest.fixture
    def waits(self, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        """Seconds that the proxy has waited, one by one; it does not."""
        seconds: list[float] = []
        monkeypatch.setattr(proxy, "closing", SimpleNamespace(wait=seconds.append, is_set=lambda: False))
        return seconds

    def test_requests_wait_side_by_side(self, proxy: FaultProxy, waits: list[float]) -> None:
        proxy.add(Fault("together", many=16), Fault("delay", seconds=0.3))
        with ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(lambda _: ask(proxy.url, "/text")[2], range(16)))
        assert answers == [TEXT] * 16
        assert waits == [0.3] * 16

    def test_those_who_wait_for_others_do_not_hold_up_the_end(self, proxy: FaultProxy) -> None:
        proxy.add(fault := Fault("together", many=2))
        with ThreadPoolExecutor(1) as pool:
            waits = pool.submit(ask, proxy.url, "/text")
            until(lambda: fault.hits)
            assert not waits.done()
            proxy.close()
            waits.exception(HANG)

    def test_drip(self, proxy: FaultProxy, waits: list[float]) -> None:
        proxy.add(Fault("drip", seconds=0.05))
        assert ask(proxy.url, "/text")[2] == TEXT
        assert waits == [0.05] * 7

    def test_silence_lasts_until_the_proxy_ends(self, proxy: FaultProxy) -> None:
        before = threading.active_count()
        proxy.add(Fault("silent", times=1))
        with ThreadPoolExecutor(1) as pool:
            waits = pool.submit(ask, proxy.url, "/text")
            with pytest.raises(TimeoutError):
                waits.result(0.3)
            assert ask(proxy.url, "/text")[2] == TEXT
            assert [exchange.status for exchange in proxy.log] == [0, 200]
            proxy.close()
            assert isinstance(waits.exception(HANG), http.client.RemoteDisconnected)
        assert threading.active_count() < before

    def test_a_delay_does_not_hold_up_the_end(self, proxy: FaultProxy) -> None:
        proxy.add(Fault("delay", seconds=ENDLESS))
        with ThreadPoolExecutor(1) as pool:
            waits = pool.submit(ask, proxy.url, "/text")
            until(lambda: any(fault.hits for fault in proxy._faults))
            proxy.close()
            waits.exception(HANG)


@pytest.fixture(params=["http", "s3"])
def store(
    request: pytest.FixtureRequest, s3_server: S3Server, tmp_path: Path
) -> Iterator[tuple[FaultProxy, dict[str, Any]]]:
    """An array of four shards behind a proxy, and where TensorStore finds it."""
    write(tmp_path / "x")
    if request.param == "s3":
        bucket = s3_server.bucket()
        s3_server.upload(tmp_path, bucket)
        with pytest.MonkeyPatch.context() as patch, closing(FaultProxy(s3_server.url)) as proxy:
            for name, value in s3_server.environment(proxy.url).items():
                patch.setenv(name, value)
            yield proxy, over_s3(proxy.url, bucket)
    else:
        with closing(RangeServer(tmp_path)) as server, closing(FaultProxy(server.url)) as proxy:
            yield proxy, over_http(proxy.url)


class TestTensorStoreSeesTheFaults:
    def test_the_bytes_are_those_of_the_rows(self, store: tuple[FaultProxy, dict[str, Any]]) -> None:
        proxy, where = store
        np.testing.assert_array_equal(read(where, [3]), VALUES[[3]])
        index = 16 * 16 + 4
        assert [exchange.sent for exchange in proxy.log if "/c/" in exchange.path] == [index, ROW_BYTES]

    @pytest.mark.parametrize(
        "fault", [Fault("status"), Fault("status", status=500), Fault("reset"), Fault("truncate")], ids=str
    )
    def test_what_passes_is_tried_again(self, fault: Fault, store: tuple[FaultProxy, dict[str, Any]]) -> None:
        proxy, where = store
        proxy.add(passing := Fault(fault.kind, match="c/1/", status=fault.status, times=2))
        np.testing.assert_array_equal(read(where, [20]), VALUES[[20]])
        assert passing.hits == 2
        assert sum(count for path, count in proxy.requests.items() if "c/1/" in path) == 4

    def test_what_does_not_pass_is_an_error(self, store: tuple[FaultProxy, dict[str, Any]]) -> None:
        proxy, where = store
        proxy.add(Fault("status", match="c/1/"))
        with pytest.raises(ValueError, match="retr"):
            read(where, [20])
        np.testing.assert_array_equal(read(where, [0]), VALUES[[0]])

    @pytest.mark.parametrize(
        ("fault", "message"),
        [
            (Fault("status", "c/1/", status=403), "PERMISSION_DENIED|AccessDenied"),
            (Fault("status", "c/1/", status=404, times=1), "NOT_FOUND"),
            (
                Fault("corrupt", lambda path, span: span is not None and "c/1/" in path, times=1),
                "CRC-32C|checksum|[Dd]igest",
            ),
        ],
        ids=["403", "404", "corrupt"],
    )
    def test_what_is_not_tried_again(
        self, fault: Fault, message: str, store: tuple[FaultProxy, dict[str, Any]]
    ) -> None:
        proxy, where = store
        proxy.add(Fault(fault.kind, fault.match, status=fault.status, times=fault.times))
        with pytest.raises(ValueError, match=message):
            read(where, [20])

    def test_rows_are_asked_for_together(self, store: tuple[FaultProxy, dict[str, Any]]) -> None:
        proxy, where = store
        read(where)
        index = 16 * 16 + 4
        rows = {(each.path, each.range) for each in proxy.log if "/c/" in each.path and each.sent != index}
        assert len(rows) >= 4  # of each shard those that are neighbours come in one
        proxy.clear()
        proxy.add(Fault("together", lambda path, span: (path, span) in rows, many=len(rows)))
        np.testing.assert_array_equal(read(where), VALUES[ROWS])

    def test_a_drip_is_whole_in_the_end(self, store: tuple[FaultProxy, dict[str, Any]]) -> None:
        proxy, where = store
        proxy.add(Fault("drip", seconds=0.02))
        np.testing.assert_array_equal(read(where, [20]), VALUES[[20]])


def test_nobody_listens_on_a_dead_port(dead_port: DeadPort) -> None:
    with pytest.raises(ConnectionRefusedError):
        ask(dead_port.url, "/")
    with pytest.raises(ValueError, match="retr"):
        read(over_http(dead_port.url))


def test_proxies_before_any_server(
    make_proxy: Callable[[str], FaultProxy], range_server: RangeServer, tmp_path: Path
) -> None:
    (tmp_path / "text").write_bytes(TEXT)
    outer = make_proxy(make_proxy(range_server.url).url)
    assert ask(outer.url, "/text")[2] == TEXT


def test_a_free_port_can_be_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free_port()))


class TestChildren:
    def test_a_server_serves_until_it_is_closed(self, tmp_path: Path) -> None:
        (tmp_path / "text").write_bytes(TEXT)
        command = ["-m", "http.server", "--bind", "127.0.0.1", "--directory", str(tmp_path)]
        server = ChildServer(lambda port: [*command, str(port)], "/text")
        with urllib.request.urlopen(f"{server.url}/text", timeout=HANG) as response:
            assert response.read() == TEXT
        server.close()
        with pytest.raises(urllib.error.URLError):
            urllib.request.urlopen(f"{server.url}/text", timeout=HANG)

    def test_a_server_that_does_not_start_says_why(self) -> None:
        with pytest.raises(RuntimeError, match=r"(?s)did not start.*no port today"):
            ChildServer(lambda port: ["-c", "raise SystemExit('no port today')"], "/")

    def test_code_runs_in_a_process_of_its_own(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("KEPT", "1")
        monkeypatch.setenv("TAKEN", "1")
        code = "import os, tests.servers.child; print([os.environ.get(name) for name in ('KEPT', 'TAKEN', 'ADDED')])"
        assert run_python(code, {"TAKEN": None, "ADDED": "2"}) == "['1', None, '2']\n"

    @pytest.mark.parametrize("code", ["raise SystemExit('too bad')", "import warnings; warnings.warn('too bad')"])
    def test_its_failure_is_the_tests(self, code: str) -> None:
        with pytest.raises(pytest.fail.Exception, match=r"(?s)exit code 1.*too bad"):
            run_python(code)

    def test_it_is_killed_when_it_is_late(self) -> None:
        code = f"import time; print('about to sleep', flush=True); time.sleep({ENDLESS})"
        with pytest.raises(
            pytest.fail.Exception, match=r"(?s)still running after 5 s:.*" + re.escape("about to sleep")
        ):
            run_python(code, timeout=5)
