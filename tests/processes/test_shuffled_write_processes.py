"""Writers of shuffled datasets that are killed, run concurrently, or measured: real processes, real signals."""

import random
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadax.io import write_zarr
from tests.limits import HANG, until
from tests.writing.rows import files
from tests.writing.shuffled import Chunks, shuffled, start

pytestmark = pytest.mark.filterwarnings("ignore:shuffle.seed. of data whose chunks")

ROWS, SHARD, MEMORY = 6400, 400, 512 << 10


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    path = tmp_path_factory.mktemp("undisturbed") / "s"
    write_zarr(shuffled(Chunks(ROWS)), path, shard_rows=SHARD)
    return files(path)


def test_killed_writer_continues_from_the_rows_on_disk(tmp_path: Path, undisturbed: dict[str, bytes]) -> None:
    path, rows = tmp_path / "s", tmp_path / "s/loadax.part-0-of-1.rows"
    limits: dict[str, Any] = {"rows": ROWS, "shard_rows": SHARD, "memory": MEMORY, "resume": True}
    covered = [0]
    for attempt, stop in enumerate(({"endless_from": 2000}, {"endless_from": 5000}, {"endless_part": 9}, {})):
        log = tmp_path / f"log{attempt}"
        child = start(path, log=str(log), **limits, **stop)

        def blocks(log: Path = log, stop: dict[str, int] = stop, child: Any = child) -> bool:
            if "endless_part" in stop:
                return child.poll() is not None or (path / f"x/c/{stop['endless_part'] - 2}").exists()
            return child.poll() is not None or (log.exists() and max(read(log), default=0) >= stop["endless_from"] - 64)

        if stop:
            until(blocks)
            time.sleep(random.Random(attempt).random() * 0.1)
            child.kill()
        _, problem = child.communicate(timeout=HANG)
        assert child.returncode == (-signal.SIGKILL if stop else 0), problem
        assert min(read(log), default=covered[-1]) == covered[-1]
        assert len(read(log)) == len(set(read(log)))
        if stop:
            covered.append(int(np.fromfile(rows, np.int64, 2)[1]))
    assert covered == sorted(covered)
    assert 0 < covered[1] < covered[2] < covered[3] == ROWS
    assert read(tmp_path / "log3") == []
    assert files(path) == undisturbed
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []


def read(log: Path) -> list[int]:
    """First rows of the reads of a log."""
    return [int(line) for line in log.read_text().split()] if log.exists() else []


def test_file_that_cannot_grow_is_named_and_written_on_later(tmp_path: Path, undisturbed: dict[str, bytes]) -> None:
    path, arguments = tmp_path / "s", {"rows": ROWS, "shard_rows": SHARD, "memory": MEMORY}
    _, problem = start(path, **arguments, largest_file=3 << 20).communicate(timeout=HANG)
    assert (
        f"SourceError: {path}/loadax.part-0-of-1.rows: the temporary file failed: [Errno 27] File too large" in problem
    )
    assert f"free disk space, and resume\nloadax: {path} is unfinished; resume it with resume=True" in problem
    child = start(path, **arguments, resume=True)
    _, problem = child.communicate(timeout=HANG)
    assert child.returncode == 0, problem
    assert files(path) == undisturbed


def test_processes_that_write_the_same_store(tmp_path: Path, undisturbed: dict[str, bytes]) -> None:
    path = tmp_path / "s"
    children = [start(path, rows=ROWS, shard_rows=SHARD, memory=MEMORY, resume=True) for _ in range(2)]
    problems = [child.communicate(timeout=HANG)[1] for child in children]
    assert [child.returncode for child in children] == [0, 0], problems
    assert files(path) == undisturbed


def test_memory_is_bounded_whatever_the_number_of_rows(tmp_path: Path) -> None:
    peaks = []
    for rows in (16_000, 96_000):
        child = start(tmp_path / f"s{rows}", rows=rows, shard_rows=2000, memory=4 << 20)
        output, problem = child.communicate(timeout=HANG)
        assert child.returncode == 0, problem
        peaks.append(int(output))
    assert peaks[1] - peaks[0] < 24, peaks
