"""Caches and indices that another user prepared, or a killed process left: nothing of the user's is read or lost.

Where the tests run as root, the other user is a real one.
"""

import contextlib
import errno
import fcntl
import gzip
import hashlib
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import loadax
from loadax.errors import ArgumentError, LoadaxError, SourceError
from loadax.files import kept_files
from loadax.files.kept_files import sweep, temporary_file, whole_file
from loadax.sources.tables.text import decompress
from tests.limits import HANG
from tests.servers.faults import FaultProxy

pytest_plugins = ["tests.servers.fixtures"]

OTHER = 65_534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
Open = Callable[[Path], list[int]]
NUMBERS = [0, 20_000, 49_999]
KINDS = ["loadax-blocks", "loadax-decompressed"]
kinds = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that other users can reach, unlike `tmp_path`."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def doors(tmp_path: Path, http_proxy: FaultProxy) -> dict[str, Open]:
    """By the folder that each keeps: reads `NUMBERS`, of three blocks of which two fit, by the cache in a folder."""
    np.save(tmp_path / "a.npy", np.arange(50_000))
    content = b"".join(b'{"x": %d}\n' % number for number in NUMBERS)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(content))

    def remote(cache: Path) -> list[int]:
        data = loadax.from_npy(f"{http_proxy.url}/a.npy", cache=cache, cache_bytes=300_000)
        return data.read(NUMBERS).tolist()

    def compressed(cache: Path) -> list[int]:
        data = loadax.from_jsonl(tmp_path / "a.jsonl.gz", cache=cache, progress=False)
        return data.read(range(3))["x"].tolist()

    def indexed(folder: Path) -> list[int]:
        (tmp_path / "a.jsonl").write_bytes(content)
        os.utime(tmp_path / "a.jsonl", (1, 1))
        data = loadax.from_jsonl(tmp_path / "a.jsonl", index=folder / "index", progress=False)
        return data.read(range(3))["x"].tolist()

    return {"loadax-blocks": remote, "loadax-decompressed": compressed, "index": indexed}


@pytest.fixture
def docs(shared: Path) -> Path:
    """Files that must stay as they are."""
    docs = shared / "docs"
    docs.mkdir(0o700)
    for name in ("thesis", "0" * 40, ".loadax-x", "writing-x"):
        (docs / name).write_text("mine")
        os.utime(docs / name, (1, 1))
    return docs


def is_intact(docs: Path, more: int = 0) -> bool:
    files = list(docs.iterdir())
    return len(files) == 4 + more and all(path.stat().st_mtime == 1 for path in files)


def other_user(script: str) -> None:
    subprocess.run(["/bin/sh", "-ec", script], user=OTHER, group=OTHER, extra_groups=[], check=True, timeout=HANG)


@as_root
@kinds
@pytest.mark.parametrize("whose", ["cache", "sticky", "inner", "link"])
def test_folder_that_another_user_prepared_is_refused(
    kind: str, whose: str, shared: Path, docs: Path, doors: dict[str, Open]
) -> None:
    cache = shared / "c"
    if whose == "cache":
        shared.chmod(0o777)
        other_user(f"mkdir -m 755 {cache}")
    else:
        cache.mkdir()
        cache.chmod(0o1777 if whose == "sticky" else 0o777)
        made = f"ln -s {docs} {kind}" if whose == "link" else f"mkdir -m 777 {kind}; cd {kind}; ln -s {docs} usage"
        other_user(f"cd {cache}; {made}; ln -s {docs} zz")
        if whose != "sticky":
            cache.chmod(0o755)
    with pytest.raises(ArgumentError, match=rf"cache='{cache}' is not used: .*; .*pass a folder of your own") as error:
        doors[kind](cache)
    assert is_intact(docs)
    named = "is a link, not a folder" if whose == "link" else f"belongs to another user (uid {OTHER})"
    assert named in str(error.value)
    assert doors[kind](shared / "own") == NUMBERS


