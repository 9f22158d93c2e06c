"""Pickled data is bit for bit the same, with arrays sent once and files sent as paths."""

import gc
import mmap
import os
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from loadax.work.payload import Payload, pack, unpack
from tests.loader.workers import maps
from tests.work_counts import lines_of

Array = NDArray[Any]
ROWS, COLUMNS = 100, 30

DTYPES = ["<i4", ">i4", "<f8", "<M8[ns]", ml_dtypes.bfloat16, [("a", "<i4"), ("b", ">f8")], "<U5", "S3", "?", "<c8"]

CUTS: dict[str, Callable[[Array], Array]] = {
    "whole": lambda array: array,
    "slice": lambda array: array[7:50],
    "strided": lambda array: array[3:-3:4, 1::3],
    "transposed": lambda array: array.T,
    "reversed": lambda array: array[::-1],
    "one row": lambda array: array[5],
    "scalar": lambda array: array[5, 5:6].reshape(()),
    "none": lambda array: array[:0],
    "plain view": lambda array: array.view(np.ndarray),
    "broadcast": lambda array: np.broadcast_to(array[2], (4000, COLUMNS)),
}


def filled(dtype: Any) -> Array:
    dtype = np.dtype(dtype)
    if dtype.kind == "U":
        return np.array([f"r{number}" for number in range(ROWS * COLUMNS)], dtype).reshape(ROWS, COLUMNS)
    noise = np.random.default_rng(1).integers(
        0, 2 if dtype.kind == "b" else 120, ROWS * COLUMNS * dtype.itemsize, dtype=np.uint8
    )
    return noise.view(dtype).reshape(ROWS, COLUMNS)


def there_and_back(value: Any, **options: Any) -> Any:
    parcel = pack(value, **options)
    try:
        return unpack(parcel)
    finally:
        os.close(parcel.descriptor)


@contextmanager
def packed(value: Any) -> Iterator[Payload]:
    parcel = pack(value)
    yield parcel
    os.close(parcel.descriptor)


def assert_same(back: Array, array: Array) -> None:
    assert (back.dtype, back.shape) == (array.dtype, array.shape)
    assert back.tobytes() == array.tobytes()


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_arrays_and_maps_come_back_bit_for_bit(dtype: Any, cut: str, tmp_path: Path) -> None:
    whole = filled(dtype)
    whole.tofile(tmp_path / "x.bin")
    mapped: Array = np.memmap(tmp_path / "x.bin", np.dtype(dtype), "r", shape=whole.shape)
    np.save(tmp_path / "x.npy", whole)
    try:
        behind_header: Array = np.load(tmp_path / "x.npy", mmap_mode="r")
    except ValueError:  # NumPy's format does not know what others have added
        behind_header = mapped
    for array in (CUTS[cut](whole), CUTS[cut](mapped), CUTS[cut](behind_header)):
        assert_same(there_and_back({"x": (array, 3)})["x"][0], array)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cut", ["whole", "strided", "transposed", "reversed"])
def test_large_arrays_lie_beside_the_message_once(dtype: Any, cut: str) -> None:
    array = CUTS[cut](np.tile(filled(dtype), (40, 1)))
    function = lambda: array  # noqa: E731 - also one that hangs in a closure
    with packed((function, array)) as parcel:
        assert len(parcel.message) < 6000
        assert sum(size for _, size in parcel.arrays) == array.nbytes
        assert all(first % 64 == 0 for first, _ in parcel.arrays)
        again, back = unpack(parcel)
        assert_same(back, array)
        assert again() is back


def test_two_processes_map_the_same_file() -> None:
    """Here two maps of it in this process; the second one sees nothing of what the first one writes."""
    array = np.arange(1 << 16)
    with packed(array) as parcel:
        one, other = unpack(parcel), unpack(parcel)
        assert one.flags.writeable
        one[:] = -1
        assert_same(other, array)
        assert _backing(other).inode == _backing(unpack(parcel)).inode == os.fstat(parcel.descriptor).st_ino


