"""Whatever others put into the folder of a pass, it ends in the right rows or a `LoadaxError`, and harms no file."""

import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadax import from_source, write_zarr
from loadax.errors import LoadaxError, SourceError
from loadax.kept import kept_pass, parts, pass_work
from loadax.kept.parts import PartsFolder
from loadax.work.worker import PayloadSource
from tests.limits import HANG, until
from tests.row_index.filters import SMALL, data, rows_of, small

ROOT = Path(__file__).parents[3]


def interrupted(index: Path) -> Path:
    """The folder of the parts of a filter that has ended before its last part."""
    calls: list[int] = []

    def fails(example: Any) -> bool:
        calls.append(1)
        if len(calls) > 300:
            raise KeyError("stop")
        return small(example)

    with pytest.raises(KeyError):
        data().filter(fails, "v1", index=index, workers=1)
    (folder,) = index.glob("*.parts")
    return folder


def filtered(index: Path, **options: Any) -> list[int]:
    return rows_of(data().filter(small, "v1", index=index, **options))


def bomb(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("values.npy", "w") as out:
        np.lib.format.write_array(out, np.zeros(1 << 22))


def overlapping(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, a=np.zeros(1000))
    content = path.read_bytes()
    begin = content.index(b"PK\1\2")
    end = content.index(b"PK\5\6")
    directory = content[begin:end]
    tail = bytearray(content[end:])
    tail[8:12] = (40).to_bytes(2, "little") * 2
    tail[12:16] = (40 * len(directory)).to_bytes(4, "little")
    path.write_bytes(content[:begin] + directory * 40 + tail)


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


def victim_of(path: Path) -> Path:
    return path.parents[2] / "victim"


THINGS: dict[str, Callable[[Path], Any]] = {
    "a link": lambda path: path.symlink_to(victim_of(path) / "0.npz"),
    "a link to nowhere": lambda path: path.symlink_to("/nowhere/at/all"),
    "a pipe": os.mkfifo,
    "a folder": lambda path: (path / "inner").mkdir(parents=True),
    "bytes": lambda path: path.write_bytes(bytes(range(256))),
    "nothing": lambda path: path.touch(),
    "a sparse file": sparse,
    "nested JSON": lambda path: path.write_text("[" * 100_000),
    "a bomb": bomb,
    "arrays that overlap": overlapping,
}


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Path]:
    """A folder of files that have the names of those of a pass, which nothing may touch."""
    folder = tmp_path / "victim"
    folder.mkdir()
    for name in ("0.npz", "pass.json", "notes.txt"):
        (folder / name).write_text("precious")
    yield folder
    assert {path.name: path.read_text() for path in folder.iterdir()} == dict.fromkeys(
        ("0.npz", "pass.json", "notes.txt"), "precious"
    )


@pytest.mark.timeout(100)
@pytest.mark.parametrize("name", ["0.npz", "499.npz", "40.claim", "64.claim", "pass.json", "x.1.abc.alive"])
@pytest.mark.parametrize("thing", THINGS)
@pytest.mark.usefixtures("victim")
def test_thing_in_the_folder(thing: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "DEAD", 0.5)  # seconds that a claim holds without a sign of life
    folder = interrupted(tmp_path / "index")
    (folder / name).unlink(missing_ok=True)
    THINGS[thing](folder / name)
    said = ""
    try:
        assert filtered(tmp_path / "index") == SMALL
    except LoadaxError as error:
        said = str(error)
    if said:
        assert re.search(rf"{folder}.*(delete {folder}|delete this folder|delete this one|pass each)", said)
        shutil.rmtree(folder)  # as it says
        assert filtered(tmp_path / "index") == SMALL


@pytest.mark.timeout(100)
@pytest.mark.parametrize("executor", [None, lambda: ThreadPoolExecutor(1)], ids=["threads", "executor"])
def test_link_in_place_of_the_folder(executor: Any, tmp_path: Path, victim: Path) -> None:
    folder = interrupted(tmp_path / "index")
    shutil.rmtree(folder)
    folder.symlink_to(victim)
    with pytest.raises(
        SourceError, match=r"\.parts can't be written: .* it is a link, not a folder: .*delete this one"
    ):
        filtered(tmp_path / "index", executor=executor)
    folder.unlink()
    assert filtered(tmp_path / "index", executor=executor) == SMALL