@kinds
@pytest.mark.parametrize(("inner", "mode"), [(False, 0o777), (True, 0o777), (True, 0o1777), (True, 0o722)])
def test_folder_that_others_can_write_is_refused(
    kind: str, inner: bool, mode: int, tmp_path: Path, doors: dict[str, Open]
) -> None:
    cache = tmp_path / "c"
    assert doors[kind](cache) == NUMBERS
    (cache / kind if inner else cache).chmod(mode)
    with pytest.raises(ArgumentError, match=rf"can be written by other users \(mode {mode:o}\)"):
        doors[kind](cache)
    if inner:
        shutil.rmtree(cache / kind)  # as it says
    else:
        cache.chmod(0o1777)  # as /tmp
    assert doors[kind](cache) == NUMBERS


def test_folder_that_the_private_group_of_the_user_can_write(tmp_path: Path, doors: dict[str, Open]) -> None:
    """Where each user has a group of their own, folders are often made for it."""
    cache = tmp_path / "c"
    cache.mkdir()
    cache.chmod(0o775)
    if kept_files._is_private(os.getegid()):
        assert doors["loadax-decompressed"](cache) == NUMBERS
    else:
        with pytest.raises(ArgumentError, match=r"can be written by other users \(mode 775\)"):
            doors["loadax-decompressed"](cache)


