"""Writers that are killed, interrupted, or work side by side: real processes, real signals."""

import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadax.errors import SourceError
from loadax.io import from_zarr
from loadax.writing.store_damage import verify
from loadax.writing.write import write_zarr
from tests.limits import HANG, until
from tests.writing.child import ragged, start
from tests.writing.rows import TreeRows, files, tree_of

ROWS, SHARD = 300, 10


def wait_until_it_begins(child: subprocess.Popen[str]) -> None:
    assert child.stdout is not None
    assert child.stdout.readline() == "begins\n"


def wait_for(path: Path, child: subprocess.Popen[str]) -> None:
    until(lambda: path.exists() or child.poll() is not None)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    path = tmp_path_factory.mktemp("undisturbed") / "s"
    write_zarr(TreeRows(tree_of(ROWS)), path, shard_rows=SHARD)
    return files(path)


@pytest.mark.parametrize("seed", range(2))
def test_killed_at_any_moment_it_goes_on(seed: int, tmp_path: Path, undisturbed: dict[str, bytes]) -> None:
    path, moments = tmp_path / "s", random.Random(seed)
    progress = [0]
    for attempt in range(6):
        # It never comes to its end by itself: from a few parts on its rows are endless.
        child = start(
            path, rows=ROWS, shard_rows=SHARD, pause=0.02, resume=True, endless_from=(progress[-1] + 4) * SHARD
        )
        wait_until_it_begins(child)
        if attempt >= 2:  # the first two are killed among the markers and the metadata
            wait_for(path / f"image/c/{progress[-1] + 1}", child)
        time.sleep(moments.random() * 0.05)
        child.kill()
        child.communicate(timeout=HANG)
        assert child.returncode == -signal.SIGKILL
        progress.append(len(list(path.glob("image/c/*"))))
        if not (path / "loadax.json").exists() and path.exists() and any(path.glob("*.json")):
            with pytest.raises(SourceError, match="the store is unfinished"):
                from_zarr(path)
    assert progress == sorted(progress)
    assert progress[-1] > 0
    last = start(path, rows=ROWS, shard_rows=SHARD, resume=True)
    _, problem = last.communicate(timeout=HANG)
    assert last.returncode == 0, problem
    assert files(path) == undisturbed
    assert not verify(path).damages


def test_killed_shares_go_on(tmp_path: Path, undisturbed: dict[str, bytes]) -> None:
    path = tmp_path / "s"
    arguments: dict[str, Any] = {"rows": ROWS, "shard_rows": SHARD, "pause": 0.01}
    children = [
        start(path, **arguments, shard=(index, 3), endless_from=[ROWS, 10 * SHARD, ROWS][index]) for index in range(3)
    ]
    wait_for(path / "image/c/1", children[1])
    children[1].kill()
    codes = [child.communicate(timeout=HANG) and child.returncode for child in children]
    assert codes == [0, -signal.SIGKILL, 0]
    with pytest.raises(SourceError, match="the store is unfinished"):
        from_zarr(path)
    again = start(path, **arguments, shard=(1, 3), resume=True)
    _, problem = again.communicate(timeout=HANG)
    assert again.returncode == 0, problem
    assert files(path) == undisturbed


def test_killed_writers_of_ragged_rows_resume(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"rows": 200, "shard_rows": 10, "of_any_length": True}
    write_zarr(ragged(200, 0), tmp_path / "one", shard_rows=10)
    path = tmp_path / "s"
    children = [start(path, **arguments, pause=0.01, resume=True, shard=(index, 2)) for index in (1, 0)]
    wait_for(path / "tokens/c/5", children[0])
    for child in children:
        child.kill()
        child.communicate(timeout=HANG)
    with pytest.raises(SourceError, match="the store is unfinished"):
        from_zarr(path)
    for index in range(2):
        last = start(path, **arguments, resume=True, shard=(index, 2))
        _, problem = last.communicate(timeout=HANG)
        assert last.returncode == 0, problem
    assert files(path) == files(tmp_path / "one")
    assert [len(row["tokens"]) for row in from_zarr(path)] == [row % 13 for row in range(200)]


def test_two_processes_side_by_side(tmp_path: Path, undisturbed: dict[str, bytes]) -> None:
    path = tmp_path / "s"
    children = [start(path, rows=ROWS, shard_rows=SHARD, shard=(index, 2)) for index in range(2)]
    problems = [child.communicate(timeout=HANG)[1] for child in children]
    assert [child.returncode for child in children] == [0, 0], problems
    assert files(path) == undisturbed
    np.testing.assert_array_equal(from_zarr(path).read(np.arange(ROWS))["image"], tree_of(ROWS)["image"])


def test_an_interrupt_stops_it_and_says_how_to_go_on(tmp_path: Path, undisturbed: dict[str, bytes]) -> None:
    path = tmp_path / "s"
    child = start(path, rows=ROWS, shard_rows=SHARD, pause=0.01, endless_from=20 * SHARD)
    wait_for(path / "image/c/3", child)
    child.send_signal(signal.SIGINT)
    _, problem = child.communicate(timeout=HANG)
    assert child.returncode in (1, -signal.SIGINT)
    assert "KeyboardInterrupt" in problem
    assert f"loadax: {path} is unfinished; resume it with resume=True, on the command line --resume" in problem
    assert not (path / "loadax.json").exists()
    write_zarr(TreeRows(tree_of(ROWS)), path, shard_rows=SHARD, resume=True)
    assert files(path) == undisturbed


def test_memory_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    """Parts of 16 MiB: 4 of them, or 16."""
    peaks = []
    for rows in (1024, 4096):
        child = start(tmp_path / f"s{rows}", rows=rows, shard_rows=256, computed=True)
        output, problem = child.communicate(timeout=HANG)
        assert child.returncode == 0, problem
        peaks.append(int(output.split()[-1]))
    assert peaks[1] - peaks[0] < 32, peaks
