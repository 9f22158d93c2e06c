"""Where bytes lie and on what terms they are asked for: URLs, endpoints, waiting, and what messages say."""

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tensorstore as ts

from loadax.core import patience
from loadax.errors import SourceError
from loadax.files import kvstore
from loadax.files.kvstore import (
    address_of,
    brief,
    failure,
    key_value_spec,
    new_context,
    settled,
    wait,
)
from loadax.files.paths import local_path
from tests.limits import HANG

AWS = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ACCESS_KEY_ID")
S3 = {"driver": "s3", "bucket": "weather"}


def unfinished() -> tuple[Any, Any]:
    """A promise, and the future that waits for it."""
    promise: Any
    future: Any
    promise, future = ts.Promise.new()
    return promise, future


class Late:
    """A future whose answer, 7, comes some seconds from now, by a clock that only waiting for it moves.

    Args:
        clock: its time.
        seconds: until the answer.
    """

    def __init__(self, clock: list[float], seconds: float):
        self.is_cancelled = False
        self._clock, self._due = clock, clock[0] + seconds

    def result(self, timeout: float) -> int:
        """The answer, if it comes in so many seconds."""
        in_time = self._due <= self._clock[0] + timeout
        self._clock[0] = self._due if in_time else self._clock[0] + timeout
        if not in_time:
            raise TimeoutError
        return 7

    def cancel(self) -> None:
        """Gives it up."""
        self.is_cancelled = True


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment that says nothing about S3."""
    for name in AWS:
        monkeypatch.delenv(name, raising=False)


class TestPlaces:
    @pytest.mark.parametrize(
        ("location", "path", "spec"),
        [
            ("/a/b", "/a/b", {"driver": "file", "path": "/a/b"}),
            (Path("/a/b"), "/a/b", {"driver": "file", "path": "/a/b"}),
            ("/a b#%20/", "/a b#%20", {"driver": "file", "path": "/a b#%20/"}),
            ("file:///a%20b/", "/a b", {"driver": "file", "path": "/a b/"}),
            ("s3://weather/a/b/", None, {**S3, "path": "a/b/"}),
            ("gs://weather/a/", None, {"driver": "gcs", "bucket": "weather", "path": "a/"}),
            ("http://host:80/a/", None, {"driver": "http", "base_url": "http://host:80", "path": "/a/"}),
            ("https://host/a", None, {"driver": "http", "base_url": "https://host", "path": "/a"}),
            ("/a.zip|zip:", None, {"driver": "zip", "base": {"driver": "file", "path": "/a.zip"}}),
            ("s3://weather/a.zip|zip:b/", None, {"driver": "zip", "base": {**S3, "path": "a.zip"}, "path": "b/"}),
            ("file:///a/|ocdbt:", None, {"driver": "ocdbt", "base": {"driver": "file", "path": "/a/"}}),
        ],
    )
    def test_local_paths_and_key_value_stores(
        self, location: Any, path: str | None, spec: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert local_path(location) == (None if path is None else Path(path))
        assert key_value_spec(location) == spec
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
        if str(location)[0] != "/":
            assert address_of(key_value_spec(location)) == address_of(location) == location

    def test_from_here(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        assert local_path("a/b") == local_path(Path("a/b")) == tmp_path / "a" / "b"
        assert key_value_spec("a/b/") == {"driver": "file", "path": f"{tmp_path}/a/b/"}
        assert key_value_spec("a b.zip|zip:x/")["base"] == {"driver": "file", "path": f"{tmp_path}/a b.zip"}

    @pytest.mark.parametrize(
        ("location", "problem"),
        [
            ("foo://x/y", 'unsupported URL scheme "foo"'),
            ("/a|foo:", 'unsupported URL scheme "foo"'),
            ("s3://B!/x", "Invalid S3 bucket name"),
        ],
    )
    def test_that_nobody_knows(self, location: str, problem: str) -> None:
        with pytest.raises(SourceError) as caught:
            key_value_spec(location)
        assert str(caught.value).startswith(f"{location}: ")
        assert problem in str(caught.value)
        assert str(caught.value).endswith("; pass a local path, or a file://, s3://, gs://, http:// or https:// URL")

    def test_without_an_address(self) -> None:
        assert address_of(None) == ""
        assert address_of({"driver": "memory", "path": "x/"}) == "memory://x/"


class TestEndpoints:
    """As in AWS's own tools."""

    @pytest.mark.parametrize(
        ("environment", "filled"),
        [
            ({"": "http://all"}, {"endpoint": "http://all", "aws_region": "us-east-1"}),
            ({"": "http://all", "_S3": "http://s3"}, {"endpoint": "http://s3", "aws_region": "us-east-1"}),
            ({"": "http://all", "_S3": ""}, {"endpoint": "http://all", "aws_region": "us-east-1"}),
        ],
    )
    def test_endpoint_of_the_environment(
        self, environment: dict[str, str], filled: dict[str, str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name, value in environment.items():
            monkeypatch.setenv(f"AWS_ENDPOINT_URL{name}", value)
        assert key_value_spec("s3://weather/a/") == {**S3, "path": "a/", **filled}

    def test_region_and_credentials_of_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A region without an endpoint is for TensorStore to find."""
        monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-1")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        credentials = {"aws_credentials": {"type": "environment"}}
        assert key_value_spec("s3://weather/a/") == {**S3, "path": "a/", **credentials}
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://all")
        assert key_value_spec("s3://weather/a/")["aws_region"] == "eu-1"
        monkeypatch.setenv("AWS_REGION", "eu-2")
        assert key_value_spec("s3://weather/a/")["aws_region"] == "eu-2"

    def test_that_are_given_stay(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://all")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        own = {
            **S3,
            "path": "a/",
            "endpoint": "http://own",
            "aws_region": "eu-3",
            "aws_credentials": {"type": "anonymous"},
        }
        assert settled(own) == own
        region = {**S3, "path": "a/", "aws_region": "eu-3"}
        assert settled(region) == {**region, "endpoint": "http://all", "aws_credentials": {"type": "environment"}}

    def test_below_others_and_of_s3_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://all")
        filled = {**S3, "path": "a/", "endpoint": "http://all", "aws_region": "us-east-1"}
        assert settled({"driver": "ocdbt", "base": "s3://weather/a/"}) == {"driver": "ocdbt", "base": filled}
        assert settled("s3://weather/a/") == filled
        assert (
            settled({"driver": "ocdbt", "base": {"driver": "zip", "base": S3}})["base"]["base"]["endpoint"]
            == "http://all"
        )
        for other in ({"driver": "gcs", "bucket": "weather"}, {"driver": "http", "base_url": "http://s3"}, None):
            assert settled(other) == other
        assert "endpoint" not in S3


def test_terms() -> None:
    """Six tries within seconds, many requests at once, and memory as it was asked for."""
    context = new_context(12345)
    assert context["cache_pool"].to_json() == {"total_bytes_limit": 12345}
    for kind in ("http", "s3", "gcs"):
        assert context[f"{kind}_request_retries"].to_json() == {
            "max_retries": 5,
            "initial_delay": "200ms",
            "max_delay": "3s",
        }
        assert context[f"{kind}_request_concurrency"].to_json() == {"limit": 64}


@pytest.mark.processes
@pytest.mark.parametrize("given", [None, "99"])
def test_stalled_transfers_are_given_up_unless_the_user_says_otherwise(given: str | None) -> None:
    """TensorStore reads this once, from the environment, so another process has to tell."""
    name = "TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS"
    environment = {key: value for key, value in os.environ.items() if key != name}
    if given is not None:
        environment[name] = given
    code = f"import os, loadax.files.kvstore; print(os.environ[{name!r}])"
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=HANG
    )
    assert run.stdout.strip() == (given or "10")


class TestWaiting:
    @pytest.fixture
    def clock(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        """The seconds by which waiting is measured."""
        now = [1000.0]
        monkeypatch.setattr(patience, "perf_counter", lambda: now[0])
        monkeypatch.setattr(kvstore, "perf_counter", lambda: now[0])
        return now

    def test_long_says_so_less_and_less_often(self, clock: list[float], caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.WARNING, "loadax"):
            assert wait(Late(clock, 50.0), "leaf ['x'] at s3://b/x/") == 7
        messages = [record.message for record in caplog.records]
        assert messages == [
            f"leaf ['x'] at s3://b/x/: no answer for {seconds} s, still waiting" for seconds in (5, 10, 20, 40)
        ]
        assert {(record.name, record.levelno) for record in caplog.records} == {("loadax", logging.WARNING)}
        assert clock == [1050.0]

    def test_has_an_end(self, clock: list[float], caplog: pytest.LogCaptureFixture) -> None:
        future = Late(clock, 3600.0)
        with (
            caplog.at_level(logging.WARNING, "loadax"),
            pytest.raises(SourceError, match=r"^s3://b/x: no answer after 20 s; is the store reachable\?$"),
        ):
            wait(future, "s3://b/x", patience=20.0)
        assert (clock, future.is_cancelled) == ([1020.0], True)
        assert len(caplog.records) == 2

    @pytest.mark.parametrize("patience", [0.0, 2.0**-7])
    def test_less_than_a_log_line_takes(
        self, patience: float, clock: list[float], caplog: pytest.LogCaptureFixture
    ) -> None:
        with pytest.raises(SourceError, match="no answer after 0 s"):
            wait(Late(clock, 3600.0), "x", patience)
        assert not caplog.records

    def test_for_a_future_of_tensorstore_that_does_not_come(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(kvstore, "NOTICE", 0.05)
        promise, future = unfinished()
        with pytest.raises(SourceError, match=r"^s3://b/x: no answer after \d+ s; is the store reachable\?$"):
            wait(future, "s3://b/x", patience=0.2)
        assert future.cancelled()
        del promise

    @pytest.mark.parametrize("kind", [ValueError, IndexError, OSError])
    def test_for_what_fails(self, kind: type[Exception]) -> None:
        promise, future = unfinished()
        promise.set_exception(kind("DATA_LOSS: wrong checksum"))
        with pytest.raises(
            SourceError, match=r"x: .*DATA_LOSS: wrong checksum; the stored bytes are damaged: copy that file again$"
        ):
            wait(future, "x")

    def test_for_what_is_not_there_to_be_asked(self) -> None:
        promise, future = unfinished()
        promise.set_exception(NotImplementedError("can't be listed"))
        with pytest.raises(NotImplementedError, match="can't be listed"):
            wait(future, "x")


class TestMessages:
    @pytest.mark.parametrize(
        ("text", "remedy"),
        [
            (
                "NOT_FOUND: chunk {3} stored at x is missing",
                (
                    "the copy is incomplete, or its writer left out chunks that hold only the fill value: "
                    "copy it again, or pass missing='fill' if those are right"
                ),
            ),
            ("Failed to find valid ZIP EOCD", "the file is not a zip file, or was cut short: copy it again"),
            ("NOT_FOUND: no such array", ""),
            ("DATA_LOSS: Error decoding", "the stored bytes are damaged: copy that file again"),
            (
                "PERMISSION_DENIED: 403",
                "access was refused: check the credentials in the environment, and their rights",
            ),
            (
                "UNAVAILABLE: All 6 retry attempts failed",
                "no answer after 6 tries: is the server up, and the address right?",
            ),
        ],
    )
    def test_say_what_can_be_done(self, text: str, remedy: str) -> None:
        assert failure(ValueError(text), "s3://b/x") == f"s3://b/x: {text}" + f"; {remedy}" * bool(remedy)

    @pytest.mark.parametrize(
        "dump",
        [
            ' [tensorstore_spec=\'{"driver":"zarr"}\']',
            " [source locations='a.cc:12\nb.cc:3']",
            " [http_response_code='403'] [http_response_body='<html>']",
        ],
    )
    def test_leave_out_what_is_for_the_developers_of_tensorstore(self, dump: str) -> None:
        assert brief(ValueError(f"DATA_LOSS: chunk [3] of 'x'{dump}")) == "DATA_LOSS: chunk [3] of 'x'"
