"""No cache and no index gives the rows of one file for those of another, however alike the two files are."""

import gzip
import io
import logging
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

import loadax
from loadax.core.distributed import Process
from loadax.core.tree import flatten
from loadax.dataset import Dataset
from loadax.errors import SourceError
from loadax.sources.io.files import Files
from loadax.sources.io.identity import resolved
from loadax.sources.shards.crc import masked_crc32c
from tests.servers.faults import FaultProxy

pytest_plugins = ["tests.servers.fixtures"]

Write = Callable[[Path, tuple[int, ...]], Path]
Open = Callable[[Any, Path], list[int]]

WIDTHS = ((1, 222), (333, 4))
"""Numbers of two rows, which files of one size hold at other offsets."""


def jsonl(numbers: tuple[int, ...]) -> bytes:
    return b"".join(b'{"x": %d}\n' % number for number in numbers)


def write_jsonl(folder: Path, numbers: tuple[int, ...]) -> Path:
    return write(folder / "0.jsonl", jsonl(numbers))


def write_gzip(folder: Path, numbers: tuple[int, ...]) -> Path:
    return write(folder / "0.jsonl.gz", gzip.compress(jsonl(numbers), 0, mtime=0))


def write_zstd(folder: Path, numbers: tuple[int, ...]) -> Path:
    return write(folder / "0.jsonl.zst", pa.compress(jsonl(numbers), "zstd", asbytes=True))


def write_tar(folder: Path, numbers: tuple[int, ...]) -> Path:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as file:
        for row, number in enumerate(numbers):
            content = str(number).encode()
            member = tarfile.TarInfo(f"{row}.txt")
            member.size = len(content)
            file.addfile(member, io.BytesIO(content))
    return write(folder / "0.tar", out.getvalue())


def write_tfrecord(folder: Path, numbers: tuple[int, ...]) -> Path:
    def part(content: bytes) -> bytes:
        return content + masked_crc32c(content).to_bytes(4, "little")

    records = (str(number).encode() for number in numbers)
    content = b"".join(part(len(record).to_bytes(8, "little")) + part(record) for record in records)
    return write(folder / "0.tfrecord", content)


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    os.utime(path, (1_700_000_000, 1_700_000_000))  # as tar -x, rsync -t and image layers leave it
    return path


def open_jsonl(path: Any, kept: Path) -> list[int]:
    data = loadax.from_jsonl(path, cache=kept, index=kept / "index", progress=False)
    return [int(data[row]["x"]) for row in range(len(data))]


def open_tar(path: Any, kept: Path) -> list[int]:
    data = loadax.from_webdataset(path, index=kept, progress=False)
    return [int(data[row]["txt"]) for row in range(len(data))]


def open_tfrecord(path: Any, kept: Path) -> list[int]:
    data = loadax.from_tfrecord(path, index=kept, progress=False)
    return [int(data[row]) for row in range(len(data))]


DOORS: dict[str, tuple[Write, Open]] = {
    "jsonl": (write_jsonl, open_jsonl),
    "jsonl.gz": (write_gzip, open_jsonl),
    "jsonl.zst": (write_zstd, open_jsonl),
    "tar": (write_tar, open_tar),
    "tfrecord": (write_tfrecord, open_tfrecord),
}
doors = pytest.mark.parametrize("door", DOORS)


