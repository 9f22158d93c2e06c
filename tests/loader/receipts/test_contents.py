"""States that know the files of their data: warnings, refusals, and the digests behind them."""

import json
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import loadax
from loadax import ContentDigests, Dataloader, Dataset
from loadax.errors import ArgumentError, StateError
from loadax.loader.receipts import data_files
from loadax.loader.receipts.contents import _difference, _field, _is_field
from loadax.loader.receipts.data_files import DataFile, digested

FILES = 5
FLAGS = 9  # names of changed files, and times


def shards(folder: Path) -> Dataset:
    paths = [folder / f"shard-{number}.npy" for number in range(FILES)]
    for number, path in enumerate(paths):
        if not path.exists():
            np.save(path, np.arange(100 * number, 100 * number + 16))
    return loadax.concat([loadax.from_npy(path) for path in paths])


def state_of(loader: Dataloader, step: int = 3) -> Any:
    with loader.iterate(step) as batches:
        return json.loads(json.dumps(batches.get_state()))


def change_byte(path: Path) -> None:
    """Changes the last byte, and leaves length and time of change as they are."""
    status = path.stat()
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("index", [None, "index"])
@pytest.mark.parametrize("changed", range(FILES))
def test_one_changed_byte_is_refused_by_the_name_of_its_file(tmp_path: Path, index: str | None, changed: int) -> None:
    digests = ContentDigests(index=index and tmp_path / index)
    state = state_of(Dataloader(shards(tmp_path), 8, contents=digests))
    assert Dataloader(shards(tmp_path), 8, contents=digests).iterate(state).step == 3
    change_byte(tmp_path / f"shard-{changed}.npy")
    with pytest.raises(StateError, match=f"shard-{changed}.npy has other bytes than when the state was saved"):
        Dataloader(shards(tmp_path), 8, contents=digests).iterate(state)
    with pytest.raises(StateError, match="has other bytes"):  # the state asks for it
        Dataloader(shards(tmp_path), 8).iterate(state)
    assert Dataloader(shards(tmp_path), 8, contents=None).iterate(state).step == 3


def test_changed_times_are_a_warning_at_the_resume(tmp_path: Path) -> None:
    state = state_of(Dataloader(shards(tmp_path), 8))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Dataloader(shards(tmp_path), 8).iterate(state).close()
    os.utime(tmp_path / "shard-3.npy", (1, 1))
    loader = Dataloader(shards(tmp_path), 8)
    with pytest.warns(UserWarning, match=r"shard-3.npy has another size or time of change") as caught:
        loader.iterate(state).close()
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader.iterate(state).close()  # once a loader
    os.utime(tmp_path / "shard-0.npy", (1, 1))
    os.utime(tmp_path / "shard-1.npy", (1, 1))
    with pytest.warns(UserWarning, match=r"shard-0\.npy, .*shard-1\.npy and .*shard-3\.npy have another size or time"):
        Dataloader(shards(tmp_path), 8).iterate(state).close()


def test_states_of_before_changed_files_were_named_are_compared(tmp_path: Path) -> None:
    data = shards(tmp_path)
    state = state_of(Dataloader(data, 8))
    flags, count, whole = state["contents"][:3]
    earlier = state | {"contents": [flags - 8, count, whole, 1, 2, 3, 4, 5, 6]}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Dataloader(data, 8).iterate(earlier).close()
    os.utime(tmp_path / "shard-3.npy", (1, 1))
    with pytest.warns(UserWarning, match="several of the 5 files of the data have another"):
        Dataloader(shards(tmp_path), 8).iterate(earlier).close()


def test_states_without_contents_open(tmp_path: Path) -> None:
    state = state_of(Dataloader(shards(tmp_path), 8))
    del state["contents"]
    os.utime(tmp_path / "shard-3.npy", (1, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Dataloader(shards(tmp_path), 8).iterate(state).step == 3
    assert "contents" not in state_of(Dataloader(np.arange(64), 8))
    assert "contents" not in state_of(Dataloader(shards(tmp_path), 8, contents=None))


def test_damaged_contents_are_refused(tmp_path: Path) -> None:
    loader = Dataloader(shards(tmp_path), 8)
    state = state_of(loader)
    for damaged in (5, [], [5, 5], ["5", 5, 1], state["contents"][:-1], [5, -1, 3]):
        with pytest.raises(StateError, match=r"the state's 'contents' is .* pass a state of get_state"):
            loader.iterate(state | {"contents": damaged})
    restored = state | {"contents": np.array(state["contents"])}  # as Orbax gives it
    assert loader.iterate(restored).step == 3


def test_other_values_of_contents_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"contents=5: pass 'identity', 'digest', a loadax.ContentDigests, or None"):
        Dataloader(shards(tmp_path), 8, contents=5)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="contents='bytes'"):
        Dataloader(shards(tmp_path), 8, contents="bytes")


