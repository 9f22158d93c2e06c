"""ArrayRecord files in buckets: the records that the format's own reader has, each chunk requested and decoded once."""

import pickle
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordReader

import loadax
from loadax import Dataloader
from loadax.errors import SourceError, UnsupportedError
from loadax.files.files import Files
from loadax.sources.array_record import ranged
from loadax.sources.array_record.chunks import (
    BLOCK,
    ChunkError,
    RecordChunk,
    chunks_of,
    footer_offset,
    records_of,
    without_headers,
)
from loadax.sources.array_record.ranged import RangedRecords
from loadax.testing import check_source
from tests.servers.faults import FaultProxy
from tests.servers.ranges import RangeServer
from tests.servers.s3 import S3Server
from tests.sources.array_record.test_records import write

pytest_plugins = ["tests.servers.fixtures"]

OPTIONS = (
    "group_size:1",
    "group_size:16",
    "group_size:7,uncompressed",
    "group_size:4,brotli:1",
    "group_size:4,snappy",
    "group_size:3,pad_to_block_boundary:true",
    "group_size:65536",
)


def records(count: int = 90) -> list[bytes]:
    """Of 0 to 9,000 bytes, so that chunks cross the blocks of a file."""
    random = np.random.default_rng(0)
    return [random.integers(0, 8, length, np.uint8).tobytes() for length in [0, *random.integers(0, 9000, count - 1)]]


@pytest.mark.parametrize("options", OPTIONS)
def test_records_are_those_of_the_formats_reader(options: str, tmp_path: Path) -> None:
    expected = records()
    paths = [str(write(tmp_path / f"{part}.array_record", expected[part::2], options)) for part in range(2)]
    by_library = [ArrayRecordReader(path).read_all() for path in paths]
    found = RangedRecords(paths, Files())
    rows = np.random.default_rng(1).integers(0, len(expected), 300)
    together = by_library[0] + by_library[1]
    assert together == expected[0::2] + expected[1::2]
    assert found.read(rows) == [together[row] for row in rows]
    assert pickle.loads(pickle.dumps(found)).read(rows[:9]) == [together[row] for row in rows[:9]]
    local = loadax.from_array_record(paths, dtype="uint8").source
    assert found.locate(70) == local.locate(70)
    if local.chunks is None:
        assert found.chunks is None
    else:
        np.testing.assert_array_equal(found.chunks, local.chunks)


@pytest.mark.parametrize("dtype", [None, "uint8"])
def test_batches_of_a_bucket_are_those_of_local_files(
    dtype: str | None, tmp_path: Path, s3_server: S3Server, bucket: str
) -> None:
    for part in range(2):
        write(tmp_path / f"{part}.array_record", records(), "group_size:5")
    s3_server.upload(tmp_path, bucket, "data/")

    def batches(path: object) -> list[np.ndarray]:
        data = loadax.from_array_record(path, dtype=dtype)
        if dtype is None:
            data = data.map(lambda record: {"data": np.resize(np.frombuffer(record + b"\0", np.uint8), 50)})
        else:
            data = data.pad(50, truncate=True)
        return [np.asarray(batch["data"]) for batch in Dataloader(data.shuffle(0), 16, num_epochs=2)]

    np.testing.assert_array_equal(batches(f"s3://{bucket}/data/"), batches(tmp_path))


def test_no_byte_is_requested_twice(tmp_path: Path, range_server: RangeServer, http_proxy: FaultProxy) -> None:
    path = write(tmp_path / "a.array_record", records(288), "group_size:8,uncompressed")
    data = loadax.from_array_record(f"{http_proxy.url}/a.array_record", dtype="uint8").pad(100, truncate=True)
    for each in (data, data.shuffle(0, block="chunks"), data.shuffle(0)):
        fresh = pickle.loads(pickle.dumps(each))
        http_proxy.clear()
        assert sum(1 for _ in Dataloader(fresh, 16, num_epochs=1)) == 18
        taken = np.zeros(path.stat().st_size, np.int64)
        for span in {one.range for one in http_proxy.log}:
            assert span is not None
            first, last = map(int, span.removeprefix("bytes=").split("-"))
            taken[first : last + 1] += 1
        assert taken.max() == 1


def test_threads_share_a_chunk(tmp_path: Path, http_proxy: FaultProxy) -> None:
    expected = records(40)
    write(tmp_path / "a.array_record", expected, "group_size:40")
    found = RangedRecords([f"{http_proxy.url}/a.array_record"], Files())
    http_proxy.clear()
    with ThreadPoolExecutor(8) as pool:
        read = list(pool.map(lambda row: found.read(np.array([row]))[0], range(40)))
    assert read == expected
    assert len({one.range for one in http_proxy.log}) == 1


