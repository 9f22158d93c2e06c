"""Stores in buckets: written, gone on with, checked and read over the S3 protocol."""

import numpy as np
import pytest

from loadax.cli import main
from loadax.errors import ArgumentError, SourceError
from loadax.io import from_source, from_zarr
from loadax.writing.store_damage import verify
from loadax.writing.write import write_zarr
from tests.servers.faults import Fault, FaultProxy
from tests.servers.s3 import S3Server
from tests.writing.rows import TreeRows, tree_of

pytest_plugins = ["tests.servers.fixtures"]

ROWS = 60


def keys(server: S3Server, bucket: str) -> set[str]:
    found = server._client.list_objects_v2(Bucket=bucket).get("Contents", [])
    return {each["Key"] for each in found}


def test_a_store_in_a_bucket(s3_server: S3Server, bucket: str) -> None:
    rows, address = TreeRows(tree_of(ROWS)), f"s3://{bucket}/deep/train"
    write_zarr(rows, address, shard_rows=20)
    np.testing.assert_array_equal(from_zarr(address).read(np.arange(ROWS))["image"], rows.tree["image"])
    # manifest, group, and for each array its metadata and 3 shards
    assert len(keys(s3_server, bucket)) == 1 + 1 + 3 * (1 + 3)
    assert verify(address).damages == ()
    with pytest.raises(ArgumentError, match=rf"{address} is a finished store, with rows: 60; write to another URL, or"):
        write_zarr(rows, address)


def test_ragged_store_in_a_bucket(bucket: str) -> None:
    rows, address = [np.arange(row % 7) for row in range(ROWS)], f"s3://{bucket}/ragged"
    cached = from_source(rows).cache(address, shard_rows=20)
    for row, expected in enumerate(rows):
        np.testing.assert_array_equal(cached[row], expected)
    assert cached.source.locate(25)[0].file == f"{address}/loadax.values/c/1/0/0"
    assert verify(address).damages == ()


def test_overwriting_in_a_bucket_is_refused(s3_server: S3Server, bucket: str) -> None:
    address, small = f"s3://{bucket}/a", TreeRows({"x": np.arange(5)})
    write_zarr(TreeRows(tree_of(ROWS)), address, shard_rows=10, overwrite=True)  # nothing is there
    before = keys(s3_server, bucket)
    with pytest.raises(
        ArgumentError, match=rf"{address}: overwrite=True renames folders, which object stores can't; write to another"
    ):
        write_zarr(small, address, overwrite=True)
    assert keys(s3_server, bucket) == before
    write_zarr(small, f"{address}2", overwrite=True)  # as it says
    assert verify(f"{address}2").damages == verify(address).damages == ()


def test_a_half_written_store_in_a_bucket_goes_on(s3_server: S3Server, bucket: str) -> None:
    rows, address = TreeRows(tree_of(ROWS)), f"s3://{bucket}/train"
    with pytest.raises(OSError, match="is gone"):
        write_zarr(TreeRows(rows.tree, fails_at=50), address, shard_rows=10)
    with pytest.raises(SourceError, match=rf"{address}: the store is unfinished"):
        from_zarr(address)
    again = TreeRows(rows.tree)
    write_zarr(again, address, shard_rows=10, resume=True)
    write_zarr(again, address, shard_rows=10, resume=True)  # it is finished: there is nothing to write
    assert 0 < len(again.asked) < ROWS
    np.testing.assert_array_equal(from_zarr(address).read(np.arange(ROWS))["image"], rows.tree["image"])


def test_shares_in_a_bucket(s3_server: S3Server, bucket: str) -> None:
    rows, address = TreeRows(tree_of(ROWS)), f"s3://{bucket}/train"
    for index in range(2):
        write_zarr(rows, address, shard_rows=10, shard=(index, 2))
    assert {each for each in keys(s3_server, bucket) if "loadax" in each} == {"train/loadax.json"}
    np.testing.assert_array_equal(from_zarr(address).read(np.arange(ROWS))["more.label"], rows.tree["more"]["label"])


def test_a_server_that_stumbles(s3_proxy: FaultProxy, bucket: str) -> None:
    rows, address = TreeRows(tree_of(ROWS)), f"s3://{bucket}/train"
    s3_proxy.add(Fault("status", status=503, every=3, times=6))
    write_zarr(rows, address, shard_rows=10)
    np.testing.assert_array_equal(from_zarr(address).read(np.arange(ROWS))["image"], rows.tree["image"])


def test_no_access_is_no_damage(s3_proxy: FaultProxy, bucket: str) -> None:
    """Else a refused credential would be answered by writing everything anew, or by a long list of damages."""
    rows, address = TreeRows(tree_of(ROWS)), f"s3://{bucket}/train"
    with pytest.raises(OSError, match="is gone"):
        write_zarr(TreeRows(rows.tree, fails_at=50), address, shard_rows=10)
    s3_proxy.add(Fault("status", match="/image/c/0", status=403))
    with pytest.raises(SourceError, match=rf"{address}: array 'image': PERMISSION_DENIED.*check the credentials"):
        write_zarr(TreeRows(rows.tree, fails_at=0), address, shard_rows=10, resume=True)
    s3_proxy.clear()
    write_zarr(rows, address, shard_rows=10, resume=True)
    s3_proxy.add(Fault("status", match="/image/c/0", status=403))
    with pytest.raises(SourceError, match=rf"{address}: array 'image': PERMISSION_DENIED.*check the credentials"):
        verify(address)


def test_a_bucket_that_is_not_there(s3_environment: None) -> None:
    with pytest.raises(
        SourceError, match=r"s3://nobucket/train: loadax\.partial\.json: .*NoSuchBucket|s3://nobucket/train"
    ):
        write_zarr(TreeRows(tree_of(ROWS)), "s3://nobucket/train")


def test_the_command_line_in_a_bucket(bucket: str, s3_server: S3Server, capsys: pytest.CaptureFixture[str]) -> None:
    source, address = f"s3://{bucket}/source", f"s3://{bucket}/out"
    write_zarr(TreeRows(tree_of(ROWS)), source)
    assert main(["convert", source, address, "--shuffle", "3", "--shard-rows", "20"]) == 0
    assert main(["verify", address]) == 0
    assert main(["inspect", address]) == 0
    out = capsys.readouterr().out
    assert f"{address}: written, 60 rows in all\n" in out
    assert "not local" in out
    expected = from_zarr(source).shuffle(3).read(np.arange(ROWS))
    np.testing.assert_array_equal(from_zarr(address).read(np.arange(ROWS))["image"], expected["image"])
