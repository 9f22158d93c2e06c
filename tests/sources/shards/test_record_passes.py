"""Indices of records are made in parts, which are kept, shared, and run on executors: the same bytes as at once."""

import multiprocessing
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import loadax
from loadax.errors import SourceError
from loadax.sources.format import RecordOptions
from loadax.sources.formats import FORMATS
from loadax.sources.open_files import open_files
from tests.formats.samples import SAMPLES, Sample, every
from tests.limits import HANG, until
from tests.sources.shards.corpora import numbered, write_tar

ROOT = Path(__file__).parents[3]
FILES = 12
SLOW = """
import sys, time, loadax
from loadax.sources.shards import examples, webdataset
scan = examples.scan_examples
def slow(location, size):
    with open(sys.argv[3], "a") as scans:
        scans.write(location + "\\n")
    time.sleep(0.1)
    return scan(location, size)
webdataset.RECORDS = examples.RECORDS._replace(scan=slow)
loadax.from_webdataset(sys.argv[1], index=sys.argv[2])
"""


def start(folder: Path, index: Path, scans: Path) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", SLOW, str(folder), str(index), str(scans)], cwd=ROOT)


def arrays(index: Path) -> dict[str, bytes]:
    """The files of an index, but for its description, which names them by their contents."""
    assert not [*index.glob("*.parts")]
    return {path.name: path.read_bytes() for path in index.glob("*.npy")}


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """Tar files whose examples have the extensions in this order, or in the other."""
    for number in range(FILES):
        members = [*numbered(3, 3 * number).items()]
        write_tar(tmp_path / "data" / f"{number:02}.tar", dict(members[:: (-1) ** number]))
    return tmp_path / "data"


@pytest.fixture
def straight(shards: Path, tmp_path: Path) -> dict[str, bytes]:
    """The index that is made at once."""
    loadax.from_webdataset(shards, index=tmp_path / "straight")
    return arrays(tmp_path / "straight")


@pytest.mark.processes
def test_killed_record_index_scans_no_finished_file_again(
    shards: Path, straight: dict[str, bytes], tmp_path: Path
) -> None:
    index, scans = tmp_path / "index", tmp_path / "scans"
    kept = 0
    for _ in range(2):
        with start(shards, index, scans) as process:
            until(lambda kept=kept: len([*index.glob("*.parts/*.npz")]) > kept + 2)  # type: ignore[misc]
            process.kill()
        kept = len([*index.glob("*.parts/*.npz")])
    with start(shards, index, scans) as process:
        assert process.wait(HANG) == 0
    scanned = scans.read_text().split()
    assert len({*scanned}) == FILES
    assert len(scanned) <= FILES + 2  # of each killed program, what it worked on
    assert arrays(index) == straight


@pytest.mark.processes
def test_programs_that_share_an_index_scan_each_file_once(
    shards: Path, straight: dict[str, bytes], tmp_path: Path
) -> None:
    index, logs = tmp_path / "index", [tmp_path / name for name in "ab"]
    processes = [start(shards, index, scans) for scans in logs]
    for process in processes:
        assert process.wait(HANG) == 0
    scanned = [scans.read_text().split() for scans in logs]
    assert sorted(scanned[0] + scanned[1]) == sorted(map(str, shards.iterdir()))
    assert all(scanned)
    assert arrays(index) == straight


@pytest.mark.parametrize("most", [1, 5, 512])
@every({name: SAMPLES[name] for name in ("jsonl", "webdataset", "tfrecord")})
def test_index_of_any_number_of_parts_is_the_same(
    sample: Sample, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(9):
        sample.file(tmp_path / "data" / f"{number}{sample.ending}", [number, number + 1][: 1 + number % 2])
    sample.open(tmp_path / "data", tmp_path / "a")
    monkeypatch.setattr("loadax.sources.file_index.PART", 1)
    monkeypatch.setattr("loadax.sources.file_index.FEW_PARTS", 1)
    monkeypatch.setattr("loadax.sources.file_index.PARTS", most)
    sample.open(tmp_path / "data", tmp_path / "b")
    assert arrays(tmp_path / "a") == arrays(tmp_path / "b")
    assert sample.numbers(tmp_path / "data") == sample.numbers(tmp_path / "data", tmp_path / "b")


@pytest.mark.processes
def test_process_pool_gives_the_same_record_index(tmp_path: Path) -> None:
    def pool() -> ProcessPoolExecutor:
        return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))

    for name in ("jsonl", "webdataset", "tfrecord"):
        sample: Any = SAMPLES[name]
        folder = tmp_path / name
        for number in range(3):
            sample.file(folder / f"{number}{sample.ending}", [number, number + 1])
        sample.open(folder, folder / "a")
        open_files(FORMATS[sample.function], folder, RecordOptions(folder / "b", executor=pool))
        assert arrays(folder / "a") == arrays(folder / "b")


def test_damaged_file_of_a_record_index_is_named_and_others_are_kept(shards: Path, tmp_path: Path) -> None:
    path = shards / "05.tar"
    path.write_bytes(path.read_bytes()[:1000])
    message = rf"{path}: the tar file is cut short at byte 1000 after '000017.cls'.*\n.*: 5 of 12 parts are kept in"
    with pytest.raises(SourceError, match=message):
        loadax.from_webdataset(shards, index=tmp_path / "index")