@pytest.mark.timeout(100)
@pytest.mark.parametrize("verb", ["filter", "cache", "ragged cache", "pack"])
def test_link_that_comes_and_goes(verb: str, tmp_path: Path, victim: Path) -> None:
    """The folder is exchanged for a link all the time while parts are claimed, written and merged."""
    over = threading.Event()

    def exchange() -> None:
        while not over.wait(0.0005):
            for folder in [*(tmp_path / "index").glob("*.parts"), *tmp_path.glob("index/loadax.parts")]:
                with suppress(OSError):
                    folder.rename(tmp_path / "aside")
                    folder.symlink_to(victim)
                    over.wait(0.0005)
                    folder.unlink()
                    (tmp_path / "aside").rename(folder)

    def tokens(row: int) -> Any:
        return np.arange(1 + row % 5)

    index = tmp_path / "index"
    rows = from_source(range(300))
    calls: dict[str, Callable[[], Any]] = {
        "filter": lambda: rows.filter(lambda x: x % 2 == 0, index=index),
        "cache": lambda: rows.cache(index, chunk_rows=1, shard_rows=1),
        "ragged cache": lambda: rows.map(tokens).cache(index, chunk_rows=1, shard_rows=1),
        "pack": lambda: rows.map(tokens).pack(8, index=index),
    }
    thread = threading.Thread(target=exchange)
    thread.start()
    try:
        for _ in range(5):
            with suppress(LoadaxError):
                calls[verb]()
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("verb", ["cache", "write_zarr"])
def test_link_in_place_of_the_parts_of_a_store(verb: str, tmp_path: Path, victim: Path) -> None:
    def fails(row: int) -> int:
        if row == 200 and not (tmp_path / "again").exists():
            raise KeyError("stop")
        return row

    rows = from_source(range(300)).map(fails)
    store = tmp_path / "store"

    def write() -> Any:
        if verb == "cache":
            return rows.cache(store, key="v1", chunk_rows=8, shard_rows=8)
        return write_zarr(rows, store, chunk_rows=8, shard_rows=8, resume=True)

    with pytest.raises(KeyError):
        write()
    (tmp_path / "again").touch()
    shutil.rmtree(store / "loadax.parts")
    (store / "loadax.parts").symlink_to(victim)
    with pytest.raises(SourceError, match=r"loadax.parts can't be written: .*it is a link, not a folder.*; delete it"):
        write()
    (store / "loadax.parts").unlink()
    write()


def test_index_folder_that_becomes_a_file(tmp_path: Path) -> None:
    index = tmp_path / "index"

    def moved(example: Any) -> bool:
        if index.is_dir():
            index.rename(tmp_path / "elsewhere")
            index.touch()
        return small(example)

    with pytest.raises(SourceError, match=r"\.parts(/\d+\.npz)? can't be (used|written): .*Not a directory"):
        data().filter(moved, "v1", index=index, workers=1)


def test_part_larger_than_memory_is_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = PartsFolder(tmp_path, "filter", 1)
    folder.put(0, {"x": np.arange(1000)})
    monkeypatch.setattr(parts, "machine_memory", lambda: 16_000)
    with pytest.raises(parts.ChangedError):
        folder.take(0)
    # how long the file is depends on NumPy's version
    assert re.search(r"0\.npz is damaged \(\[Errno 27\] it has 8,\d{3} bytes, and 8,000 is", caplog.text)
    assert not folder.has(0)


@pytest.mark.parametrize(("make", "reason"), [(bomb, "it is compressed"), (overlapping, "its arrays overlap")])
def test_part_that_inflates_is_not_read(
    make: Callable[[Path], Any], reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = PartsFolder(tmp_path, "filter", 1)
    make(tmp_path / "0.npz")
    with pytest.raises(parts.ChangedError):
        folder.take(0)
    assert f"0.npz is damaged ({reason}): this part is computed again" in caplog.text


@pytest.mark.parametrize("owner", ["../../victim", "a\0b", "x" * 1000])
def test_claim_that_names_no_process(owner: str, tmp_path: Path) -> None:
    (tmp_path / "0.claim").write_text(owner)
    folder = PartsFolder(tmp_path, "filter", 1)
    with (
        folder.joined(),
        pytest.raises(SourceError, match=r"0\.claim is not a claim of a process \(.*; delete .*, and"),
    ):
        folder.claim()


def test_claim_of_a_process_with_too_large_a_number_is_dead(tmp_path: Path) -> None:
    (tmp_path / "0.claim").symlink_to(f"{parts.HOST}.{10**200}.abc")
    folder = PartsFolder(tmp_path, "filter", 1)
    with folder.joined():
        assert folder.claim() == 0


# Recipes


class Evil:
    def __init__(self, path: Path):
        self._path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self._path),)


@contextmanager
def replaced(change: Callable[[Path], object], *arguments: Any) -> Iterator[PayloadSource]:
    with pass_work.payload_of_pass(*arguments) as made:
        assert made.content is not None
        change(Path(made.content[0]))
        yield made