@pytest.mark.parametrize("mode", ["r", "r+"])
def test_what_is_mapped_travels_as_a_path_and_is_mapped_again(mode: Any, tmp_path: Path) -> None:
    """Sparse, and larger than a test may read."""
    with (tmp_path / "large.bin").open("wb") as file:
        file.truncate(50 << 30)
    mapped = np.memmap(tmp_path / "large.bin", ">i2", mode, offset=6, shape=(1 << 30, 16))
    with packed(
        {"all": mapped, "some": mapped[1000:-1000:7, 2:5].view(np.ndarray), "f": lambda: mapped[3:9]}
    ) as parcel:
        assert parcel.arrays == ()
        assert len(parcel.message) < 2000
        back = unpack(parcel)
    assert back["all"].shape == mapped.shape
    assert _backing(back["some"]).inode == (tmp_path / "large.bin").stat().st_ino


def test_many_views_of_a_map_are_one_map_over_there(tmp_path: Path) -> None:
    """A descriptor and a map for each would be more than a process may have."""
    np.arange(1 << 16, dtype=np.int32).tofile(tmp_path / "x.bin")
    mapped = np.memmap(tmp_path / "x.bin", np.int32, "r")
    views = [mapped[number : number + 9] for number in range(3000)]
    before = len(list(Path("/proc/self/fd").iterdir()))
    back = there_and_back(views)
    assert len(list(Path("/proc/self/fd").iterdir())) - before <= 2
    assert all(one.tobytes() == other.tobytes() for one, other in zip(back, views, strict=True))


def test_from_whatever_folder_it_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.arange(5000).tofile("x.bin")
    mapped = np.memmap("x.bin", np.int64, "r")
    (tmp_path / "other").mkdir()
    with packed(mapped) as parcel:
        monkeypatch.chdir(tmp_path / "other")
        assert parcel.arrays == ()
        assert_same(unpack(parcel), np.arange(5000))


def replaced(path: Path) -> None:
    np.zeros(5000, np.int64).tofile(path.with_name("new"))
    path.with_name("new").replace(path)


@pytest.mark.parametrize("spoil", [replaced, Path.unlink])
def test_of_a_file_that_is_no_longer_there_the_contents_travel(spoil: Callable[[Path], None], tmp_path: Path) -> None:
    np.arange(5000).tofile(tmp_path / "x.bin")
    mapped = np.memmap(tmp_path / "x.bin", np.int64, "r")
    spoil(tmp_path / "x.bin")
    with packed({"all": mapped, "part": mapped[100:]}) as parcel:
        assert len(parcel.arrays) == 2
        back = unpack(parcel)
        assert_same(back["all"], np.arange(5000))
        assert_same(back["part"], np.arange(100, 5000))


def test_of_a_file_that_was_cut_off_what_is_left_travels(tmp_path: Path) -> None:
    np.arange(5000).tofile(tmp_path / "x.bin")
    mapped = np.memmap(tmp_path / "x.bin", np.int64, "r")
    os.truncate(tmp_path / "x.bin", 8 * 4000)
    with packed(mapped[:1000]) as parcel:
        assert parcel.arrays == ((0, 8000),)
        assert_same(unpack(parcel), np.arange(1000))


