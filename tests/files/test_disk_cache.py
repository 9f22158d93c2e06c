"""The cache of remote blocks: no sharer of the folder asks again for what was read once, and the limit holds."""

import errno
import json
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadax.errors import ArgumentError, SourceError
from loadax.files.byte_ranges import ByteRange
from loadax.files.disk_cache import CachedFiles, DiskCache
from loadax.files.files import BLOCK, Files, files_with_cache
from loadax.files.identity import FileIdentity
from loadax.sources.npy.source import open_npy
from tests.limits import HANG, until
from tests.servers.faults import FaultProxy
from tests.sources.token_corpora import open_tokens, stream, write_bin, write_npy

pytest_plugins = ["tests.servers.fixtures"]

HELD = BLOCK + 4  # bytes of a block with its checksum


def blocks(folder: Path) -> list[Path]:
    """The blocks that are there, the longest unused first."""
    found = [path for path in (folder / "loadax-blocks").glob("*/*") if len(path.name) == 40]
    return sorted(found, key=lambda path: path.stat().st_mtime_ns)


def content(number: int, size: int = BLOCK) -> bytes:
    return np.random.default_rng(number).bytes(size)


def name(number: int) -> str:
    return DiskCache.name(FileIdentity("http://x/y", 10 * BLOCK, b"tag"), where(number))


def where(number: int) -> ByteRange:
    return ByteRange("http://x/y", number * BLOCK, (number + 1) * BLOCK)


def test_a_block_is_kept(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "deep" / "cache", 10 * HELD)
    assert cache.get(name(0), where(0)) is None
    cache.put(name(0), content(0))
    for each in (cache, DiskCache(tmp_path / "deep" / "cache", 10 * HELD)):
        assert each.get(name(0), where(0)) == content(0)
        assert each.get(name(1), where(1)) is None


def test_a_block_that_two_fetched_is_held_once(tmp_path: Path) -> None:
    caches = [DiskCache(tmp_path, 10 * HELD) for _ in range(2)]
    for cache in caches:
        cache.put(name(0), content(0))
    assert int((tmp_path / "loadax-blocks" / "usage").read_bytes()) == HELD
    assert len(blocks(tmp_path)) == 1
    assert len(list(blocks(tmp_path)[0].parent.iterdir())) == 1


def test_names_tell_files_apart() -> None:
    names = {
        DiskCache.name(FileIdentity(location, size, generation), where(block))
        for location in ("http://x/y", "http://x/z")
        for size in (100, 200)
        for generation in (b"a", b"b")
        for block in (0, 1)
    }
    assert len(names) == 16


