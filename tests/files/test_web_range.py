"""Web servers that send whole files, or answers without their length, or that want a user name and a password."""

import io
import logging
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import loadax
from loadax.errors import SourceError, StorageError
from loadax.files import web_range
from loadax.files.byte_ranges import ByteRange
from loadax.files.files import Files
from loadax.sharding import plan_mesh
from tests.servers.web import Asked, Sent, WebServer

CONTENT = bytes(range(200))
TOKENS = np.arange(401, dtype=np.uint16)
# Of "me" and "p@ss:/".
BASIC = "Basic bWU6cEBzczov"
USER = "me:p%40ss%3A%2F@"


def whole_if_covered(content: bytes) -> Callable[[Asked], Sent]:
    """A server that answers 200 to a range that covers the file, and else 206, as miniserve and actix-files do."""

    def answer(asked: Asked) -> Sent:
        start, stop = asked.cut(content)
        if (start, stop) == (0, len(content)):
            return Sent(200, content)
        return Sent(206, content[start:stop], {"Content-Range": f"bytes {start}-{stop - 1}/{len(content)}"})

    return answer


def always_whole(content: bytes) -> Callable[[Asked], Sent]:
    return lambda _: Sent(200, content)


def chunked_whole(content: bytes) -> Callable[[Asked], Sent]:
    return lambda _: Sent(200, content, length=False)


def chunked_ranges(content: bytes) -> Callable[[Asked], Sent]:
    def answer(asked: Asked) -> Sent:
        start, stop = asked.cut(content)
        if asked.span is None:
            return Sent(200, content)
        if start >= len(content):
            return Sent(416)
        headers = {"Content-Range": f"bytes {start}-{stop - 1}/{len(content)}", "ETag": '"1"'}
        return Sent(206, content[start:stop], headers, length=False)

    return answer


BEHAVIOURS = [whole_if_covered, always_whole, chunked_whole, chunked_ranges]


@contextmanager
def serving(answer: Callable[[Asked], Sent]) -> Iterator[WebServer]:
    with closing(WebServer(answer)) as server:
        yield server


@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_ranges_of_a_small_file(behaviour: Any) -> None:
    with serving(behaviour(CONTENT)) as server:
        url = f"{server.url}/x"
        ranges = [ByteRange(url, 3, 9), ByteRange(url, 0, 200), ByteRange(url, 199, 200)]
        for wanted in ranges:
            assert Files().read([wanted]) == [CONTENT[wanted.start : wanted.stop]]
        assert Files().sizes([url]) == [200]
        assert Files().read_starts([url], 1024) == [CONTENT]
        with pytest.raises(SourceError, match=r"/x: bytes 199 to 200 are missing: the file is cut short"):
            Files().read([ByteRange(url, 199, 201)])


@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_all_formats(behaviour: Any, tmp_path: Path) -> None:
    parquet, npy = io.BytesIO(), io.BytesIO()
    pq.write_table(pa.table({"x": range(40)}), parquet)
    np.save(npy, np.arange(40))
    files = {
        "t.bin": TOKENS.tobytes(),
        "a.parquet": parquet.getvalue(),
        "a.npy": npy.getvalue(),
        "a.csv": b"x\n" + b"".join(b"%d\n" % row for row in range(40)),
        "a.jsonl": b"".join(b'{"x": %d}\n' % row for row in range(40)),
    }
    with serving(lambda asked: answer_of(files, behaviour, asked)) as server:
        url = server.url
        tokens = loadax.from_tokens(f"{url}/t.bin", seq_len=100, dtype=np.uint16)
        assert [int(tokens[row]["tokens"][0]) for row in range(4)] == [0, 100, 200, 300]
        for data in (
            loadax.from_parquet(f"{url}/a.parquet"),
            loadax.from_csv(f"{url}/a.csv"),
            loadax.from_jsonl(f"{url}/a.jsonl"),
        ):
            assert [int(data[row]["x"]) for row in range(40)] == list(range(40))
        rows = loadax.from_npy(f"{url}/a.npy")
        assert [int(rows[row]) for row in range(40)] == list(range(40))


def answer_of(files: dict[str, bytes], behaviour: Any, asked: Asked) -> Sent:
    content = files.get(asked.path.lstrip("/"))
    return Sent(404) if content is None else behaviour(content)(asked)