def test_a_map_of_another_inode_than_its_file_is_known_by_mapping_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on layered file systems, where the two differ."""
    np.arange(5000).tofile(tmp_path / "x.bin")
    mapped = np.memmap(tmp_path / "x.bin", np.int64, "r")
    known = os.fstat

    def layered(descriptor: int) -> Any:
        found = known(descriptor)
        return types.SimpleNamespace(st_size=found.st_size, st_dev=found.st_dev, st_ino=found.st_ino + 2**40)

    monkeypatch.setattr(os, "fstat", layered)
    with packed(mapped) as parcel:
        monkeypatch.undo()
        assert parcel.arrays == ()
    replaced(tmp_path / "x.bin")
    monkeypatch.setattr(os, "fstat", layered)
    with packed(mapped) as parcel:
        monkeypatch.undo()
        assert parcel.arrays == ((0, 40000),)


def test_of_thousands_of_mapped_files_each_is_as_much_work_as_of_a_few(tmp_path: Path) -> None:
    np.arange(600).tofile(tmp_path / "x.bin")
    maps = [np.memmap(tmp_path / "x.bin", np.uint8, "r", offset=number) for number in range(800)]

    def pack_them(count: int) -> None:
        with packed(maps[:count]) as parcel:
            assert parcel.arrays == ()

    few, many = (lines_of(partial(pack_them, count)) for count in (100, 800))
    assert many < 12 * few  # to look each one up anew among all of them takes 64 times as many


def test_what_was_written_to_a_copy_on_write_map_travels() -> None:
    array = np.memmap(Path(__file__), np.uint8, "c")
    array[:5000] = 3
    assert (there_and_back(array)[:5000] == 3).all()


def test_what_was_written_to_a_shared_map_is_in_the_file(tmp_path: Path) -> None:
    mapped = np.memmap(tmp_path / "x.bin", np.int64, "w+", shape=(5000,))
    mapped[:] = np.arange(5000)
    with packed(mapped) as parcel:
        assert parcel.arrays == ()
        assert_same(unpack(parcel), np.arange(5000))


def test_a_map_of_no_file_and_a_memmap_that_maps_nothing_are_copied(tmp_path: Path) -> None:
    nameless = np.frombuffer(mmap.mmap(-1, 1 << 14), np.int32)
    np.arange(5000).tofile(tmp_path / "x.bin")
    result = np.memmap(tmp_path / "x.bin", np.int64, "r").copy()
    assert type(result) is np.memmap
    result += 1
    assert_same(there_and_back(nameless), nameless)
    assert_same(there_and_back(result), np.arange(1, 5001))


def test_objects_in_arrays_travel() -> None:
    array = np.array([None, "a", np.arange(5000)], object)
    back = there_and_back(array)
    assert back[:2].tolist() == [None, "a"]
    assert_same(back[2], array[2])


def test_functions_of_modules_go_by_name_lambdas_and_closures_by_value() -> None:
    table = np.arange(5000)
    here = there_and_back((maps.plus_one, lambda row: table[row], maps.raises("value")))
    assert here[0] is maps.plus_one
    assert here[1](17) == 17
    assert here[2]({"x": 3}) == {"x": 3}


def test_functions_that_go_by_value_keep_their_file_and_lines() -> None:
    def outer() -> Any:
        return lambda value: value + 1

    for here in (outer, outer()):
        back = there_and_back(here)
        assert back is not here
        assert back.__code__.co_filename == __file__
        assert [*back.__code__.co_lines()] == [*here.__code__.co_lines()]
    assert there_and_back(outer)().__code__.co_filename == __file__


def test_functions_of_a_module_that_the_other_has_not_go_by_value_when_it_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = types.ModuleType("only_here")
    exec("base = 40\ndef helper(x): return base + x\ndef top(x): return helper(x)", module.__dict__)
    monkeypatch.setitem(__import__("sys").modules, "only_here", module)
    by_name, by_value = pack(module.top), pack(module.top, ["only_here"])
    monkeypatch.delitem(__import__("sys").modules, "only_here")
    with pytest.raises(ModuleNotFoundError, match="only_here"):
        unpack(by_name)
    assert unpack(by_value)(2) == 42
    for each in (by_name, by_value):
        os.close(each.descriptor)


def test_weak_references_refer_to_what_comes_along_or_to_nothing() -> None:
    array = np.arange(3)
    reference, gone = weakref.ref(array), weakref.ref(np.arange(4))
    kept, back, nothing = there_and_back((array, reference, gone))
    assert back() is kept
    assert nothing() is None


def test_what_does_not_pickle_raises_and_leaves_no_file_open() -> None:
    gc.collect()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        with pytest.raises(TypeError, match="lock"):
            pack({"x": np.arange(5000), "lock": threading.Lock()})
    assert len(list(Path("/proc/self/fd").iterdir())) == before


class _Map:
    def __init__(self, line: str):
        _, _, _, _, inode, *_ = line.split(maxsplit=5)
        self.inode = int(inode)


def _backing(array: Array) -> _Map:
    """The file whose memory an array lies in, as the system sees it."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        low, high = (int(each, 16) for each in line.split()[0].split("-"))
        if low <= array.ctypes.data < high:
            return _Map(line)
    raise AssertionError
