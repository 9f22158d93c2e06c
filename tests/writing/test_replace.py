"""overwrite=True: the old store is deleted once the new one is complete, and no file of others is deleted."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import loadax
from loadax.errors import ArgumentError, SourceError
from loadax.files.kept_files import temporary_file
from loadax.writing.keys import own_keys
from loadax.writing.write import write_zarr
from tests.limits import HANG
from tests.processes.test_write_processes import wait_until_it_begins
from tests.writing.child import start
from tests.writing.rows import TreeRows, files, made_up, tree_of

ROOT = Path(__file__).parents[2]
OLD = TreeRows({"old": made_up(np.int8, (500,))}, name="old")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A whole store, which others would overwrite."""
    write_zarr(OLD, tmp_path / "s", shard_rows=100)
    return tmp_path / "s"


def names(folder: Path) -> set[str]:
    return {each.name for each in folder.iterdir()}


def test_a_source_that_fails_leaves_the_old_store(store: Path, tmp_path: Path) -> None:
    before = files(store)
    failing = TreeRows({"x": np.arange(1000)}, fails_at=900)
    with pytest.raises(OSError, match="position 900 is gone") as caught:
        write_zarr(failing, store, shard_rows=100, overwrite=True)
    assert f"loadax: {store} is unchanged: the new store is unfinished, and is deleted" in caught.value.__notes__
    assert files(store) == before
    assert names(tmp_path) == {"s"}
    whole = TreeRows({"x": np.arange(1000)})
    write_zarr(whole, store, shard_rows=100, overwrite=True)
    write_zarr(whole, tmp_path / "fresh", shard_rows=100)
    assert files(store) == files(tmp_path / "fresh")
    assert names(tmp_path) == {"s", "fresh"}


def test_through_a_link_the_folder_that_it_points_to_is_replaced(store: Path, tmp_path: Path) -> None:
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "s").symlink_to(store)
    write_zarr(TreeRows({"x": np.arange(7)}), tmp_path / "links" / "s", overwrite=True)
    assert (tmp_path / "links" / "s").is_symlink()
    assert len(loadax.from_zarr(store)) == len(loadax.from_zarr(tmp_path / "links" / "s")) == 7
    assert names(tmp_path) == {"s", "links"}


def test_the_old_store_is_read_meanwhile(store: Path) -> None:
    """What is written may even follow from it, as long as nobody says so: it is there to the last."""

    class Reads:
        @property
        def spec(self) -> Any:
            return {"x": np.empty((), np.int8)}

        def __len__(self) -> int:
            return 500

        def read(self, rows: Any) -> Any:
            return {"x": loadax.from_zarr(store).read(rows)["old"]}

    loadax.write_zarr(Reads(), store, overwrite=True, progress=False)
    assert loadax.from_zarr(store).read(range(500))["x"].tolist() == OLD.tree["old"].tolist()


@pytest.mark.processes
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGKILL])
def test_a_stopped_process_leaves_the_old_store(stop: signal.Signals, store: Path, tmp_path: Path) -> None:
    before = files(store)
    child = start(store, rows=300, shard_rows=10, pause=0.05, overwrite=True)
    wait_until_it_begins(child)
    deadline = threading.Event()
    for _ in range(2000):  # until some of the new store is written
        if child.poll() is not None or any(
            each.name.endswith(".new") and (each / "image" / "c").exists() for each in tmp_path.iterdir()
        ):
            break
        deadline.wait(0.01)
    child.send_signal(stop)
    child.communicate(timeout=HANG)
    assert child.returncode != 0
    assert files(store) == before
    if stop == signal.SIGINT:
        assert names(tmp_path) == {"s"}
    else:
        assert len(names(tmp_path)) == 3  # what is left is swept by the next writer
    write_zarr(TreeRows(tree_of(300)), store, shard_rows=10, overwrite=True)
    assert len(loadax.from_zarr(store)) == 300
    assert names(tmp_path) == {"s"}


def leftovers_of_killed_writer(store: Path) -> tuple[Path, Path, Path]:
    """A lock file that no process holds, and the folders that belong to it."""
    with temporary_file(store.parent, prefix=f".{store.name}") as (_, lock):
        pass
    lock.touch()
    return lock, lock.with_name(f"{lock.name}.new"), lock.with_name(f"{lock.name}.old")


def test_new_store_of_writer_killed_between_renames_is_put_in_its_place(store: Path, tmp_path: Path) -> None:
    _, new, old = leftovers_of_killed_writer(store)
    store.rename(old)
    write_zarr(TreeRows({"x": np.arange(7)}), new)
    with pytest.raises(ArgumentError, match="is a finished store, with rows: 7"):
        write_zarr(TreeRows({"x": np.arange(9)}), store)
    assert len(loadax.from_zarr(store)) == 7
    assert names(tmp_path) == {"s"}


