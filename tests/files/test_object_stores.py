"""Buckets and web servers: their URLs, the settings of the environment, and what errors say."""

from contextlib import closing
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loadax
from loadax.errors import SourceError
from loadax.files.byte_ranges import ByteRange
from loadax.files.files import Files
from loadax.files.object_stores import failure, open_object_store, split_url
from tests.servers.loopback import DeadPort, LoopbackServer

VARIABLES = (
    *("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"),
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_EC2_METADATA_DISABLED", "AWS_SKIP_SIGNATURE"),
    *("TENSORSTORE_GCS_HTTP_URL", "AZURE_STORAGE_ACCOUNT_NAME"),
)


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An environment that says nothing about buckets."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))


def settings(url: str) -> dict[str, Any]:
    return dict(open_object_store(url).config)


@pytest.mark.parametrize(
    ("location", "server", "key"),
    [
        ("s3://bucket/a/b%20%2520%23.bin", "s3://bucket", "a/b %20#.bin"),
        ("gs://bucket/a//b", "gs://bucket", "a//b"),
        ("az://container/a", "az://container", "a"),
        ("http://me:secret@host:80/a?sig=1&b=2", "http://me:secret@host:80?sig=1&b=2", "a"),
    ],
)
def test_urls(location: str, server: str, key: str) -> None:
    assert split_url(location) == (server, key)


@pytest.mark.parametrize("location", ["ftp://host/a", "s3:///a", "/a.zip|zip:b.npy", "https:///a"])
def test_urls_that_can_not_be_read(location: str) -> None:
    with pytest.raises(
        SourceError,
        match="read at such a URL; pass a local path, or a file://, s3://, r2://, gs://, az://, abfs://, hf://",
    ):
        loadax.from_npy(location)


@pytest.mark.parametrize("location", ["s3://me@bucket/a", "gs://bucket/a?version=2", "az://bucket/a#b"])
def test_urls_of_buckets_have_no_more(location: str) -> None:
    with pytest.raises(SourceError, match=r"the URL of a file in a bucket is \w\w://bucket/key, without user, query"):
        loadax.from_npy(location)


class TestS3:
    @pytest.mark.parametrize(
        ("environment", "endpoint", "region"),
        [
            ({"AWS_ENDPOINT_URL": "http://all"}, "http://all", "us-east-1"),
            ({"AWS_ENDPOINT_URL": "http://all", "AWS_ENDPOINT_URL_S3": "http://s3"}, "http://s3", "us-east-1"),
            ({"AWS_ENDPOINT_URL": "http://all", "AWS_DEFAULT_REGION": "eu-1"}, "http://all", "eu-1"),
            ({"AWS_ENDPOINT_URL": "http://all", "AWS_DEFAULT_REGION": "1", "AWS_REGION": "2"}, "http://all", "2"),
        ],
    )
    def test_endpoint(
        self, environment: dict[str, str], endpoint: str, region: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        config = settings("s3://bucket")
        assert (config["endpoint"], config["region"]) == (endpoint, region)
        assert "skip_signature" not in config

    def test_profile(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "config").write_text("[default]\nregion = eu-1\n[profile lab]\nregion = eu-2\n")
        (tmp_path / "credentials").write_text(
            "[default]\naws_access_key_id = a\naws_secret_access_key = b\n"
            "[lab]\naws_access_key_id = c\naws_secret_access_key = d%d\naws_session_token = e\n"
        )
        config = settings("s3://bucket")
        assert (config["access_key_id"], config["secret_access_key"], config["region"]) == ("a", "b", "eu-1")
        monkeypatch.setenv("AWS_PROFILE", "lab")
        config = settings("s3://bucket")
        names = ("access_key_id", "secret_access_key", "session_token", "region")
        assert [config[name] for name in names] == ["c", "d%d", "e", "eu-2"]
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "own")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        assert settings("s3://bucket").get("access_key_id", "own") == "own"
        (tmp_path / "credentials").write_text("not an ini file")
        assert settings("s3://bucket")["region"] == "eu-2"

    @pytest.mark.parametrize("status", [200, 403])
    def test_region_is_asked_of_the_bucket(self, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                self.send_response(status)
                self.send_header("x-amz-bucket-region", f"region-of{self.path.replace('/', '-')}")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        with closing(LoopbackServer(Handler)) as server:
            monkeypatch.setattr("loadax.files.object_stores.REGION_URL", server.url + "/{bucket}")
            assert settings("s3://bucket")["region"] == "region-of-bucket"
        assert settings("s3://bucket")["region"] == "us-east-1"

    def test_without_any_credentials(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_REGION", "eu-1")
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        assert settings("s3://bucket")["skip_signature"] in (True, "true")
        error = failure(ValueError("Error performing PUT http://169.254.169.254/x - HTTP error: none"), "s3://bucket/x")
        assert "s3://bucket/x: HTTP error: none; no credentials were found: set AWS_ACCESS_KEY_ID" in str(error)


def test_azure_needs_an_account(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SourceError, match=r"az://box: Account must be specified; set AZURE_STORAGE_ACCOUNT_NAME, and"):
        Files().sizes(["az://box/a.bin"])
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "me")
    open_object_store("az://box")


def test_what_is_asked_in_one_call_fails_as_one(dead_port_url: str, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(3))
    near, far = str(tmp_path / "a.npy"), f"{dead_port_url}/a.npy"
    with pytest.raises(SourceError, match=rf"{far}, bytes 0 to 4: .*no answer after 6 tries: is the server up"):
        Files().read([ByteRange(near, 0, 5), ByteRange(far, 0, 5)])


@pytest.fixture
def dead_port_url() -> Any:
    with closing(DeadPort()) as port:
        yield port.url
