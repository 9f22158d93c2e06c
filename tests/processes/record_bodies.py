"""What each process of a run does with files of records."""

from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import pytest

import loadax
from loadax.core.distributed import this_process
from loadax.errors import ArgumentError
from loadax.sources import file_index
from loadax.sources.shards import examples, webdataset


def index_remote_files(urls: list[str], folder: str) -> None:
    """Indexes files with the other process; notes which ones this one scans."""
    message = rf"from_webdataset\(\) without index=, in a run of 2 processes: each would read all {len(urls)} files"
    with pytest.raises(ArgumentError, match=message):
        loadax.from_webdataset(urls)
    scans = Path(folder, f"scans-{this_process().index}")
    scans.touch()

    def scan(location: str, size: int) -> Any:
        with scans.open("a") as file:
            file.write(f"{location}\n")
        sleep(0.1)
        return examples.scan_examples(location, size)

    file_index.AT_ONCE = 1
    webdataset.RECORDS = examples.RECORDS._replace(scan=scan)  # type: ignore[attr-defined]
    assert len(loadax.from_webdataset(urls, index=f"{folder}/index")) == 3 * len(urls)


def open_what_others_open(urls: list[str], folder: str) -> None:
    """Opens files that all processes open, then one that only this process opens; then all with an index."""
    assert len(loadax.from_parquet(urls)) == 4 * len(urls)
    own = this_process().index
    assert loadax.from_parquet(urls[own])[0]["x"] == 4 * own
    assert len(loadax.from_parquet(urls, index=f"{folder}/index")) == 4 * len(urls)


def cache_in_a_bucket(url: str, folder: str) -> None:
    """Writes a share of a store, and reads all of it."""
    mapped = Path(folder, f"mapped-{this_process().index}")

    def square(row: int) -> Any:
        with mapped.open("a") as file:
            file.write(f"{row}\n")
        return np.int64(row * row)

    cached = loadax.from_source(range(100)).map(square).cache(url, key="squares", shard_rows=10, chunk_rows=5)
    assert [int(value) for value in cached] == [row * row for row in range(100)]
