"""What opening files in a bucket and reading a step of them costs in requests."""

from pathlib import Path

import numpy as np

import loadax
from tests.servers.faults import FaultProxy
from tests.servers.s3 import S3Server

pytest_plugins = ["tests.servers.fixtures"]

SHARDS, TOKENS = 100, 1 << 19  # of 2 bytes: 1 MB a shard
AGAIN = 4  # late requests that may be sent a second time


def test_a_hundred_shards(tmp_path: Path, s3_server: S3Server, s3_proxy: FaultProxy, bucket: str) -> None:
    """One list and one request a file; after that a request for each group of nearby rows."""
    tokens = np.arange(SHARDS * TOKENS, dtype=np.uint64).astype(np.uint16).reshape(SHARDS, TOKENS)
    for shard, values in enumerate(tokens):
        np.save(tmp_path / f"{shard:03}.npy", values)
    s3_server.upload(tmp_path, bucket, "shards/")
    data = loadax.from_tokens(f"s3://{bucket}/shards/", 127, stride=128)
    assert 1 + SHARDS <= len(s3_proxy.log) <= 1 + SHARDS + AGAIN
    rows = np.random.default_rng(0).integers(0, len(data), 64)
    expected = tokens.reshape(-1, 128)[rows]
    s3_proxy.clear()
    np.testing.assert_array_equal(data.read(rows)["tokens"], expected)
    assert len(s3_proxy.log) <= 64 + AGAIN
    block = np.random.default_rng(0).permutation(400)[:64] + len(data) // 2  # 100 KB of one file
    s3_proxy.clear()
    np.testing.assert_array_equal(data.read(block)["tokens"], tokens.reshape(-1, 128)[block])
    assert len(s3_proxy.log) <= 8  # gaps of a few KB are read, if the requests before were as slow as small ones are
    # Named one by one, and of a format that does not say its length: still one request each, and one to tell the first
    # file from a folder. Each file is looked at, since it may have a header.
    files = sorted(tmp_path.iterdir())[:10]
    (tmp_path / "flat").mkdir()
    for path in files:
        np.load(path).tofile(tmp_path / "flat" / f"{path.stem}.bin")
    s3_server.upload(tmp_path / "flat", bucket, "flat/")
    s3_proxy.clear()
    urls = [f"s3://{bucket}/flat/{path.stem}.bin" for path in files]
    assert len(loadax.from_tokens(urls, 127, dtype="uint16")) > 0
    assert 1 + len(files) <= len(s3_proxy.log) <= 1 + len(files) + AGAIN
    s3_proxy.clear()
    assert len(loadax.from_tokens(f"s3://{bucket}/flat/*.bin", 127, dtype="uint16")) > 0
    assert 1 + len(files) <= len(s3_proxy.log) <= 1 + len(files) + AGAIN