def test_arrays_in_memory_are_digested() -> None:
    numbers = np.arange(64)
    state = state_of(Dataloader({"x": numbers.copy()}, 8, contents="digest"))
    assert Dataloader({"x": numbers.copy()}, 8, contents="digest").iterate(state).step == 3
    numbers[5] = 7
    with pytest.raises(StateError, match=r"array 0 of .* has other bytes"):
        Dataloader({"x": numbers}, 8, contents="digest").iterate(state)


def test_chunks_of_a_store_are_digested(tmp_path: Path) -> None:
    loadax.write_zarr(np.arange(64), tmp_path / "store.zarr", shard_rows=16)
    data = loadax.from_zarr(tmp_path / "store.zarr")
    state = state_of(Dataloader(data, 8, contents="digest"))
    chunk = next(path for path in sorted((tmp_path / "store.zarr").rglob("c/*")) if path.is_file())
    change_byte(chunk)
    with pytest.raises(StateError, match=f"{chunk.name} has other bytes"):
        Dataloader(data, 8, contents="digest").iterate(state)


def test_an_index_keeps_digests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards(tmp_path)
    paths = sorted(map(str, tmp_path.glob("*.npy")))
    first = digested(paths, tmp_path / "index", None, False)
    with monkeypatch.context() as patch:
        patch.setattr(data_files.DigestWork, "compute", lambda *_: 1 / 0)
        assert digested(paths, tmp_path / "index", None, False) == first
    change_byte(Path(paths[2]))
    differs = [one != other for one, other in zip(digested(paths, tmp_path / "index", None, False), first, strict=True)]
    assert differs == [False, False, True, False, False]


def test_large_files_are_digested_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_files, "_BLOCK", 100)
    sizes = [0, 1, 100, 101, 350, 60, 60]
    paths = [tmp_path / str(number) for number in range(len(sizes))]
    for path, size in zip(paths, sizes, strict=True):
        path.write_bytes(bytes(size))
    before = [file.digest for file in digested([*map(str, paths)], None, None, False)]
    assert len({*before}) == 6
    for path in paths[1:]:
        content = path.read_bytes()
        path.write_bytes(content[:-1] + b"x")
        after = [file.digest for file in digested([*map(str, paths)], None, None, False)]
        changed = [one for one, old, new in zip(paths, before, after, strict=True) if old != new]
        assert changed == [path]
        path.write_bytes(content)


def _files(count: int, changed: set[int]) -> list[DataFile]:
    return [DataFile(f"file {number}", 1, f"{number in changed}") for number in range(count)]


@given(st.integers(1, 3000), st.data())
def test_sums_of_hashes_name_the_files(count: int, data: st.DataObject) -> None:
    saved = _field(_files(count, set()), FLAGS)
    assert _is_field(saved)
    assert len(saved) == 3 + min(count, 32)
    changed = data.draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=16))
    files = _files(count, changed)
    *others, last = (f"file {number}" for number in sorted(changed))
    text = f"{', '.join(others)} and {last} have" if others else f"{last} has"
    assert _difference(files, _field(files, FLAGS), saved) == text
    more = _files(count + 1, set())
    assert f"in place of {count}, and" in _difference(more, _field(more, FLAGS), saved)


@given(st.integers(33, 3000), st.data())
def test_more_changed_files_than_sums_can_name_are_several(count: int, data: st.DataObject) -> None:
    saved = _field(_files(count, set()), FLAGS)
    files = _files(count, data.draw(st.sets(st.integers(0, count - 1), min_size=17, max_size=33)))
    text = _difference(files, _field(files, FLAGS), saved)
    assert text == f"several of the {count:,} files of the data have"