def test_unfinished_store_and_one_that_was_deleted_are_not_put_back(store: Path, tmp_path: Path) -> None:
    lock, new, old = leftovers_of_killed_writer(store)
    store.rename(old)
    with pytest.raises(OSError, match="is gone"):
        write_zarr(TreeRows({"x": np.arange(90)}, fails_at=80), new, shard_rows=10)
    write_zarr(TreeRows({"x": np.arange(9)}), store)
    assert names(tmp_path) == {"s", lock.name, new.name, old.name}
    assert (len(loadax.from_zarr(store)), len(loadax.from_zarr(old))) == (9, 500)
    write_zarr(TreeRows({"x": np.arange(8)}), store, overwrite=True)
    assert names(tmp_path) == {"s"}


def test_foreign_files_in_an_old_store_are_not_swept(
    store: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They have appeared between the check and the renames, and the process was killed before it looked again."""
    _, _, old = leftovers_of_killed_writer(store)
    shutil.copytree(store, old)
    (old / "thesis.txt").write_text("mine")
    write_zarr(TreeRows({"x": np.arange(8)}), store, overwrite=True)
    assert (old / "thesis.txt").read_text() == "mine"
    assert f"files that appeared during the overwrite were moved to {old}" in caplog.text
    write_zarr(TreeRows({"x": np.arange(8)}), store, overwrite=True)
    assert names(tmp_path) == {"s", old.name}


def test_old_store_that_is_half_deleted_is_swept(store: Path, tmp_path: Path) -> None:
    lock, _, old = leftovers_of_killed_writer(store)
    shutil.copytree(store, old)
    (old / "loadax.json").unlink()
    lock.write_bytes(b"old")
    write_zarr(TreeRows({"x": np.arange(8)}), store, overwrite=True)
    assert names(tmp_path) == {"s"}


def test_new_store_whose_renaming_failed_is_not_swept(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", lambda *_: os.replace("/nowhere", "/nowhere/at/all"))  # noqa: PTH105
        with pytest.raises(SourceError, match="the new store is complete at") as caught:
            write_zarr(TreeRows({"x": np.arange(8)}), store, overwrite=True)
    write_zarr(TreeRows({"x": np.arange(9)}), store, overwrite=True)
    (left,) = names(tmp_path) - {"s"}
    assert left in str(caught.value)
    assert len(loadax.from_zarr(tmp_path / left)) == 8


def test_leftovers_of_other_stores_and_of_living_writers_stay(store: Path, tmp_path: Path) -> None:
    lock, new, _ = leftovers_of_killed_writer(store.with_name("s2"))
    with temporary_file(tmp_path, prefix=".s") as (_, held):
        (tmp_path / f"{held.name}.new").mkdir()
        new.mkdir()
        write_zarr(OLD, store, overwrite=True)
        assert names(tmp_path) == {"s", lock.name, new.name, held.name, f"{held.name}.new"}


def test_several_at_once(store: Path, tmp_path: Path) -> None:
    rows = TreeRows({"x": np.arange(400)}, pause=0.001)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: write_zarr(rows, store, shard_rows=20, overwrite=True), range(4)))
    assert loadax.from_zarr(store).read(range(400))["x"].tolist() == list(range(400))
    assert names(tmp_path) == {"s"}


STOPPED = """
import pathlib, shutil, sys, time, numpy as np, loadax
point, store = sys.argv[1:]
rename, rmtree = pathlib.Path.rename, shutil.rmtree
def pause(here):
    if here == point:
        print("here", flush=True)
        time.sleep(1.0)
def slow_rename(path, to):
    which = "first" if str(to).endswith(".old") else "second"
    pause(f"before the {which} rename")
    renamed = rename(path, to)
    pause(f"after the {which} rename")
    return renamed
def slow_rmtree(path, *more, **options):
    if str(path).endswith(".old"):
        pause("before the deletion")
        (path / "loadax.json").unlink()
        pause("within the deletion")
    return rmtree(path, *more, **options)
pathlib.Path.rename, shutil.rmtree = slow_rename, slow_rmtree
loadax.write_zarr({"new": np.arange(1000)}, store, chunk_rows=8, overwrite=True)
"""


@pytest.mark.processes
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize(
    "point",
    [
        *("before the first rename", "after the first rename", "before the second rename", "after the second rename"),
        *("before the deletion", "within the deletion"),
    ],
)
def test_process_that_is_stopped_while_it_replaces_a_store(
    point: str, stop: signal.Signals, store: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", STOPPED, point, str(store)]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    child = subprocess.Popen(command, cwd=ROOT, **pipes)
    assert child.stdout is not None
    assert child.stdout.readline() == "here\n"
    child.send_signal(stop)
    said = child.communicate(timeout=HANG)[1]
    assert child.returncode != 0
    if stop == signal.SIGINT:
        assert f"loadax: {store} is the new store; the old one, {tmp_path}" in said
        assert loadax.from_zarr(store).read(range(9))["new"].tolist() == list(range(9))
    elif point in ("after the first rename", "before the second rename"):
        assert not store.exists()
        with pytest.raises(ArgumentError, match="is a finished store, with rows: 1000"):
            write_zarr(TreeRows({"x": np.arange(9)}), store)  # which has found it
    assert len(loadax.from_zarr(store)) in (500, 1000)
    write_zarr(TreeRows({"x": np.arange(9)}), store, overwrite=True)
    assert len(loadax.from_zarr(store)) == 9
    assert names(tmp_path) == {"s"}


def test_interrupt_while_the_thread_of_a_swap_starts_changes_nothing(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start of a thread waits, and a Ctrl-C may arrive then."""
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        if thread.name.startswith("loadax-swap"):
            time.sleep(0.1)  # what the thread does has begun
            raise KeyboardInterrupt

    monkeypatch.setattr("threading.Thread.start", interrupted)
    before = loadax.from_zarr(store).read(range(9))
    with pytest.raises(KeyboardInterrupt) as stopped:
        write_zarr(TreeRows({"x": np.arange(9)}), store, overwrite=True)
    assert f"loadax: {store} is unchanged" in " ".join(getattr(stopped.value, "__notes__", ()))
    monkeypatch.undo()
    np.testing.assert_equal(loadax.from_zarr(store).read(range(9)), before)
    write_zarr(TreeRows({"x": np.arange(9)}), store, overwrite=True)
    assert names(tmp_path) == {"s"}


def test_cache_that_was_killed_between_the_renames_is_found_again(tmp_path: Path) -> None:
    rows = loadax.from_source(range(50))
    store = tmp_path / "s"
    rows.cache(store)
    _, new, old = leftovers_of_killed_writer(store)
    store.rename(new)
    shutil.copytree(new, old)
    before = {path.relative_to(new): path.stat().st_ino for path in new.rglob("*")}
    assert list(rows.cache(store)) == list(range(50))
    assert {path.relative_to(store): path.stat().st_ino for path in store.rglob("*")} == before
    assert names(tmp_path) == {"s"}


class TestForeignFiles:
    @pytest.mark.parametrize(
        "name",
        [
            "thesis.txt",
            "old/notes.md",
            "old/c/readme",
            "more/zarr.json",
            "0/1",
            "results/0/1",
            "old/sub/zarr.json",
            ".hidden",
        ],
    )
    def test_are_refused_by_name_and_stay(self, name: str, store: Path) -> None:
        (store / name).parent.mkdir(parents=True, exist_ok=True)
        (store / name).write_text("mine")
        before = files(store)
        with pytest.raises(
            ArgumentError, match=rf"s: overwrite=True would delete files that don't belong to the store: {name}; move"
        ):
            write_zarr(TreeRows({"x": np.arange(7)}), store, overwrite=True)
        assert files(store) == before
        (store / name).rename(store.parent / "elsewhere")  # as it says
        write_zarr(TreeRows({"x": np.arange(7)}), store, overwrite=True)
        assert len(loadax.from_zarr(store)) == 7
        assert (store.parent / "elsewhere").read_text() == "mine"

    def test_in_a_half_written_store(self, store: Path) -> None:
        (store / "loadax.json").rename(store / "loadax.partial.json")
        (store / "thesis.txt").write_text("mine")
        with pytest.raises(ArgumentError, match=r"don't belong to the store: thesis\.txt; move"):
            write_zarr(TreeRows({"x": np.arange(7)}), store, overwrite=True)
        assert (store / "old" / "c" / "0").exists()

    @pytest.mark.parametrize("version", [2, 3])
    def test_in_a_store_of_another_writer(self, version: Any, tmp_path: Path) -> None:
        group = zarr.open_group(tmp_path / "s", mode="w", zarr_format=version)
        deep = group.create_group("a").create_array("b", shape=(4, 4), chunks=(2, 2), dtype="i4")
        deep[...] = 3
        before = files(tmp_path / "s")
        with pytest.raises(
            ArgumentError, match=r"s: overwrite=True deletes only stores that loadax wrote, .*, or delete it yourself"
        ):
            write_zarr(OLD, tmp_path / "s", overwrite=True)
        assert files(tmp_path / "s") == before
        shutil.rmtree(tmp_path / "s")  # as it says
        write_zarr(OLD, tmp_path / "s", overwrite=True)
        assert len(loadax.from_zarr(tmp_path / "s")) == 500

    def test_links_are_not_followed(self, store: Path, tmp_path: Path) -> None:
        (tmp_path / "photos").mkdir()
        (tmp_path / "photos" / "0").write_text("mine")
        (store / "photos").symlink_to(tmp_path / "photos")
        with pytest.raises(ArgumentError, match=r"don't belong to the store: photos; move"):
            write_zarr(OLD, store, overwrite=True)
        (store / "photos").rename(store / "old" / "c" / "7")  # called like a chunk: only the link goes
        write_zarr(OLD, store, overwrite=True)
        assert (tmp_path / "photos" / "0").read_text() == "mine"

    def test_that_appear_while_it_is_written(self, store: Path, caplog: pytest.LogCaptureFixture) -> None:
        class Writes(TreeRows):
            def read(self, positions: Any) -> Any:
                (store / "thesis.txt").write_text("mine")
                return super().read(positions)

        write_zarr(Writes({"x": np.arange(7)}), store, overwrite=True)
        assert len(loadax.from_zarr(store)) == 7
        message = "s: files that appeared during the overwrite were moved to "
        (moved,) = [record.getMessage() for record in caplog.records if message in record.getMessage()]
        kept = Path(moved.split(message)[1])
        assert (kept / "thesis.txt").read_text() == "mine"
        write_zarr(TreeRows({"x": np.arange(9)}), store, overwrite=True)
        assert (kept / "thesis.txt").read_text() == "mine"


def test_which_keys_are_a_stores_own() -> None:
    own = ["zarr.json", "loadax.json", "loadax.partial.json", "loadax.part-0-of-4.json"]
    own += ["a/zarr.json", "a/c/0", "a/c/0/1", "a/c", "a/0.1", "a/c.0.1", "a/c/0.__lock"]
    foreign = ["a.txt", "a/b/c/0", "a/loadax.json", "b/c/0", "b/zarr.json", "a/c/x", "a/c/0/x", "c.txt"]
    foreign += ["loadax.x.json"]
    assert own_keys([*own, *foreign], ["a"]) == own
    old = [".zgroup", ".zattrs", "x/.zarray", "x/0.0", "x/0/0", "x/y/.zgroup"]
    assert own_keys(old) == old


def test_a_folder_that_cannot_be_renamed_stays(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = Path.rename

    def refuses(self: Path, target: Any) -> Any:
        if self.name.endswith(".new"):
            raise PermissionError(13, "Permission denied")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refuses)
    with pytest.raises(
        SourceError, match=r"s: the old store can't be replaced by the new one: .*Permission denied"
    ) as caught:
        write_zarr(TreeRows({"x": np.arange(7)}), store, overwrite=True)
    assert len(loadax.from_zarr(store)) == 500
    assert len(loadax.from_zarr(str(caught.value).split(" complete at ")[1].split(":")[0])) == 7


def test_a_mount_point_is_refused_before_anything_is_written(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "ismount", lambda path: str(path) == str(store))
    with pytest.raises(
        ArgumentError,
        match=r"s can't be renamed: it is a mount point, .*; write to a folder in it, or delete the store first",
    ):
        write_zarr(TreeRows({"x": np.arange(7)}), store, overwrite=True)
    assert len(loadax.from_zarr(store)) == 500


def test_a_store_that_is_gone_by_then_is_written(store: Path, tmp_path: Path) -> None:
    class Deletes(TreeRows):
        def read(self, positions: Any) -> Any:
            shutil.rmtree(store, ignore_errors=True)
            return super().read(positions)

    write_zarr(Deletes({"x": np.arange(7)}), store, overwrite=True)
    assert len(loadax.from_zarr(store)) == 7
    assert names(tmp_path) == {"s"}


def test_a_store_that_another_process_puts_there_meanwhile_is_replaced(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the two renames, twice."""
    rename, left = Path.rename, [2]

    def after_another(self: Path, target: Any) -> Any:
        if self.name.endswith(".new") and left[0]:
            left[0] -= 1
            write_zarr(OLD, store)
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", after_another)
    write_zarr(TreeRows({"x": np.arange(7)}), store, overwrite=True)
    assert (len(loadax.from_zarr(store)), left) == (7, [0])
    assert names(tmp_path) == {"s"}