@doors
@pytest.mark.parametrize("processes", [1, 4])
def test_file_of_same_name_size_and_time_in_another_folder(
    door: str, processes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadax.sources.io.file_index.this_process", lambda: Process(0, processes))
    write_file, open_file = DOORS[door]
    paths = [write_file(tmp_path / str(index), numbers) for index, numbers in enumerate(WIDTHS)]
    assert paths[0].stat().st_size == paths[1].stat().st_size
    for _ in range(2):
        assert [tuple(open_file(path, tmp_path / "kept")) for path in paths] == [*WIDTHS]


@pytest.mark.parametrize("door", ["jsonl", "tar", "tfrecord"])
def test_file_in_another_folder_that_differs_between_the_samples(door: str, tmp_path: Path) -> None:
    write_file, open_file = DOORS[door]
    numbers = [(*[10**17] * 300, *pair, *[10**17] * 1200) for pair in WIDTHS]
    paths = [write_file(tmp_path / str(index), each) for index, each in enumerate(numbers)]
    one, other = Files().identities(list(map(str, paths)))
    assert one[1:] == other[1:]
    for path, each in zip(paths, numbers, strict=True):
        assert tuple(open_file(path, tmp_path / "kept")) == each


@doors
def test_file_in_place_of_one_of_same_size_and_time(door: str, tmp_path: Path) -> None:
    write_file, open_file = DOORS[door]
    for numbers in WIDTHS:
        assert tuple(open_file(write_file(tmp_path / "data", numbers), tmp_path / "kept")) == numbers


@doors
def test_link_that_points_to_another_folder(door: str, tmp_path: Path) -> None:
    write_file, open_file = DOORS[door]
    link = tmp_path / "latest"
    for index, numbers in enumerate(WIDTHS):
        path = write_file(tmp_path / str(index), numbers)
        link.unlink(missing_ok=True)
        link.symlink_to(path.parent)
        assert tuple(open_file(link / path.name, tmp_path / "kept")) == numbers


@doors
@pytest.mark.parametrize("headers", [{}, {"Last-Modified": "Wed, 01 Nov 2023 10:00:00 GMT"}], ids=["none", "time"])
def test_remote_file_of_a_server_without_etags(
    door: str, headers: dict[str, str], tmp_path: Path, http_proxy: FaultProxy, caplog: pytest.LogCaptureFixture
) -> None:
    http_proxy.hidden = {"etag", "last-modified"}
    http_proxy.headers = dict(headers)
    write_file, open_file = DOORS[door]
    for numbers in WIDTHS:
        path = write_file(tmp_path / "data", numbers)
        assert tuple(open_file(f"{http_proxy.url}/data/{path.name}", tmp_path / "kept")) == numbers
        if headers:  # the server says that it has changed
            http_proxy.headers = {"Last-Modified": "Wed, 01 Nov 2023 10:00:01 GMT"}
    warned = "the server sends neither ETag nor Last-Modified, so up to 16 MiB of the file are read" in caplog.text
    assert warned == (not headers)


def test_blocks_of_a_server_without_etags(tmp_path: Path, http_proxy: FaultProxy) -> None:
    """Also where the change is not in the first block."""
    http_proxy.hidden = {"etag", "last-modified"}
    values = np.arange(200_000)
    for number in (1, 2):
        values[100_000] = number
        np.save(tmp_path / "a.npy", values)
        data = loadax.from_npy(f"{http_proxy.url}/a.npy", cache=tmp_path / "cache")
        assert data.read([0, 100_000, 199_999]).tolist() == [0, number, 199_999]


def test_content_of_large_file_without_generation_is_sampled(tmp_path: Path, http_proxy: FaultProxy) -> None:
    http_proxy.hidden = {"etag", "last-modified"}
    with (tmp_path / "a").open("wb") as file:
        file.truncate(100 << 20)
    url = f"{http_proxy.url}/a"
    first = Files().identities([url])
    assert sum(http_proxy.bytes_sent.values()) < 18 << 20
    with (tmp_path / "a").open("r+b") as file:
        file.seek((100 << 20) - 5)
        file.write(b"x")
    assert Files().identities([url]) != first


def test_credentials_are_no_part_of_a_location() -> None:
    one, other = (f"https://{user}@host/a.tar?sig={user}&version=2" for user in ("me:a", "me:b"))
    assert resolved(one) == resolved(other)
    assert resolved("https://host/a.tar?version=3") != resolved("https://host/a.tar?version=2")


@pytest.mark.parametrize("door", ["jsonl", "tar", "tfrecord"])
def test_index_of_another_file_is_named(door: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_file, open_file = DOORS[door]
    caplog.set_level(logging.WARNING)
    for index, numbers in enumerate(WIDTHS):
        open_file(write_file(tmp_path / str(index), numbers), tmp_path / "kept")
    assert "records.json does not match (contents, files differs) and is not used" in caplog.text


@pytest.mark.parametrize("door", ["jsonl", "tfrecord"])
def test_error_of_a_record_names_the_index_to_delete(
    door: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index that another program wrote may pass all checks; what the error advises helps."""
    write_file, open_file = DOORS[door]
    kept, path = tmp_path / "kept", write_file(tmp_path / "data", WIDTHS[0])
    with monkeypatch.context() as patched:
        patched.setattr("loadax.sources.io.file_index._identity", lambda *_: {})
        open_file(path, kept)
        path = write_file(tmp_path / "data", WIDTHS[1])
        with pytest.raises(SourceError, match=r"by its index .*records\.json, to be deleted if the file is r") as error:
            open_file(path, kept)
        named = str(error.value).partition("by its index ")[2].partition(", to be deleted")[0]
        Path(named).unlink()
        assert tuple(open_file(path, kept)) == WIDTHS[1]


def test_list_of_kept_rows_of_a_file_in_another_folder(tmp_path: Path) -> None:
    """The sample of rows is the same: the rows that differ are between those."""
    kept = []
    for index in range(2):
        values = np.arange(10_000)
        values[5::1000] += index  # none of the 64 sampled rows
        path = tmp_path / str(index) / "a.npy"
        path.parent.mkdir()
        np.save(path, values)
        os.utime(path, (1_700_000_000, 1_700_000_000))
        data = loadax.from_npy(path).filter(is_even, key="even", index=tmp_path / "index", progress=False)
        kept.append(data.read(range(len(data))).tolist())
        assert kept[index] == values[values % 2 == 0].tolist()
    assert kept[0] != kept[1]


def is_even(value: Any) -> bool:
    return bool(value % 2 == 0)


def write_images(folder: Path, values: list[int]) -> None:
    for row, value in enumerate(values):
        Image.new("L", (2, 2), value).save(folder / f"{row}.bmp")


OTHERS: dict[str, tuple[Callable[[Path, list[int]], object], Callable[[Path], Dataset]]] = {
    "npy": (
        lambda folder, values: np.save(folder / "a.npy", np.array(values)),
        lambda folder: loadax.from_npy(folder / "a.npy"),
    ),
    "tokens": (
        lambda folder, values: np.array([*values, 9], np.uint16).tofile(folder / "a.bin"),
        lambda folder: loadax.from_tokens(folder / "a.bin", 1, dtype="uint16"),
    ),
    "parquet": (
        lambda folder, values: parquet.write_table(pa.table({"x": values}), folder / "a.parquet", use_dictionary=False),
        lambda folder: loadax.from_parquet(folder / "a.parquet"),
    ),
    "csv": (
        lambda folder, values: (folder / "a.csv").write_text("x\n{}\n{}\n".format(*values)),
        lambda folder: loadax.from_csv(folder / "a.csv"),
    ),
    "zarr": (
        lambda folder, values: loadax.write_zarr({"x": np.array(values)}, folder / "a", overwrite=True, progress=False),
        lambda folder: loadax.from_zarr(folder / "a"),
    ),
    "images": (write_images, loadax.from_images),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_file_replaced_between_two_opens_of_one_process(kind: str, tmp_path: Path) -> None:
    """By one of equal size and time, while a dataset of the first one is still open."""
    write_files, open_files = OTHERS[kind]
    opened = []
    for values in ([1, 2], [3, 4]):
        write_files(tmp_path, values)
        for path in tmp_path.rglob("*"):
            os.utime(path, (1_700_000_000, 1_700_000_000))
        opened.append(open_files(tmp_path))
        leaf = flatten(opened[-1].read([0, 1]))[0][0]
        assert leaf.reshape(2, -1)[:, 0].tolist() == values


def test_rows_that_are_kept_of_a_remote_file_that_was_replaced(tmp_path: Path, http_proxy: FaultProxy) -> None:
    """The rows that differ are between the sampled ones."""
    for offset in range(2):
        values = np.arange(10_000)
        values[5::1000] += offset
        np.save(tmp_path / "a.npy", values)
        data = loadax.from_npy(f"{http_proxy.url}/a.npy")
        kept = data.filter(is_even, key="even", index=tmp_path / "index", progress=False)
        assert kept.read(range(len(kept))).tolist() == values[values % 2 == 0].tolist()