@pytest.mark.parametrize("behaviour", [always_whole, chunked_whole])
def test_large_file_without_ranges_is_refused(behaviour: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_range, "MOST_BYTES", 199)
    problem = "the server ignores Range requests and sends whole files, which are read up to 199 B only; use a"
    with serving(behaviour(CONTENT)) as server:
        with pytest.raises(StorageError, match=rf"{server.url}/x, bytes 3 to 8: {problem} server that supports Range"):
            Files().read([ByteRange(f"{server.url}/x", 3, 9)])
        assert len(server.log) == 2


def test_chunked_ranges_of_a_large_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_range, "MOST_BYTES", 10)
    with serving(chunked_ranges(CONTENT)) as server:
        assert Files().read([ByteRange(f"{server.url}/x", 3, 9)]) == [CONTENT[3:9]]


def test_whole_files_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "loadax")
    with serving(always_whole(CONTENT)) as server:
        files = Files()
        for _ in range(3):
            files.read([ByteRange(f"{server.url}/x", 3, 9)])
        assert caplog.text.count("the server sends whole files, so each read of a part takes as long as a whole") == 1
        caplog.clear()
        Files().sizes([f"{server.url}/x"])
        Files().read([ByteRange(f"{server.url}/x", 0, 200)])
    assert not caplog.records


@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_empty_and_missing_files(behaviour: Any) -> None:
    with serving(lambda asked: answer_of({"empty": b""}, behaviour, asked)) as server:
        assert Files().exists([f"{server.url}/empty", f"{server.url}/none"]) == [True, False]
        assert Files().sizes([f"{server.url}/empty"]) == [0]


@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_user_and_password_are_sent(behaviour: Any, caplog: pytest.LogCaptureFixture) -> None:
    def answer(asked: Asked) -> Sent:
        return behaviour(TOKENS.tobytes())(asked) if asked.authorization == BASIC else Sent(401)

    with serving(answer) as server:
        with pytest.raises(StorageError, match=r"401 Unauthorized; access was refused: .* in the URL of a web server"):
            loadax.from_tokens(f"{server.url}/t.bin", seq_len=100, dtype=np.uint16)
        url = f"{server.url}/t.bin".replace("http://", f"http://{USER}")
        data = loadax.from_tokens(url, seq_len=100, dtype=np.uint16)
        assert int(data[3]["tokens"][0]) == 300
        with pytest.raises(StorageError, match=r"access was refused") as refused:
            loadax.from_tokens(url.replace("me:", "you:"), seq_len=100, dtype=np.uint16)
    explained = loadax.Dataloader(data, 4, mesh=plan_mesh({"data": 1}, hosts=1)).explain()
    shown = f"{data!r} {refused.value} {refused.value.__cause__} {caplog.text} {explained}"
    assert "p%40ss" not in shown
    assert "p@ss" not in shown


def test_user_and_password_of_zarr(tmp_path: Path) -> None:
    loadax.write_zarr(loadax.from_arrays({"x": np.arange(8)}), tmp_path / "z")

    def answer(asked: Asked) -> Sent:
        if asked.authorization != BASIC:
            return Sent(401)
        file = tmp_path / asked.path.lstrip("/")
        return whole_if_covered(file.read_bytes())(asked) if file.is_file() else Sent(404)

    with serving(answer) as server:
        data = loadax.from_zarr(f"{server.url}/z".replace("http://", f"http://{USER}"))
        assert [int(data[row]["x"]) for row in range(8)] == list(range(8))
        assert "p%40ss" not in f"{data!r} {data}"


@pytest.mark.parametrize("url", ["http://me:se/cret@host/x", "http://me:se?cret@host/x", "http://me:se#cret@host/x"])
def test_password_that_is_not_encoded_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(SourceError, match=r"^http://…@host/x: .* in a user name and a password encode '/' as %2F"):
        loadax.from_npy(url)
    with pytest.raises(SourceError, match=r"^http://…@host/x.*: .* in a user name and a password encode '/' as %2F"):
        loadax.from_zarr(url)


def test_advice_to_encode_a_password_works() -> None:
    buffer = io.BytesIO()
    np.save(buffer, np.arange(3))

    def answer(asked: Asked) -> Sent:
        return always_whole(buffer.getvalue())(asked) if asked.authorization == BASIC else Sent(401)

    with serving(answer) as server:
        host = server.url.removeprefix("http://")
        password = "p@ss:/".replace("@", "%40").replace(":", "%3A").replace("/", "%2F")
        assert int(loadax.from_npy(f"http://me:{password}@{host}/x.npy")[2]) == 2
