"""Stores that several processes write together, or an executor's workers: the bytes are those of one writer."""

import multiprocessing
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadax import Dataset, from_source, write_zarr
from loadax.errors import ArgumentError
from tests.limits import HANG, until
from tests.writing.rows import files

ROOT = Path(__file__).parents[2]
CACHE = """
import os, sys, time, loadax, numpy as np
from pathlib import Path
Path(sys.argv[2]).touch()
ready = Path(sys.argv[1] + ".ready")
ready.mkdir(exist_ok=True)
(ready / str(os.getpid())).touch()
while len(list(ready.iterdir())) < int(sys.argv[-1]):  # for other programs
    time.sleep(0.01)
def slow(row):
    with open(sys.argv[2], "a") as calls:
        calls.write(f"{row}\\n")
    time.sleep(0.004)
    return {"tokens": np.arange(row % 9) + row, "row": np.int64(row)}
loadax.from_source(range(600)).map(slow).cache(sys.argv[1], shard_rows=10, chunk_rows=5)
"""


def slow(row: int) -> Any:
    return {"tokens": np.arange(row % 9) + row, "row": np.int64(row)}


def start(path: Path, calls: Path, together: int = 1) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", CACHE, str(path), str(calls), str(together)]
    return subprocess.Popen(command, cwd=ROOT, text=True)


def rows_of(calls: list[Path]) -> list[str]:
    return [row for log in calls for row in log.read_text().split()]


@pytest.mark.processes
def test_programs_that_cache_to_one_folder_map_each_row_once(tmp_path: Path) -> None:
    logs = [tmp_path / name for name in "abc"]
    processes = [start(tmp_path / "s", log, len(logs)) for log in logs]
    assert [process.wait(HANG) for process in processes] == [0, 0, 0]
    rows, sample = rows_of(logs), 32
    assert {*rows} == {*map(str, range(600))}
    # A busy machine may delay a part until a second copy of it is begun, and a process that comes late samples again.
    assert len(rows) <= 600 + 5 * sample
    assert sum(len(rows_of([log])) > 2 * sample for log in logs) > 1
    with start(tmp_path / "one", tmp_path / "d") as process:
        assert process.wait(HANG) == 0
    assert files(tmp_path / "s") == files(tmp_path / "one")


@pytest.mark.processes
def test_parts_of_a_killed_writer_are_written_by_the_other(tmp_path: Path) -> None:
    with start(tmp_path / "s", tmp_path / "a", 2) as killed, start(tmp_path / "s", tmp_path / "b", 2) as other:
        until(lambda: len([*(tmp_path / "s").glob("loadax.parts/*.npz")]) > 5)
        killed.kill()
        killed.wait()
        assert other.wait(HANG) == 0
    assert not [*(tmp_path / "s").glob("loadax.p*")]
    cached = from_source(range(600)).map(slow).cache(tmp_path / "t", shard_rows=10, chunk_rows=5)
    assert cached[599]["row"] == 599
    ours, theirs = files(tmp_path / "t"), files(tmp_path / "s")
    assert {name: ours[name] for name in ours if name != "loadax.json"} == {
        name: theirs[name] for name in theirs if name != "loadax.json"
    }


def spawned() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(2, multiprocessing.get_context("spawn"))


@pytest.mark.processes
@pytest.mark.parametrize("data", [from_source(range(200)).map(slow), from_source(np.arange(400).reshape(200, 2))])
def test_executor_writes_the_same_bytes(data: Dataset, tmp_path: Path) -> None:
    sizes = {"shard_rows": 20, "chunk_rows": 10}
    write_zarr(data, tmp_path / "a", **sizes, executor=spawned)  # type: ignore[arg-type]
    write_zarr(data, tmp_path / "b", **sizes)  # type: ignore[arg-type]
    with ThreadPoolExecutor(2) as executor:
        data.cache(tmp_path / "c", **sizes, executor=executor)  # type: ignore[arg-type]
    assert files(tmp_path / "a") == files(tmp_path / "b")
    assert {*files(tmp_path / "c")} == {*files(tmp_path / "b")}


def test_executor_needs_a_folder_that_its_workers_share(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as executor:
        with pytest.raises(
            ArgumentError, match=r"executor= with shard=\(0, 2\): its workers keep parts in a folder that"
        ):
            write_zarr([1, 2], tmp_path / "s", shard=(0, 2), executor=executor)
        with pytest.raises(ArgumentError, match="executor= with a URL: its workers keep parts in a folder that they"):
            write_zarr([1, 2], "memory://s/", executor=executor)