@pytest.mark.parametrize("damage", ["flip", "cut", "grow", "empty", "checksum"])
def test_a_damaged_block_is_not_used(damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = DiskCache(tmp_path, 10 * HELD)
    cache.put(name(0), content(0))
    (path,) = blocks(tmp_path)
    stored = bytearray(path.read_bytes())
    if damage in {"flip", "checksum"}:
        stored[0 if damage == "checksum" else 5000] ^= 1
    path.write_bytes({"cut": stored[:-1], "grow": stored + b"x", "empty": bytearray()}.get(damage, stored))
    assert cache.get(name(0), where(0)) is None
    assert f"{path}: this cached block is damaged; fetching http://x/y, bytes 0 to 131071 again" in caplog.text
    assert not path.exists()
    cache.put(name(0), content(0))
    assert cache.get(name(0), where(0)) == content(0)


SMALL = 1 << 10
"""Bytes of the blocks of the tests of eviction."""


def some(number: int) -> ByteRange:
    return ByteRange("http://x/y", number * SMALL, (number + 1) * SMALL)


def read(cache: DiskCache, number: int) -> bool:
    """Reads a block as `CachedFiles` does; whether it was there."""
    key = DiskCache.name(FileIdentity("http://x/y", 1 << 30, b"tag"), some(number))
    if cache.get(key, some(number)) is not None:
        return True
    cache.put(key, content(number, SMALL))
    return False


def hits(cache: DiskCache, numbers: Any) -> int:
    return sum(read(cache, number) for number in numbers)


def lru_hits(numbers: Any, room: int) -> int:
    """Hits of a least-recently-used cache of `room` blocks in the second half of the numbers: the slow way."""
    held: list[int] = []
    found = 0
    for turn, number in enumerate(numbers):
        if number in held:
            held.remove(number)
            found += 2 * turn >= len(numbers)
        held = [*held, number][-room:]
    return found


def belady_hits(numbers: list[int], room: int) -> int:
    """Hits of a cache that knows the future, and evicts what is needed last: no cache has more."""
    held: set[int] = set()
    found = 0
    for turn, number in enumerate(numbers):
        found += number in held
        held.add(number)
        if len(held) > room:
            later = {numbers[place]: place for place in range(len(numbers) - 1, turn, -1)}
            held.remove(max(held, key=lambda one: later.get(one, len(numbers))))
    return found


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("room", [32, 112])
def test_every_epoch_finds_what_the_cache_holds(room: int, shuffled: bool, tmp_path: Path) -> None:
    """An epoch of 128 blocks in a cache that holds fewer: at least 80 % of limit / size are hits; 0 with LRU.

    No eviction that knows the order saves more than another fifth of these requests.
    """
    cache = DiskCache(tmp_path, room * (SMALL + 4))
    orders = [np.random.default_rng(epoch).permutation(128) if shuffled else np.arange(128) for epoch in range(3)]
    found = [hits(cache, order.tolist()) for order in orders]
    assert found[0] == 0
    assert min(found[1:]) >= 0.8 * room
    numbers = np.concatenate(orders).tolist()
    assert sum(found) >= 0.8 * belady_hits(numbers, room)
    found_by_lru = lru_hits(numbers, room)  # of the last 192 reads
    if shuffled:
        assert found_by_lru < 0.9 * (found[1] / 2 + found[2])
    else:
        assert found_by_lru == 0


def test_blocks_whose_rows_are_being_read_stay(tmp_path: Path) -> None:
    """A sweep in which each block is read eight times within four others: it is stored once an epoch, at most."""
    cache = DiskCache(tmp_path, 64 * (SMALL + 4))
    open_ones = [
        np.random.default_rng(first).permutation(np.repeat(np.arange(first, first + 4), 8))
        for first in range(0, 128, 4)
    ]
    for _ in range(3):
        missed = [number for number in np.concatenate(open_ones).tolist() if not read(cache, number)]
        assert len(missed) == len(set(missed))


def test_blocks_of_an_earlier_run_go_first(tmp_path: Path) -> None:
    """A folder full of another dataset's blocks has room for those of this run."""
    limit = 32 * (SMALL + 4)
    hits(DiskCache(tmp_path, limit), range(100, 140))
    cache = DiskCache(tmp_path, limit)
    assert hits(cache, range(28)) == 0
    assert hits(cache, range(28)) == 28
    # A worker process is of the same run, and so is what was used before it began.
    worker = pickle.loads(pickle.dumps(cache))
    assert hits(worker, range(28, 48)) == 0
    assert hits(worker, range(28)) >= 24


def test_the_limit_holds_after_every_block(tmp_path: Path) -> None:
    for count in (1, 3, 12):
        folder = tmp_path / str(count)
        cache = DiskCache(folder, count * HELD)
        for number in range(40):
            cache.put(name(number), content(number))
            assert 1 <= len(blocks(folder)) <= count
            assert cache.get(name(number), where(number)) is not None


def test_a_block_that_is_larger_than_the_limit_is_not_kept(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, BLOCK)
    cache.put(name(0), content(0))
    assert not blocks(tmp_path)


def test_the_number_of_bytes_is_found_again(tmp_path: Path) -> None:
    """Whatever a process that died left of it, or a user who tidied up."""
    cache = DiskCache(tmp_path, 5 * HELD)
    cache.create()
    usage = tmp_path / "loadax-blocks" / "usage"
    for state in (b"", b"no number", b"%020d" % (100 * HELD)):
        usage.write_bytes(state)
        for number in range(12):
            cache.put(name(number), content(number))
            assert len(blocks(tmp_path)) <= 5
        assert len(blocks(tmp_path)) >= 4
    usage.unlink()
    for path in blocks(tmp_path):
        path.unlink()
    cache.put(name(0), content(0))
    assert cache.get(name(0), where(0)) == content(0)
    assert int(usage.read_bytes()) == HELD


def test_a_full_disk_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cache = DiskCache(tmp_path, 10 * HELD)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("loadax.files.disk_cache.temporary_file", full)
        for number in range(3):
            cache.put(name(number), content(number))
    assert caplog.text.count("the cache can't store or read a block; such blocks are fetched again: ") == 1
    assert "No space left on device" in caplog.text
    cache.put(name(0), content(0))
    assert cache.get(name(0), where(0)) == content(0)
    blocks(tmp_path)[0].unlink()
    (tmp_path / "loadax-blocks" / name(0)[:2] / name(0)).mkdir()
    assert cache.get(name(0), where(0)) is None


def test_a_folder_that_can_not_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ArgumentError, match=r"cache='.*file' is not used: .*file is not a folder; pass a folder of"):
        files_with_cache(str(tmp_path / "file"), 1 << 20)
    with pytest.raises(ArgumentError, match=r"cache='/proc/none' can't be written: .*; pass a folder of your own"):
        CachedFiles(Files(DiskCache("/proc/none", 1 << 20)), {})