@kinds
def test_umask_of_the_user_does_not_open_a_cache_to_others(kind: str, tmp_path: Path, doors: dict[str, Open]) -> None:
    before = os.umask(0)
    try:
        for _ in range(2):
            assert doors[kind](tmp_path / "c") == NUMBERS
    finally:
        os.umask(before)
    kept = [tmp_path / "c" / kind, *(tmp_path / "c" / kind).rglob("*")]
    assert {(path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in kept} == {(True, 0o700), (False, 0o600)}


def plant(path: Path, what: str, docs: Path) -> None:
    """Puts something else in the place of a file or folder."""
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    match what:
        case "link to a file":
            path.symlink_to(docs / "thesis")
        case "link to a folder":
            path.symlink_to(docs)
        case "link to nothing":
            path.symlink_to(docs / "new")
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "sparse file":
            with path.open("wb") as file:
                file.truncate(1 << 40)


@pytest.mark.parametrize(
    "what", ["link to a file", "link to a folder", "link to nothing", "pipe", "folder", "sparse file"]
)
@pytest.mark.parametrize("where", ["usage", "block", "blocks", "content", "digest", "description", "array"])
def test_planted_file_is_not_followed(
    where: str, what: str, tmp_path: Path, docs: Path, doors: dict[str, Open]
) -> None:
    """In a folder that is right now, after others could write to it."""
    kind = {"usage": "loadax-blocks", "block": "loadax-blocks", "blocks": "loadax-blocks"}.get(where, "index")
    kind = "loadax-decompressed" if where in ("content", "digest") else kind
    assert doors[kind](tmp_path / "c") == NUMBERS
    folder = tmp_path / "c" / kind
    paths = {
        "usage": [folder / "usage"],
        "block": [path for path in folder.glob("*/*") if path.is_file()],
        "blocks": [path for path in folder.iterdir() if path.is_dir()],
        "content": [path for path in folder.iterdir() if path.suffix != ".sha256"],
        "digest": list(folder.glob("*.sha256")),
        "description": list(folder.glob("*.json")),
        "array": list(folder.glob("*.npy")),
    }[where]
    assert paths
    copied = list(folder.glob("??/*")) if where == "blocks" else []
    for path in copied:  # what a link leads to could be taken for a block
        shutil.copy(path, docs)
        os.utime(docs / path.name, (1, 1))
    for path in paths:
        plant(path, what, docs)
    if kind == "loadax-blocks":
        (folder / "zz").symlink_to(docs)
    with contextlib.suppress(LoadaxError):  # an error is right too
        assert doors[kind](tmp_path / "c") == NUMBERS
    assert is_intact(docs, len(copied))


def test_usage_file_that_another_process_holds_is_no_hang(
    tmp_path: Path, doors: dict[str, Open], caplog: pytest.LogCaptureFixture
) -> None:
    assert doors["loadax-blocks"](tmp_path / "c")
    shutil.rmtree(next(path for path in (tmp_path / "c" / "loadax-blocks").iterdir() if path.is_dir()))
    with (tmp_path / "c" / "loadax-blocks" / "usage").open() as usage:
        fcntl.flock(usage, fcntl.LOCK_EX)
        assert doors["loadax-blocks"](tmp_path / "c") == NUMBERS
    assert "the cache can't store or read a block; such blocks are fetched again" in caplog.text


@pytest.mark.parametrize("damage", ["flip", "cut", "grow", "empty", "no digest"])
def test_damaged_decompressed_content_is_made_again(
    damage: str, tmp_path: Path, doors: dict[str, Open], caplog: pytest.LogCaptureFixture
) -> None:
    read = doors["loadax-decompressed"]
    assert read(tmp_path) == NUMBERS
    content, digest = sorted((tmp_path / "loadax-decompressed").iterdir())
    whole = bytearray(content.read_bytes())
    if damage == "no digest":
        digest.unlink()
    else:
        whole[whole.index(b"2")] = ord("8")
        changed: dict[str, bytes | bytearray] = {"cut": whole[:-12], "grow": whole + b'{"x": 1}\n', "empty": b""}
        content.write_bytes(changed.get(damage, whole))
        os.utime(content, (1, 1))
    assert read(tmp_path) == NUMBERS
    assert ("this decompressed content is damaged (its size or digest is wrong) and is made again" in caplog.text) == (
        damage != "no digest"
    )


def test_touched_content_is_read_once_to_be_checked(
    tmp_path: Path, doors: dict[str, Open], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = doors["loadax-decompressed"]
    assert read(tmp_path)
    content, _ = sorted((tmp_path / "loadax-decompressed").iterdir())
    os.utime(content, (1, 1))
    monkeypatch.setattr(decompress, "_decompress", None)
    assert read(tmp_path)
    monkeypatch.setattr(hashlib, "file_digest", None)
    assert read(tmp_path)


WRITER = """
import gzip, pathlib, sys, threading, time
import numpy as np
import loadax
from loadax.files import kept_files
real, before = kept_files.os.fsync, int(sys.argv[3])
def fsync(file):
    global before
    before -= 1
    if before >= 0:
        return real(file)
    print("writing", flush=True)
    time.sleep(1000)
kept_files.os.fsync = fsync
folder = pathlib.Path(sys.argv[1])
if sys.argv[2] == "decompress":
    loadax.from_jsonl(folder / "a.jsonl.gz", cache=folder / "kept", progress=False)
elif sys.argv[2] == "index":
    loadax.from_jsonl(folder / "a.jsonl", index=folder / "kept", progress=False)
else:
    loadax.from_arrays(np.arange(100)).filter(bool, index=folder / "kept", progress=False)
"""


@pytest.mark.processes
@pytest.mark.parametrize("kind", ["decompress", "index", "filter"])
def test_temporary_file_is_swept_once_its_writer_is_dead(kind: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"x": 1}\n')
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"x": 1}\n'))

    def again() -> None:
        if kind == "decompress":
            loadax.from_jsonl(tmp_path / "a.jsonl.gz", cache=tmp_path / "kept", progress=False)
        elif kind == "index":
            loadax.from_jsonl(tmp_path / "a.jsonl", index=tmp_path / "kept", progress=False)
        else:
            loadax.from_arrays(np.arange(100)).filter(bool, index=tmp_path / "kept", progress=False)

    def left() -> list[Path]:
        return list((tmp_path / "kept").rglob(".loadax-*"))

    is_pass = kind != "decompress"  # which first writes what its parts belong to, and others wait for its end
    command = [sys.executable, "-c", WRITER, str(tmp_path), kind, str(int(is_pass))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        try:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "writing\n"
            if not is_pass:
                again()
            assert len(left()) == 1  # it may go on
            writer.send_signal(signal.SIGKILL)
            writer.wait(HANG)
            for path in (tmp_path / "kept").rglob("*.json"):
                path.unlink()
            again()
            assert not left()
        finally:
            writer.kill()


def test_file_is_whole_or_as_before(tmp_path: Path) -> None:
    path = tmp_path / "a"
    for content in (b"one", b"two"):
        with whole_file(path) as file:
            file.write(content)
        with pytest.raises(TypeError), whole_file(path) as file:
            file.writelines([b"half" * 10_000, None])  # type: ignore[list-item]
        assert path.read_bytes() == content
        assert list(tmp_path.iterdir()) == [path]


def test_only_temporary_files_of_this_host_are_swept(tmp_path: Path) -> None:
    others = [".loadax-00000000-0123456789abcdef", ".bashrc", "a.json", ".loadax"]
    for name in others:
        (tmp_path / name).touch()
    with temporary_file(tmp_path) as (file, path):
        shutil.copy(path, path.with_name(f"{path.name[:-1]}x"))
        file.write(b"x")
        sweep(tmp_path)
        assert sorted(each.name for each in tmp_path.iterdir()) == sorted([*others, path.name])
    sweep(tmp_path / "missing")


def test_full_disk_leaves_no_half_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = loadax.from_arrays(np.arange(1000))
    real, written = os.fsync, 0

    def full(file: int) -> None:
        nonlocal written
        written += 1
        if written == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(file)

    (tmp_path / "a.jsonl").write_bytes(b'{"x": 1}\n' * 100)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        SourceError, match=r"records\.json can't be written: .*No space left.*; pass another path, or free"
    ):
        loadax.from_jsonl(tmp_path / "a.jsonl", index=tmp_path / "ix", progress=False)
    assert [path.suffix for path in (tmp_path / "ix").iterdir()] == [".parts"]
    written = 0
    with pytest.raises(SourceError, match=r"filter\.json can't be written"):
        data.filter(bool, index=tmp_path / "ix", progress=False)
    assert [path.suffix for path in (tmp_path / "ix").iterdir()] == [".parts"] * 2
    written = 1
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"x": 1}\n'))
    with pytest.raises(ArgumentError, match=r"can't be written: .*No space left.*; pass a folder of your own, or free"):
        loadax.from_jsonl(tmp_path / "a.jsonl.gz", cache=tmp_path / "c", progress=False)
    assert list((tmp_path / "c" / "loadax-decompressed").iterdir()) == []


