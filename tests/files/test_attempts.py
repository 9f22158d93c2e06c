"""Requests that a server refuses because they are too many, and credentials that expire, for files and for zarr."""

import logging
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from obstore.exceptions import GenericError, PermissionDeniedError, UnauthenticatedError

import loadax
from loadax.errors import SourceError, StorageError
from loadax.files import attempts, pace
from loadax.files.files import Files
from loadax.sources.zarr import array
from tests.servers import faults
from tests.servers.faults import Fault, FaultProxy
from tests.servers.s3 import S3Server
from tests.servers.web import Asked, Sent, WebServer

pytest_plugins = ["tests.servers.fixtures"]

LIMITED = r"the server limits requests, or is overloaded: use fewer workers and hosts, or go on later from the last"
EXPIRED = r"the credentials have expired: refresh them, and resume the run from its last state"
RETRIES = 6
LIMITED_TRIES = 3 * RETRIES - 1  # refusals after which a request is sent again


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "LIMITED", (0.01,) * LIMITED_TRIES)
    monkeypatch.setattr(attempts, "PAUSES", (0.01,) * (RETRIES - 1))
    monkeypatch.setattr(attempts, "SECOND_TRY", 0.01)
    monkeypatch.setattr(pace, "HOLD", 0.001)
    monkeypatch.setattr(pace, "LONGEST", 0.01)
    monkeypatch.setattr(pace, "SLOWEST", 1000.0)
    monkeypatch.setattr(array, "PAUSES", (0.01, 0.02))


