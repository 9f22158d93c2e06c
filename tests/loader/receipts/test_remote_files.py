"""Receipts of data at URLs: each names the files of its own loader, with the ETags by which these were opened."""

import os
import warnings
from pathlib import Path

import numpy as np
import pytest

import loadax
from loadax import Dataloader
from loadax.loader.receipts.data_files import DataFile
from tests.formats.samples import SAMPLES
from tests.servers.ranges import RangeServer

pytest_plugins = ["tests.servers.fixtures"]

FORMATS = ("parquet", "jsonl", "webdataset", "tfrecord", "array_record", "tokens", "npy")


def loader_of(data: loadax.Dataset) -> Dataloader:
    # with a spec, so that no row is read of a file that has been replaced
    return Dataloader(data.map(lambda _: np.zeros(1, np.float32), spec=np.zeros(1, np.float32)), 8)


def files_of(data: loadax.Dataset) -> list[DataFile]:
    """Files in the receipt of one step."""
    (source,) = loader_of(data).receipt(1).sources
    return [*source.files]


def etag(path: Path) -> str:
    status = path.stat()
    return f'"{status.st_mtime_ns:x}-{status.st_size:x}"'


@pytest.mark.parametrize("name", FORMATS)
def test_receipt_has_the_etags_of_its_own_loader(name: str, tmp_path: Path, range_server: RangeServer) -> None:
    sample = SAMPLES[name]
    path = sample.file(tmp_path / f"x{sample.ending}", range(32))
    sample.file(tmp_path / f"other{sample.ending}", range(32))
    url = f"{range_server.url}/{path.name}"
    first = sample.open(url)
    other = sample.open(f"{range_server.url}/other{sample.ending}")
    before = etag(path)
    os.utime(path, (1, 1))
    second = sample.open(url)
    for _ in range(2):
        assert files_of(second) == [DataFile(url, path.stat().st_size, etag(path))]
        assert files_of(first) == [DataFile(url, path.stat().st_size, before)]
        assert [file.location for file in files_of(other)] == [f"{range_server.url}/other{sample.ending}"]


def test_state_of_a_file_that_was_replaced_is_told(tmp_path: Path, range_server: RangeServer) -> None:
    sample = SAMPLES["jsonl"]
    path = sample.file(tmp_path / "x.jsonl", range(32))
    url = f"{range_server.url}/x.jsonl"
    data = sample.open(url)
    with loader_of(data).iterate(1) as batches:
        state = batches.get_state()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader_of(sample.open(url)).iterate(state).close()
    os.utime(path, (1, 1))
    with pytest.warns(UserWarning, match=rf"{url} has another size or time of change"):
        loader_of(sample.open(url)).iterate(state).close()
