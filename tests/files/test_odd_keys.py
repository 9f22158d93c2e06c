"""Keys of a bucket that obstore refuses: the other objects are listed, and these are named."""

from typing import Any

import numpy as np
import pytest

import loadax
from loadax.errors import SourceError
from tests.servers.s3 import S3Server

pytest_plugins = ["tests.servers.fixtures"]

ODD = ["//log.txt", "/.Trash/./x", "/up/../x", "/a\tb.bin", "/deep/er//"]
PROBLEM = "whose key has an empty, '.' or '..' part between slashes, or a control character"


def put(server: S3Server, bucket: str, key: str, value: int) -> None:
    server.put(bucket, key, np.full(101, value, np.uint16).tobytes())


def tokens(url: str) -> loadax.Dataset:
    return loadax.from_tokens(url, seq_len=100, dtype=np.uint16, stride=101)


@pytest.mark.parametrize("odd", ODD)
def test_other_objects_are_listed(odd: str, s3_server: S3Server, bucket: str, caplog: pytest.LogCaptureFixture) -> None:
    for value in range(3):
        put(s3_server, bucket, f"flat/a{value}.bin", value)
        put(s3_server, bucket, f"deep/p{value}/a.bin", value)
    put(s3_server, bucket, f"flat{odd}", 9)
    put(s3_server, bucket, f"deep/p1{odd}", 9)
    for pattern in ("flat/", "flat", "flat/*.bin", "deep/**/*.bin", "deep/*/*.bin", "deep/*/a.bin"):
        caplog.clear()
        data = tokens(f"s3://{bucket}/{pattern}")
        assert [int(data[row]["tokens"][0]) for row in range(len(data))] == [0, 1, 2]
        is_listed = pattern.startswith("deep") or odd.startswith(("//", "/a"))  # else it is below a subfolder
        assert caplog.text.count(f"left out 1 object {PROBLEM}: ") == (is_listed and not odd.endswith("/"))


def test_key_that_begins_with_a_slash_is_not_another_object(
    s3_server: S3Server, bucket: str, caplog: pytest.LogCaptureFixture
) -> None:
    put(s3_server, bucket, "a.bin", 1)
    put(s3_server, bucket, "/a.bin", 2)
    put(s3_server, bucket, "/b.bin", 3)
    for pattern in ("*.bin", "**/*.bin", ""):
        data = tokens(f"s3://{bucket}/{pattern}")
        assert [int(data[row]["tokens"][0]) for row in range(len(data))] == [1]
    assert f"left out 2 objects {PROBLEM}: '/a.bin', '/b.bin'" in caplog.text


@pytest.mark.parametrize("name", ["a//b.bin", "/lead.bin", "a/./b.bin", "a/../b.bin", "a%09b.bin", "a//*.bin", "a//"])
def test_odd_key_is_refused_by_name(name: str, bucket: str) -> None:
    with pytest.raises(SourceError, match=rf"s3://{bucket}/.*: objects {PROBLEM} can't be read \('.*'\); correct the"):
        tokens(f"s3://{bucket}/{name}")


def test_images_beside_an_odd_key(s3_server: S3Server, bucket: str, tmp_path: Any) -> None:
    image = pytest.importorskip("PIL.Image")
    for label in ("cat", "dog"):
        image.fromarray(np.full((4, 4, 3), len(label), np.uint8)).save(tmp_path / "x.png")
        s3_server.put(bucket, f"{label}/x.png", (tmp_path / "x.png").read_bytes())
    s3_server.put(bucket, "cat//x.png", b"odd")
    data = loadax.from_images(f"s3://{bucket}")
    assert [int(data[row]["label"]) for row in range(len(data))] == [0, 1]
    assert data[1]["image"].shape == (4, 4, 3)


def test_azure_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    from loadax.files.odd_keys import list_around

    with pytest.raises(SourceError, match=r"az://box/a/: an object below it has a key with .*; rename it, or pass a"):
        list_around("az://box/a/", below=True)