def test_warm_cache_is_opened_for_reading_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a file system that is mounted read-only; root may write to any folder, whatever its rights."""
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"x": 1}\n{"x": 2}\n'))
    data = loadax.from_arrays(np.arange(100))

    def read() -> list[list[int]]:
        lines = loadax.from_jsonl(tmp_path / "a.jsonl.gz", cache=tmp_path / "c", index=tmp_path / "ix", progress=False)
        kept = data.filter(bool, index=tmp_path / "filter", progress=False)
        return [lines.read([0, 1])["x"].tolist(), kept.read([0]).tolist()]

    expected = read()
    real = os.open

    def refuse(*arguments: object, **_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(arguments[0]))

    def open_to_read(path: str, flags: int, *more: int, dir_fd: int | None = None) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            refuse(path)
        return real(path, flags, *more, dir_fd=dir_fd)

    with monkeypatch.context() as patched:
        for name in ("mkdir", "unlink", "rename", "replace", "utime"):
            patched.setattr(os, name, refuse)
        patched.setattr(os, "open", open_to_read)
        assert read() == expected


@pytest.mark.parametrize("kind", ["filter", "split_by", "pack", "jsonl"])
def test_index_that_is_cut_while_it_is_used(kind: str, tmp_path: Path) -> None:
    """A map of it would end the process by SIGBUS."""
    (tmp_path / "a.jsonl").write_bytes(b"".join(b'{"x": %d}\n' % row for row in range(20_000)))

    def opened() -> loadax.Dataset:
        data, index = loadax.from_arrays({"x": np.arange(20_000)}), tmp_path / "ix"
        match kind:
            case "filter":
                return data.filter(is_even, index=index, progress=False)
            case "split_by":
                return data.split_by("x", 0.5, index=index, progress=False)[0]
            case "pack":
                lines = loadax.from_documents(np.arange(40_000), np.arange(0, 40_001, 2))
                return lines.pack(16, method="best_fit", index=index, progress=False)
            case _:
                return loadax.from_jsonl(tmp_path / "a.jsonl", index=index, progress=False)

    expected = opened()
    data = opened()
    paths = list((tmp_path / "ix").glob("*.npy"))
    assert paths
    for path in paths:
        os.truncate(path, 4096)
    rows = range(len(data) - 100, len(data))
    for name, values in data.read(rows).items():
        np.testing.assert_array_equal(values, expected.read(rows)[name])
    again = opened().read(rows)
    np.testing.assert_array_equal(next(iter(again.values())), next(iter(expected.read(rows).values())))


def is_even(example: dict[str, int]) -> bool:
    return example["x"] % 2 == 0
