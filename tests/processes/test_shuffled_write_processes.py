"""Writers of shuffled datasets that are killed, or run concurrently: real processes, real signals."""

import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from loadax.io import write_zarr
from tests.limits import HANG, until
from tests.writing.rows import files
from tests.writing.shuffled import Chunks, shuffled, start

pytestmark = pytest.mark.filterwarnings("ignore:shuffle.seed. of data whose chunks")

ROWS, SHARD = 6400, 400


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    path = tmp_path_factory.mktemp("undisturbed") / "s"
    write_zarr(shuffled(Chunks(ROWS)), path, shard_rows=SHARD)
    return files(path)


def test_killed_writer_goes_on_with_the_parts_that_are_missing(tmp_path: Path, undisturbed: dict[str, bytes]) -> None:
    path = tmp_path / "s"
    for attempt, stop in enumerate(({"endless_from": 2000}, {"endless_part": 9}, {})):
        log = tmp_path / f"log{attempt}"
        child = start(path, log=str(log), rows=ROWS, shard_rows=SHARD, resume=True, **stop)

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
        assert len(read(log)) == len(set(read(log)))
    assert len(read(tmp_path / "log1")) == ROWS // 64  # the whole source once
    assert files(path) == undisturbed
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []


def read(log: Path) -> list[int]:
    """First rows of the reads of a log."""
    return [int(line) for line in log.read_text().split()] if log.exists() else []


def test_processes_that_write_the_same_store(tmp_path: Path, undisturbed: dict[str, bytes]) -> None:
    path = tmp_path / "s"
    children = [start(path, rows=ROWS, shard_rows=SHARD, resume=True) for _ in range(2)]
    problems = [child.communicate(timeout=HANG)[1] for child in children]
    assert [child.returncode for child in children] == [0, 0], problems
    assert files(path) == undisturbed