def evil(proof: Path, path: Path) -> None:
    """A payload of the same form, whose message runs code, in clear."""
    path.write_bytes(b"\0" + pickle.dumps((pickle.dumps(Evil(proof)), ())))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ("evil", "was changed after it was written, and nothing of it is used; pass a folder that only you can write"),
        ("flip", "was changed after it was written"),
        ("cut", "was changed after it was written"),
        ("link", "can't read .*recipe-.*; pass a folder"),
        ("pipe", r"can't read .*recipe-.*\(it is a pipe"),
        ("folder", "can't read .*recipe-.*; pass a folder"),
        ("none", "can't read .*recipe-.*; pass a folder"),
    ],
)
@pytest.mark.timeout(100)
def test_recipe_that_was_changed_is_not_opened(
    change: str, error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changed(path: Path) -> None:
        content = path.read_bytes()
        if change in ("link", "pipe", "folder", "none"):
            path.unlink()
        match change:
            case "evil":
                evil(tmp_path / "proof", path)
            case "flip":
                path.write_bytes(content.replace(content[-5:], bytes(byte ^ 1 for byte in content[-5:])))
            case "cut":
                os.truncate(path, 100)
            case "link":
                (tmp_path / "copy").write_bytes(content)
                path.symlink_to(tmp_path / "copy")
            case "pipe":
                os.mkfifo(path)
            case "folder":
                path.mkdir()

    monkeypatch.setattr(kept_pass, "payload_of_pass", lambda *arguments: replaced(changed, *arguments))
    with pytest.raises(LoadaxError, match=error):
        data().filter(small, "v1", index=tmp_path / "index", executor=lambda: ThreadPoolExecutor(1))
    assert not (tmp_path / "proof").exists()


# Rights of payloads and of their folders, and their bytes, as a function in a worker has seen them.
SEEN: list[tuple[int, int, bytes]] = []


def look(index: Path, _secret: str, row: Any) -> int:
    paths = (*index.glob("*.parts/recipe-*"), *index.glob("loadax.parts/recipe-*"))
    SEEN.extend((path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777, path.read_bytes()) for path in paths)
    return int(row)


@pytest.mark.parametrize("verb", ["filter", "pack", "cache", "write_zarr", "group", "split_by"])
def test_recipe_is_private_and_encrypted(verb: str, tmp_path: Path) -> None:
    """Passwords of URLs and all else that a dataset has; nothing of it stays after the pass."""
    SEEN.clear()
    index = tmp_path / "index"
    looked = partial(look, index, "X-Signature=PASSWORD")
    rows = from_source(range(100))
    executor = lambda: ThreadPoolExecutor(2)  # noqa: E731
    sizes: Any = {"chunk_rows": 4, "shard_rows": 4}
    match verb:
        case "filter":
            rows.map(looked).filter(is_even, index=index, executor=executor)
        case "pack":
            rows.map(looked).map(ragged).pack(8, index=index, executor=executor)
        case "cache":
            rows.map(looked).cache(index, executor=executor, **sizes)
        case "write_zarr":
            write_zarr(rows.map(looked), index, executor=executor, **sizes)
        case "group":
            rows.group(1000, looked, index=index, executor=executor)
        case "split_by":
            rows.split_by(looked, 0.5, index=index, executor=executor)
    assert SEEN
    for mode, of_folder, content in SEEN:
        assert (mode, of_folder) == (0o600, 0o700)
        assert b"PASSWORD" not in content
        assert b"looked" not in content
    assert not [*tmp_path.rglob("recipe-*")]


def is_even(row: int) -> bool:
    return row % 2 == 0


def ragged(row: int) -> Any:
    return np.arange(1 + row % 5)


def test_recipes_of_one_message_differ(tmp_path: Path) -> None:
    work = data().filter(small).source  # anything that can be pickled
    contents = []
    for _ in range(2):
        with pass_work.payload_of_pass(tmp_path, work, ()) as made:  # type: ignore[arg-type]
            assert made.content is not None
            contents.append(Path(made.content[0]).read_bytes())
    assert len(contents[0]) == len(contents[1])
    assert contents[0] != contents[1]


KILLED = """
import sys, time, loadax
from concurrent.futures import ThreadPoolExecutor
def slow(row):
    time.sleep(0.01)
    return row % 2 == 0
loadax.from_source(range(1000)).filter(slow, "v1", index=sys.argv[1], executor=lambda: ThreadPoolExecutor(1))
"""


@pytest.mark.processes
def test_recipe_of_a_killed_pass_is_swept(tmp_path: Path) -> None:
    program = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], cwd=ROOT, stderr=subprocess.DEVNULL)
    until(lambda: len([*tmp_path.glob("*.parts/*.npz")]) > 3)
    program.send_signal(signal.SIGKILL)
    program.wait(HANG)
    (left,) = tmp_path.glob("*.parts/recipe-*")
    seen: list[bool] = []

    def even(row: int) -> bool:
        seen.append(left.exists())
        return row % 2 == 0

    assert len(from_source(range(1000)).filter(even, "v1", index=tmp_path)) == 500
    assert seen
    assert not any(seen)


def test_folder_that_a_killed_pass_had_begun_to_delete_is_swept(tmp_path: Path) -> None:
    folder = interrupted(tmp_path)
    shutil.copytree(folder, tmp_path / f"{folder.name}.0123abcd")
    other = tmp_path / f"filter-by-leaf-{'0' * 16}.parts.0123abcd"
    other.mkdir()
    filtered(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir() if ".parts" in path.name) == [other.name]


def test_folder_of_an_earlier_version_becomes_private(tmp_path: Path) -> None:
    folder = PartsFolder(tmp_path / "parts", "filter", 1)
    folder.path.mkdir(0o755)
    folder.make()
    assert folder.path.stat().st_mode & 0o777 == 0o700
