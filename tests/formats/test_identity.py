"""No cache and no index gives the rows of one file for those of another, however alike the two files are."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loadax
from loadax.core.distributed import Process
from loadax.errors import ArgumentError, SourceError
from loadax.files.files import Files
from loadax.files.identity import resolved
from tests.formats.samples import COMPRESSED, SAMPLES, Sample, every
from tests.servers.faults import FaultProxy
from tests.servers.ranges import RangeServer

pytest_plugins = ["tests.servers.fixtures"]

WIDTHS = ((1, 222), (333, 4))
"""Numbers of two rows, which files of one size hold at other offsets."""

INDEXED = {name: SAMPLES[name] for name in ("jsonl", "webdataset", "tfrecord")}
KEPT = INDEXED | {name: COMPRESSED[name] for name in ("jsonl.gz", "jsonl.zst")}


def stored(sample: Sample, folder: Path, numbers: tuple[int, ...]) -> Path:
    """A file with the time that all others have, as tar -x, rsync -t and image layers leave it."""
    path = sample.file(folder / f"0{sample.ending}", numbers)
    for file in (path, *path.rglob("*")):
        os.utime(file, (1_700_000_000, 1_700_000_000))
    return path


@every(KEPT)
@pytest.mark.parametrize("where", ["another folder", "another folder, 4 processes", "same place", "link"])
def test_file_of_same_name_size_and_time_is_told_apart(
    sample: Sample, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "processes" in where:
        monkeypatch.setattr("loadax.sources.file_index.this_process", lambda: Process(0, 4))
    link, sizes = tmp_path / "latest", set()
    for index, numbers in [*enumerate(WIDTHS)] * 2:
        path = stored(sample, tmp_path / ("data" if where == "same place" else str(index)), numbers)
        sizes.add(path.stat().st_size)
        if where == "link":
            link.unlink(missing_ok=True)
            link.symlink_to(path.parent)
            path = link / path.name
        assert sample.numbers(path, tmp_path / "kept") == [*numbers]
    assert len(sizes) == 1


@every(INDEXED)
def test_file_in_another_folder_that_differs_between_the_samples(sample: Sample, tmp_path: Path) -> None:
    numbers = [(*[2 * 10**9] * 350, *pair, *[2 * 10**9] * 1200) for pair in WIDTHS]
    paths = [stored(sample, tmp_path / str(index), each) for index, each in enumerate(numbers)]
    one, other = Files().identities(list(map(str, paths)))
    assert one[1:] == other[1:]
    for path, each in zip(paths, numbers, strict=True):
        assert sample.numbers(path, tmp_path / "kept") == [*each]


@every(KEPT)
@pytest.mark.parametrize("headers", [{}, {"Last-Modified": "Wed, 01 Nov 2023 10:00:00 GMT"}], ids=["none", "time"])
def test_remote_file_of_a_server_without_etags(
    sample: Sample, headers: dict[str, str], tmp_path: Path, http_proxy: FaultProxy, caplog: pytest.LogCaptureFixture
) -> None:
    http_proxy.hidden = {"etag", "last-modified"}
    http_proxy.headers = dict(headers)
    for numbers in WIDTHS:
        path = stored(sample, tmp_path / "data", numbers)
        assert sample.numbers(f"{http_proxy.url}/data/{path.name}", tmp_path / "kept") == [*numbers]
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


@every(INDEXED)
def test_index_is_made_once(sample: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = stored(sample, tmp_path / "data", (3, 1, 4))
    sample.open(path, tmp_path / "kept")
    monkeypatch.setattr("loadax.sources.file_index.run_scan", None)
    assert sample.numbers(path, tmp_path / "kept") == [3, 1, 4]


@every(INDEXED)
@pytest.mark.parametrize("change", ["contents", "size", "time", "name", "fewer", "place"])
def test_index_of_other_files_is_made_again(
    change: str, sample: Sample, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, kept = tmp_path / "data", tmp_path / "kept"
    path = stored(sample, folder, (1, 222))
    second = sample.file(folder / f"1{sample.ending}", [5])
    sample.open(folder, kept)
    expected = [1, 222, 5]
    match change:
        case "contents":
            stored(sample, folder, (333, 4))
            expected = [333, 4, 5]
        case "size":
            stored(sample, folder, (7, 7, 7))
            expected = [7, 7, 7, 5]
        case "time":
            os.utime(path, (1, 1))
        case "name":
            second.rename(folder / f"2{sample.ending}")
        case "fewer":
            second.unlink()
            expected = [1, 222]
        case "place":
            folder = folder.rename(tmp_path / "moved")
    assert sample.numbers(folder, kept) == expected
    assert "records.json does not match" in caplog.text
    caplog.clear()
    assert sample.numbers(folder, kept) == expected
    assert "does not match" not in caplog.text


@every(INDEXED)
def test_remote_files_need_an_index_folder_in_a_run_of_several_processes(
    sample: Sample, tmp_path: Path, range_server: RangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = sample.file(tmp_path / f"a{sample.ending}", [3, 1, 4])
    url = f"{range_server.url}/{path.name}"
    for module in ("sources.file_index", "kept.kept_pass"):
        monkeypatch.setattr(f"loadax.{module}.this_process", lambda: Process(1, 4))
    assert sample.numbers(path) == [3, 1, 4]
    message = rf"{sample.function}\(\) without index=, in a run of 4 processes: each would read all 1 file; pass index="
    with pytest.raises(ArgumentError, match=message):
        sample.open(url, None)
    assert sample.numbers(url, tmp_path / "kept") == [3, 1, 4]


@pytest.mark.parametrize("name", ["jsonl", "tfrecord"])
def test_error_of_a_record_names_the_index_to_delete(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index that another program wrote may pass all checks; what the error advises helps."""
    sample, kept = SAMPLES[name], tmp_path / "kept"
    with monkeypatch.context() as patched:
        patched.setattr("loadax.sources.file_index.identity_of", lambda *_: {})
        sample.open(stored(sample, tmp_path / "data", WIDTHS[0]), kept)
        path = stored(sample, tmp_path / "data", WIDTHS[1])
        with pytest.raises(SourceError, match=r"by its index .*records\.json, to be deleted if the file is r") as error:
            sample.numbers(path, kept)
        named = str(error.value).partition("by its index ")[2].partition(", to be deleted")[0]
        Path(named).unlink()
        assert sample.numbers(path, kept) == [*WIDTHS[1]]


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


@every()
def test_file_replaced_between_two_opens_of_one_process(sample: Sample, tmp_path: Path) -> None:
    """By one of equal size and time, while a dataset of the first one is still open."""
    opened = []
    for numbers in ((1, 2), (3, 4)):
        path = stored(sample, tmp_path, numbers)
        opened.append(sample.open(path))
        assert sample.numbers(path) == [*numbers]


def test_rows_that_are_kept_of_a_remote_file_that_was_replaced(tmp_path: Path, http_proxy: FaultProxy) -> None:
    """The rows that differ are between the sampled ones."""
    for offset in range(2):
        values = np.arange(10_000)
        values[5::1000] += offset
        np.save(tmp_path / "a.npy", values)
        data = loadax.from_npy(f"{http_proxy.url}/a.npy")
        kept = data.filter(is_even, key="even", index=tmp_path / "index", progress=False)
        assert kept.read(range(len(kept))).tolist() == values[values % 2 == 0].tolist()