@pytest.mark.parametrize("spread", [1, 40])
def test_rows_that_were_read_once_are_not_asked_for_again(spread: int, tmp_path: Path, http_proxy: FaultProxy) -> None:
    tokens = stream(1 << 20)
    write_bin(tmp_path / "x.bin", tokens)
    url, folder = f"{http_proxy.url}/x.bin", tmp_path / "cache"
    source = open_tokens(url, 100, dtype="uint16", cache=folder)
    rows = np.random.default_rng(0).integers(0, len(source) // spread, 50)
    expected = open_tokens(tmp_path / "x.bin", 100, dtype="uint16").read(rows)["tokens"]
    http_proxy.clear()
    np.testing.assert_array_equal(source.read(rows)["tokens"], expected)
    assert 0 < len(http_proxy.log) <= 10
    http_proxy.clear()
    np.testing.assert_array_equal(source.read(rows[::-1])["tokens"], expected[::-1])
    assert not http_proxy.log
    # Another run: it asks when it opens the file how long it is, and whether it is still the same one.
    again = open_tokens(url, 100, dtype="uint16", cache=str(folder))
    http_proxy.clear()
    np.testing.assert_array_equal(again.read(rows)["tokens"], expected)
    assert not http_proxy.log


def test_a_damaged_block_is_fetched_anew(tmp_path: Path, http_proxy: FaultProxy) -> None:
    tokens = stream(1 << 18)
    write_bin(tmp_path / "x.bin", tokens)
    source = open_tokens(f"{http_proxy.url}/x.bin", 100, dtype="uint16", cache=tmp_path / "cache")
    rows = np.arange(0, len(source), 20)
    expected = source.read(rows)["tokens"]
    damaged, vanished = blocks(tmp_path / "cache")[:2]
    damaged.write_bytes(damaged.read_bytes()[::-1])
    vanished.unlink()
    http_proxy.clear()
    np.testing.assert_array_equal(source.read(rows)["tokens"], expected)
    assert 1 <= len(http_proxy.log) <= 2
    assert sum(http_proxy.bytes_sent.values()) == 2 * BLOCK


def test_a_file_that_was_replaced_is_read_anew(tmp_path: Path, http_proxy: FaultProxy) -> None:
    url, rows = f"{http_proxy.url}/x.npy", np.array([5, 80])
    for seed in (1, 2):
        values = np.random.default_rng(seed).normal(size=(100, 30))
        write_npy(tmp_path / "x.npy", values)
        source = open_npy(url, tmp_path / "cache")
        np.testing.assert_array_equal(source.read(rows), values[rows])


def test_a_file_that_is_gone_or_emptied_after_it_was_opened(tmp_path: Path, http_proxy: FaultProxy) -> None:
    path = write_bin(tmp_path / "x.bin", stream(5000))
    source = open_tokens(f"{http_proxy.url}/x.bin", 100, dtype="uint16", cache=tmp_path / "cache")
    path.write_bytes(b"")
    with pytest.raises(
        SourceError, match=r"x\.bin: bytes 0 to 9999 are missing: the file is cut short, or of another kind"
    ):
        source.read(np.array([0]))
    path.unlink()
    with pytest.raises(SourceError, match=r"x\.bin, bytes 0 to 9999: there is no such file"):
        source.read(np.array([0]))


def test_blocks_that_follow_each_other_are_one_request(tmp_path: Path, http_proxy: FaultProxy) -> None:
    data = content(0, 70 * BLOCK + 1000)
    (tmp_path / "x").write_bytes(data)
    url = f"{http_proxy.url}/x"
    files = CachedFiles(Files(DiskCache(tmp_path / "cache", 100 * HELD)), {url: len(data)})
    files.read([ByteRange(url, 0, 1)])
    http_proxy.clear()
    wanted = [
        ByteRange(url, BLOCK + 5, 3 * BLOCK + 5),
        ByteRange(url, 2 * BLOCK, 2 * BLOCK + 9),
        ByteRange(url, 70 * BLOCK, len(data)),
    ]
    assert files.read(wanted) == [data[each.start : each.stop] for each in wanted]
    assert sorted(each.range or "" for each in http_proxy.log) == [
        f"bytes={BLOCK}-{4 * BLOCK - 1}",
        f"bytes={70 * BLOCK}-{len(data) - 1}",
    ]
    http_proxy.clear()
    assert files.read([ByteRange(url, 0, len(data))]) == [data]
    assert sorted((each.range or "" for each in http_proxy.log), key=len) == [
        f"bytes={4 * BLOCK}-{68 * BLOCK - 1}",
        f"bytes={68 * BLOCK}-{70 * BLOCK - 1}",
    ]


READER = """
import json, sys
import numpy as np
from loadax import from_tokens
url, folder, limit, seed = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
source = from_tokens(url, 1000, dtype="uint16", cache=folder, cache_bytes=limit).source
random = np.random.default_rng(seed)
digest = 0
for _ in range(12):
    rows = random.integers(0, len(source), 30)
    tokens = source.read(rows)["tokens"]
    digest += int(tokens.astype(np.int64).sum() * (1 + rows[0]))
print(json.dumps(digest))
"""


@pytest.mark.processes
@pytest.mark.parametrize(("count", "limit"), [(4, 100 * HELD), (4, 5 * HELD)], ids=["all fits", "little fits"])
def test_processes_share_a_folder(count: int, limit: int, tmp_path: Path, http_proxy: FaultProxy) -> None:
    tokens = stream(1 << 20)  # 16 blocks
    path = write_bin(tmp_path / "x.bin", tokens)
    url, folder = f"{http_proxy.url}/x.bin", tmp_path / "cache"
    command = [sys.executable, "-c", READER, url, str(folder), str(limit)]
    children = [
        subprocess.Popen([*command, str(seed)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for seed in range(count)
    ]
    try:
        most = 0
        while any(child.poll() is None for child in children):
            most = max(most, len(present(folder)))
            time.sleep(0.005)
        results = [child.communicate(timeout=HANG) for child in children]
    finally:
        for child in children:
            child.kill()
            child.wait()
    local = open_tokens(path, 1000, dtype="uint16")
    for seed, (out, errors) in enumerate(results):
        assert not errors
        random = np.random.default_rng(seed)
        digest = 0
        for _ in range(12):
            rows = random.integers(0, len(local), 30)
            digest += int(local.read(rows)["tokens"].astype(np.int64).sum() * (1 + rows[0]))
        assert json.loads(out) == digest
    assert 1 <= len(blocks(folder)) <= limit // HELD
    # A folder is not listed in one moment: each process may have replaced a block meanwhile.
    assert most <= limit // HELD + count
    assert not list((folder / "loadax-blocks").glob(".loadax-*"))


def present(folder: Path) -> list[str]:
    """The names of blocks at this moment."""
    return [path.name for path in folder.glob("loadax-blocks/*/*") if len(path.name) == 40]


@pytest.mark.processes
def test_a_process_that_is_killed_leaves_a_folder_that_works(tmp_path: Path, http_proxy: FaultProxy) -> None:
    tokens = stream(1 << 20)
    path = write_bin(tmp_path / "x.bin", tokens)
    url, folder = f"{http_proxy.url}/x.bin", tmp_path / "cache"
    command = [sys.executable, "-c", READER, url, str(folder), str(5 * HELD), "0"]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: present(folder) or child.poll() is not None)
    finally:
        child.kill()
        child.wait()
    source = open_tokens(url, 1000, dtype="uint16", cache=folder, cache_bytes=5 * HELD)
    rows = np.arange(len(source))
    np.testing.assert_array_equal(
        source.read(rows)["tokens"], open_tokens(path, 1000, dtype="uint16").read(rows)["tokens"]
    )
    assert len(blocks(folder)) <= 5


def test_temporary_file_that_is_gone_while_blocks_are_counted(tmp_path: Path) -> None:
    """Another process has renamed it between the list of the folder and the look at it."""
    cache = DiskCache(tmp_path, 10 * HELD)
    listed = Path.iterdir

    def and_one_that_is_gone(folder: Path) -> Iterator[Path]:
        yield from listed(folder)
        yield folder / ".loadax-gone"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "iterdir", and_one_that_is_gone)
        cache.put("0" * 40, b"x" * 100)
    assert cache.get("0" * 40, ByteRange("", 0, 100)) == b"x" * 100