def test_chunks_that_are_not_used_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranged, "KEPT", 20_000)
    expected = records()
    found = RangedRecords([str(write(tmp_path / "a.array_record", expected, "group_size:4"))], Files())
    for rows in (np.arange(90), np.arange(90)[::-1]):
        assert found.read(rows) == [expected[row] for row in rows]
        assert sum(len(one.result()[0]) for one in found._kept.values()) <= 20_000
    (wanted,) = RangedRecords.wanted(found, np.arange(90))
    assert wanted.once
    assert wanted.kept < 90 / 4


def test_a_long_footer_takes_another_request(tmp_path: Path, http_proxy: FaultProxy) -> None:
    count = 40_000
    write(tmp_path / "a.array_record", [b"%d" % number for number in range(count)], "group_size:1,uncompressed")
    data = loadax.from_array_record(f"{http_proxy.url}/a.array_record")
    assert len(http_proxy.log) <= 4
    assert len(data) == count
    assert data[count - 1] == b"%d" % (count - 1)


def test_the_source_keeps_its_contract(tmp_path: Path, range_server: RangeServer) -> None:
    write(tmp_path / "a.array_record", [bytes(range(8))] * 20, "group_size:4")
    check_source(loadax.from_array_record(f"{range_server.url}/a.array_record", dtype="uint8").source)


# What can be wrong with files


def test_files_of_another_kind(tmp_path: Path, range_server: RangeServer) -> None:
    whole = write(tmp_path / "whole", records(), "group_size:2").read_bytes()
    for name, content in {
        "text": b"text" * 50_000,
        "short": b"text",
        "cut": whole[:-1],
        "tail": whole[70_000:],
    }.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(SourceError, match=rf"/{name} can't be opened as ArrayRecord: .*; it has another format"):
            loadax.from_array_record([tmp_path / "whole", f"{range_server.url}/{name}"])
    write(tmp_path / "none", [])
    with pytest.raises(SourceError, match=r"/none has no records"):
        loadax.from_array_record(f"{range_server.url}/none")


def test_transposed_files_say_what_to_do(tmp_path: Path, range_server: RangeServer) -> None:
    write(tmp_path / "a.array_record", records(), "group_size:2,transpose:true")
    data = loadax.from_array_record(f"{range_server.url}/a.array_record")
    with pytest.raises(SourceError, match=r"byte \d+ can't be read: it was written with transpose:true; download"):
        data[0]
    assert loadax.from_array_record(tmp_path / "a.array_record")[1] == records()[1]  # the advice


def test_compressed_files_need_pyarrow(
    tmp_path: Path, range_server: RangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "a.array_record", records())
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UnsupportedError, match="compressed ArrayRecord file in a bucket needs pyarrow, which can't be"):
        loadax.from_array_record(f"{range_server.url}/a.array_record")


def test_damaged_bytes_are_refused_or_read_as_they_are(tmp_path: Path) -> None:
    """No exception but `SourceError`, whatever the bytes are. Hashes are not compared, so many are not noticed."""
    path = write(tmp_path / "a.array_record", records(12), "group_size:3")
    whole = path.read_bytes()
    random = np.random.default_rng(0)
    places = np.flatnonzero(np.frombuffer(whole, np.uint8))
    refused = 0
    for place in random.choice(places, 300):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(random.integers(8))
        path.write_bytes(damaged)
        try:
            found = RangedRecords([str(path)], Files())
            found.read(np.arange(len(found)))
        except SourceError as error:
            refused += str(path) in str(error)
    assert refused > 50


def test_offsets_that_do_not_ascend_are_refused(tmp_path: Path) -> None:
    content = write(tmp_path / "a.array_record", records(4)).read_bytes()
    offset = footer_offset(content[-BLOCK:])
    footer = without_headers(content[offset:], offset)
    assert [chunk.records for chunk in chunks_of(footer, offset)] == [1] * 4
    with pytest.raises(ChunkError, match="don't ascend"):
        chunks_of(footer, 1)
    with pytest.raises(ChunkError, match="cut short"):
        records_of(footer[:60], 1 << 20)


def test_kept_chunks_of_tiny_records_are_bounded_by_their_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranged, "KEPT", 40 << 10)
    path = write(tmp_path / "x.array_record", [bytes(10)] * 200, "group_size:1")
    found = RangedRecords([str(path)], Files())
    for row in range(200):
        assert found.read(np.array([row])) == [bytes(10)]
    assert len(found._kept) == found.wanted(np.arange(1))[0].kept == 40 * 1024 // (10 + ranged.OVERHEAD)


def test_ranges_of_a_step_are_found_without_a_look_at_all_chunks(tmp_path: Path) -> None:
    class Indexed(list[RecordChunk]):
        def __iter__(self) -> Iterator[RecordChunk]:
            pytest.fail("looks at all chunks")

    path = write(tmp_path / "x.array_record", records(), "group_size:1")
    found = RangedRecords([str(path)], Files())
    found._chunks = Indexed(found._chunks)
    assert len(found.wanted(np.arange(5))[0].ranges) == 5
    assert found.read(np.arange(5)) == records()[:5]
