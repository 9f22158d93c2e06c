"""The index of records: the same for any batches and windows, as version 0.1.0 wrote it, and in little memory."""

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import loadax
from loadax.errors import LoadaxError
from loadax.files.files import Files
from loadax.sources.file_index import index_files, merge_records, record_entry, run_scan
from loadax.sources.format import RecordOptions
from loadax.sources.shards import tfrecord
from loadax.sources.shards.examples import RECORDS, scan_examples
from loadax.sources.tables.text import jsonl
from tests.fuzz.formats import mutate_tar, mutate_tfrecord
from tests.fuzz.mutations import mutate_bytes
from tests.sources.shards.corpora import numbered, texts, write_tar, write_tfrecord

LONG = {f"{'d' * 130}/{row}.txt": b"long" for row in range(3)} | {f"é/{row}.JPG": b"" for row in range(3)}


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A file of each format, the tar files joined by `cat`."""
    folder = tmp_path_factory.mktemp("seeds")
    tars = [write_tar(folder / "x.tar", numbered(4) | LONG, kind).read_bytes() for kind in (0, 1, 2)]
    records = write_tfrecord(folder / "x.tfrecord", texts(9)).read_bytes()
    return {"tar": b"".join(tars), "tfrecord": records, "jsonl": b'{"a": 1}\n\r\n\n{"a": 22}\n{"a": 333}'}


def scanned(scan: Callable[[str, int], Any], content: bytes, window: int, batch: int) -> list[Any] | str:
    """What a scan of a remote file finds, or the text of its error."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("loadax.sources.file_index.WINDOW", window)
        patch.setattr("loadax.sources.tables.text.jsonl.WINDOW", max(4, window))
        for module in ("tar", "tfrecord"):
            patch.setattr(f"loadax.sources.shards.{module}._BATCH", batch)
        try:
            entry = run_scan(scan("https://host/file", len(content)), len(content), lambda low, high: content[low:high])
        except LoadaxError as error:
            return f"{type(error).__name__}: {error}"
    return [*(array.tolist() for array in entry.arrays.values()), entry.facts]


@pytest.mark.parametrize(
    ("kind", "scan", "mutate"),
    [
        ("tar", scan_examples, mutate_tar),
        ("tfrecord", tfrecord.RECORDS.scan, mutate_tfrecord),
        ("jsonl", jsonl.RECORDS.scan, mutate_bytes),
    ],
)
@given(seed=st.integers(0, 2**32), window=st.sampled_from([1, 700, 3000]), batch=st.sampled_from([2, 3, 10]))
def test_scan_in_batches_and_windows_is_that_of_one_record_at_a_time(
    kind: str, scan: Any, mutate: Any, seed: int, window: int, batch: int, seeds: dict[str, bytes]
) -> None:
    """The same records, or the same error at the same byte, also of a damaged file."""
    content = mutate(seeds[kind], Random(seed)) if seed else seeds[kind]
    expected = scanned(scan, content, 1, 1)
    assert scanned(scan, content, window, batch) == expected
    assert scanned(scan, content, 8 << 20, 4096) == expected


def test_index_files_are_those_that_0_1_0_wrote(tmp_path: Path) -> None:
    """Their names hold the digests of their contents."""
    for number, (count, first) in enumerate([(7, 0), (0, 0), (5, 7)]):
        write_tar(tmp_path / "tar" / f"{number:05}.tar", numbered(count, first))
        write_tfrecord(tmp_path / "tfrecord" / f"train.tfrecord-{number:05}-of-00003", texts(count, first))
    loadax.from_webdataset(tmp_path / "tar", index=tmp_path / "a")
    loadax.from_tfrecord(tmp_path / "tfrecord", index=tmp_path / "b")
    assert sorted(path.name for folder in ("a", "b") for path in (tmp_path / folder).glob("*.npy")) == [
        "records-begins-681a25c87ce05978.npy",
        "records-begins-70bc38e5ca358815.npy",
        "records-examples-0b1ec0a156beb8b8.npy",
        "records-extensions-d271b129871288d9.npy",
        "records-firsts-8e0e26a573c19490.npy",
        "records-key_ends-184a312398ca768d.npy",
        "records-keys-92a8ec209a01d499.npy",
        "records-records-0b1ec0a156beb8b8.npy",
        "records-sizes-0735f8ef0d5039a2.npy",
        "records-sizes-e384b86bd1f8f80c.npy",
    ]


@pytest.mark.parametrize("files", [1, 8])
def test_index_of_tar_members_takes_at_most_60_bytes_each(
    files: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadax.sources.shards.tar._BATCH", 64)
    content = write_tar(tmp_path / "part", numbered(200)).read_bytes().rstrip(b"\0")
    content += bytes(-len(content) % 512)
    paths = [tmp_path / f"{number}.tar" for number in range(files)]
    for path in paths:
        path.write_bytes(content * (16 // files) + bytes(1024))

    def peak() -> int:
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        names = [str(path) for path in paths]
        entry = index_files(RECORDS, Files(), names, RecordOptions(progress=False))
        assert len(entry.arrays["begins"]) == 16 * 400
        return tracemalloc.get_traced_memory()[1] - before

    tracemalloc.start()
    try:
        assert min(peak() for _ in range(2)) < 60 * 16 * 400
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("files", [1, 8])
def test_opening_tar_files_takes_at_most_60_bytes_a_member(
    files: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an index that is written, and one that is read."""
    monkeypatch.setattr("loadax.sources.shards.tar._BATCH", 64)
    monkeypatch.setattr("loadax.sources.file_index.MAPPED", 1 << 15)
    monkeypatch.setattr("loadax.sources.shards.examples.TOGETHER", 64)
    content = write_tar(tmp_path / "part", numbered(200)).read_bytes().rstrip(b"\0")
    content += bytes(-len(content) % 512)
    for folder, repeats in (("few", 1), ("many", 80)):
        for number in range(files):
            path = tmp_path / folder / f"{number}.tar"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content * (repeats // files or 1) + bytes(1024))

    def peak(folder: str) -> int:
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        data = loadax.from_webdataset(tmp_path / folder, index=tmp_path / f"{folder}.index")
        assert len(data) >= 200
        return tracemalloc.get_traced_memory()[1] - before

    peak("few")
    peak("few")
    tracemalloc.start()
    try:
        assert peak("many") < 60 * 80 * 400
        assert peak("many") < 60 * 80 * 400
    finally:
        tracemalloc.stop()


def test_records_of_files_are_merged_in_order() -> None:
    entry = merge_records(record_entry("records", np.arange(count), np.ones(count, np.int64)) for count in (2, 0, 1))
    assert {name: array.tolist() for name, array in entry.arrays.items()} == {
        "begins": [0, 1, 0],
        "sizes": [1, 1, 1],
        "records": [2, 0, 1],
    }