@pytest.fixture
def no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries of TensorStore without their pauses."""
    from loadax.files import kvstore

    monkeypatch.setitem(kvstore.BACKOFF, "initial_delay", "1ms")
    monkeypatch.setitem(kvstore.BACKOFF, "max_delay", "2ms")


@pytest.fixture
def zarr(s3_server: S3Server, s3_proxy: FaultProxy, tmp_path: Path) -> str:
    """A store in a bucket, beside `t.npy`."""
    bucket = s3_server.bucket()
    loadax.write_zarr(loadax.from_arrays({"x": np.arange(64)}), tmp_path / "z", chunk_rows=8, shard_rows=16)
    np.save(tmp_path / "t.npy", np.arange(64))
    np.arange(65, dtype=np.uint16).tofile(tmp_path / "t.bin")
    s3_server.upload(tmp_path, bucket)
    return f"s3://{bucket}"


def tokens(url: str) -> loadax.Dataset:
    return loadax.from_tokens(url, seq_len=1, dtype=np.uint16)


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("retry_after", [{}, {"Retry-After": "5"}])
def test_limit_is_waited_for(
    status: int, retry_after: dict[str, str], no_backoff: None, caplog: pytest.LogCaptureFixture
) -> None:
    """Twelve refusals are waited out."""
    content = np.arange(1000, dtype=np.uint16).tobytes()

    def answer(asked: Asked) -> Sent:
        if 1 <= asked.number <= 2 * RETRIES:
            return Sent(status, headers=retry_after)
        start, stop = asked.cut(content)
        return Sent(206, content[start:stop], {"Content-Range": f"bytes {start}-{stop - 1}/{len(content)}"})

    with closing(WebServer(answer)) as server:
        data = loadax.from_tokens(f"{server.url}/t.bin", seq_len=100, dtype=np.uint16)
        assert int(data[3]["tokens"][0]) == 300
        assert len(server.log) == 2 * RETRIES + 2
    assert f"/t.bin, bytes 600 to 801: the server limits requests ({status}); it is requested again" in caplog.text


@pytest.mark.parametrize("status", [429, 503])
def test_limit_that_stays_names_the_remedy(status: int, no_backoff: None) -> None:
    with closing(WebServer(lambda _: Sent(status, headers={"Retry-After": "5"}))) as server:
        with pytest.raises(StorageError, match=rf"/t.bin: the server answered {status} .*; {LIMITED} state"):
            Files().sizes([f"{server.url}/t.bin"])
        assert len(server.log) == 3 * RETRIES  # so it ends


@pytest.mark.parametrize("status", [429, 503])
def test_limits_of_a_bucket(
    status: int, zarr: str, s3_proxy: FaultProxy, no_backoff: None, caplog: pytest.LogCaptureFixture
) -> None:
    """Reads of files, listings, and reads of zarr wait for twelve refusals, and name the remedy after eighteen."""
    files, stored = loadax.from_npy(f"{zarr}/t.npy"), loadax.from_zarr(f"{zarr}/z")
    reads: dict[str, Any] = {
        "zarr": lambda row: int(stored[row]["x"]),
        "npy": lambda row: int(files[row]),
        "list": lambda row: int(tokens(f"{zarr}/*.bin")[row]["tokens"][0]),
    }
    caplog.set_level(logging.WARNING, "loadax")
    for name, read in reads.items():
        s3_proxy.add(fault := Fault("status", status=status, times=2 * RETRIES))
        assert (name, read(9)) == (name, 9)
        assert fault.hits == 2 * RETRIES
        s3_proxy.clear()
        caplog.clear()
        s3_proxy.add(fault := Fault("status", status=status))
        with pytest.raises(StorageError, match=LIMITED):
            read(60)  # of another shard, since TensorStore caches their indices
        assert fault.hits == 3 * RETRIES
        assert "limits requests" in caplog.text
        s3_proxy.clear()
    s3_proxy.add(Fault("status", status=status))
    with pytest.raises(StorageError, match=LIMITED):
        loadax.from_zarr(f"{zarr}/z")


def test_expired_credentials(zarr: str, s3_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(faults._S3_CODES, 400, "ExpiredToken")
    files, stored = loadax.from_npy(f"{zarr}/t.npy"), loadax.from_zarr(f"{zarr}/z")
    s3_proxy.add(Fault("status", status=400))
    for read in (
        lambda: files[9],
        lambda: stored[9],
        lambda: tokens(f"{zarr}/*.bin"),
        lambda: loadax.from_zarr(f"{zarr}/z"),
    ):
        with pytest.raises(StorageError, match=EXPIRED):
            read()
    s3_proxy.clear()  # as after new credentials in the environment
    assert int(files[9]) == int(stored[9]["x"]) == 9


def test_a_missing_file_is_asked_for_once() -> None:
    with closing(WebServer(lambda _: Sent(404))) as server:
        assert Files().exists([f"{server.url}/none"]) == [False]
        assert len(server.log) == 1


@pytest.mark.parametrize(
    ("fault", "is_known", "pauses", "ends"),
    [
        (GenericError("anything else"), True, [0.2], StorageError),
        (GenericError("error sending request"), True, [1, 2, 3, 4, 5], StorageError),
        (GenericError("request or response body error"), True, [1, 2, 3, 4, 5], StorageError),
        (GenericError("operation timed out"), True, [1, 2, 3, 4, 5], StorageError),
        (GenericError("status code: 500"), True, [1, 2, 3, 4, 5], StorageError),
        (GenericError("status code: 400"), True, [0.2], StorageError),
        (PermissionDeniedError("403"), True, [], StorageError),
        (UnauthenticatedError("401"), True, [], StorageError),
        (GenericError("status code: 429"), True, [10, 20], StorageError),
        (GenericError("status code: 503"), True, [10, 20], StorageError),
        (FileNotFoundError(), True, [0.2], attempts.NoSuchFile),
        (FileNotFoundError(), False, [], attempts.NoSuchFile),
        (SourceError("of a map"), True, [], SourceError),
        (TypeError("of a program"), True, [], TypeError),
    ],
    ids=lambda value: repr(value) if isinstance(value, Exception) else "",
)
def test_request_is_sent_again_where_that_may_help(
    fault: Exception,
    is_known: bool,
    pauses: list[float],
    ends: type[Exception],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """After each fault, until the error of the last one. Pauses are up to a fifth shorter or longer."""
    monkeypatch.setattr(attempts, "LIMITED", (10, 20))
    monkeypatch.setattr(attempts, "TOLD", 1)
    monkeypatch.setattr(attempts, "PAUSES", (1, 2, 3, 4, 5) if len(pauses) == 5 else (0.2,))
    monkeypatch.setattr(attempts, "SECOND_TRY", 0.2)
    tries = attempts.Attempts("s3://bucket/key", is_known)
    for pause in pauses:
        assert 0.8 * pause <= tries.pause(fault, is_paced=True) <= 1.2 * pause
    with pytest.raises(ends):
        tries.pause(fault, is_paced=True)
    # only the second pause for a limit is long enough to be told of
    assert len(caplog.messages) == (pauses == [10, 20])


def test_first_refusal_of_a_server_without_limits_is_soon_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be by chance; of a server that limits requests, it is not."""
    monkeypatch.setattr(attempts, "LIMITED", (10, 20))
    monkeypatch.setattr(attempts, "PAUSES", (1, 2))
    refusal = GenericError("status code: 503")
    for is_paced, first in ((False, 1), (True, 10)):
        tries = attempts.Attempts("s3://bucket/key", True)
        for pause in (first, 20):
            assert 0.8 * pause <= tries.pause(refusal, is_paced) <= 1.2 * pause
