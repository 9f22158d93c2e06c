"""Maps of files without descriptors: the file's bytes, whatever happens to its name."""

import ctypes
import gc
import mmap
import os
import pickle
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import numpy as np
import pytest

from loadax.errors import SourceError
from loadax.files.byte_stream import FileSpan, MappedSegments
from loadax.files.file_map import FAILED, HUGE, FileMap, c_library, reserve
from tests.limits import HANG


def maps_of(path: Path) -> int:
    return Path("/proc/self/maps").read_text(encoding="utf-8").count(str(path))


def descriptors() -> int:
    return sum(1 for _ in Path("/dev/fd").iterdir())


def test_the_bytes_outlive_the_map_and_its_descriptor(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes(range(200)))
    before = descriptors()
    mapped = FileMap(path)
    part = mapped.bytes[5:8]
    assert descriptors() == before
    again = pickle.loads(pickle.dumps(mapped))
    assert bytes(again.bytes) == bytes(range(200))
    del mapped, again
    gc.collect()
    assert maps_of(path) == 1
    assert part.tolist() == [5, 6, 7]
    with pytest.raises(ValueError, match="read-only"):
        part[0] = 1
    del part
    gc.collect()
    assert maps_of(path) == 0


def test_it_is_unmapped_after_the_globals_of_its_module_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at the interpreter's exit. pytest makes an exception in `__del__` an error."""
    path = tmp_path / "x"
    path.write_bytes(bytes(200))
    mapped = FileMap(path)
    for name in ("c_library", "ctypes", "mmap", "os", "reserve"):
        monkeypatch.setattr(f"loadax.files.file_map.{name}", None)
    del mapped
    gc.collect()
    assert maps_of(path) == 0


def test_forgotten_bytes_leave_memory_and_are_read_again(tmp_path: Path) -> None:
    path = tmp_path / "x"
    content = np.arange(1 << 20).astype(np.uint8).tobytes() * 16
    path.write_bytes(content)
    mapped = FileMap(path)

    def resident() -> int:
        """KiB of files in the memory of this process."""
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("RssFile"))

    assert bytes(mapped.bytes) == content
    before = resident()
    mapped.forget(mapped.length - 1)
    assert resident() < before - (15 << 10)
    assert bytes(mapped.bytes) == content


def test_its_size_is_that_of_the_mapped_file_not_of_another_one_in_its_place(tmp_path: Path) -> None:
    path, other = tmp_path / "x", tmp_path / "other"
    path.write_bytes(bytes(200))
    other.write_bytes(b"short")
    mapped = FileMap(path)
    assert (mapped.size(), mapped.in_place) == (200, True)
    os.truncate(path, 100)
    assert (mapped.size(), mapped.in_place) == (100, True)
    os.truncate(path, 200)
    other.rename(path)
    assert (mapped.size(), mapped.in_place) == (200, False)
    path.unlink()
    assert (mapped.size(), mapped.in_place) == (200, False)
    assert not mapped.bytes.any()


def test_what_can_not_be_mapped(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    for name, message in {"empty": "Invalid argument", "nowhere": "No such file", ".": "it is a folder"}.items():
        with pytest.raises(OSError, match=message):
            FileMap(tmp_path / name)


def test_a_map_that_fails_leaves_its_addresses_reserved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x").write_bytes(bytes(100))
    reserved = reserve(3 * mmap.PAGESIZE)
    middle = reserved.ctypes.data + mmap.PAGESIZE
    with pytest.raises(OSError, match="Invalid argument"):
        FileMap(tmp_path / "x", (middle, 1, mmap.PAGESIZE))  # its first byte is not that of a page
    real = ctypes.CDLL(None).munmap
    real.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    libc = c_library()
    failed: list[int] = []

    class Failing:
        """Unmaps what is there, then fails, as kernels before 6.12 do."""

        def mmap(self, address: int, size: int, *rest: int) -> int:
            if failed:
                return int(libc.mmap(address, size, *rest))
            failed.append(real(address, size))
            return int(FAILED or -1)

    monkeypatch.setattr("loadax.files.file_map.c_library", Failing)
    with pytest.raises(OSError):
        FileMap(tmp_path / "x", (middle, 0, mmap.PAGESIZE))
    maps = [line.split()[0].split("-") for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()]
    assert any(int(low, 16) <= middle < int(high, 16) for low, high in maps)


def test_a_stream_keeps_a_bounded_number_of_maps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadax.files.byte_stream.MOST_MAPS", 4)
    for index in range(8):
        (tmp_path / str(index)).write_bytes(bytes([index]) * 10)
    stream = MappedSegments([FileSpan(str(tmp_path / str(index)), 0, 10) for index in range(8)])
    out = np.empty((80, 1), np.uint8)
    for _ in range(2):
        for low in range(0, 80, 20):
            stream.read_into(np.arange(low, low + 20), out[low : low + 20])
            gc.collect()
            assert 0 < maps_of(tmp_path) <= 4
        assert out[:, 0].tolist() == np.repeat(np.arange(8), 10).tolist()


def test_more_than_eight_files_of_a_read_are_asked_for_their_size_once_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for index in range(12):
        (tmp_path / str(index)).write_bytes(bytes([index]) * 10)
    stream = MappedSegments([FileSpan(str(tmp_path / str(index)), 0, 10) for index in range(12)])
    asked: list[Path] = []
    now = [0.0]
    status = FileMap.status

    def counted(file: FileMap) -> os.stat_result:
        asked.append(file.path)
        return status(file)

    monkeypatch.setattr(FileMap, "status", counted)
    monkeypatch.setattr("loadax.files.byte_stream.monotonic", lambda: now[0])

    def read(starts: list[int]) -> int:
        asked.clear()
        out = np.empty((len(starts), 2), np.uint8)
        stream.read_into(np.array(starts), out)
        assert out[:, 0].tolist() == [start // 10 for start in starts]
        return len(asked)

    many = [*range(0, 120, 5)]
    assert [read(many) for _ in range(3)] == [12, 0, 0]
    now[0] = 1.5
    assert [read([5, 25, 6]), read([5, 25, 6]), read(many), read(many)] == [2, 2, 10, 0]
    assert [read([*range(0, 80, 5)]) for _ in range(2)] == [8, 8]
    assert [read([5, 6]), read([5, 6])] == [1, 1]
    os.truncate(tmp_path / "3", 5)
    for starts in ([31], [5, 31], [*range(0, 80, 10)]):
        with pytest.raises(SourceError, match=r"3: the file has become shorter"):
            read(starts)
    now[0] = 3.0
    for _ in range(2):
        with pytest.raises(SourceError, match=r"3: the file has become shorter"):
            read(many)


def test_large_files_begin_at_huge_pages_so_that_the_kernel_maps_them_so(tmp_path: Path) -> None:
    """One address of a random row in four kilobytes is found in three levels of tables, mostly not in the cache."""
    (tmp_path / "x").write_bytes(bytes(HUGE + 5))
    assert FileMap(tmp_path / "x").bytes.ctypes.data % HUGE == 0
    stream = MappedSegments([FileSpan(str(tmp_path / "x"), begin, HUGE) for begin in (0, 5)])
    group = stream._mapped(np.array([0, 1]))
    assert [(group.memory.ctypes.data + int(place)) % HUGE for place in stream._places] == [0, 5]


@pytest.mark.parametrize("most", [1 << 36, 1 << 28, 1 << 10])
@pytest.mark.parametrize(("row_bytes", "count"), [(2050, 64), (6, 3), (2050, 1100), (20_000, 110)])
def test_rows_of_all_files_are_rows_of_one_table_while_addresses_suffice(
    row_bytes: int, count: int, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadax.files.byte_stream.RESERVED", most)
    expected = np.random.default_rng(0).integers(0, 256, (5, count, row_bytes), np.uint8)
    for index, content in enumerate(expected):
        (tmp_path / str(index)).write_bytes(content.tobytes())
    spans = [FileSpan(str(tmp_path / str(index)), 0, count * row_bytes) for index in range(5)]
    stream = pickle.loads(pickle.dumps(MappedSegments(spans, row_bytes)))
    chosen = np.random.default_rng(1).permutation(5 * count)
    out = np.empty((5 * count, row_bytes), np.uint8)
    stream.read_into(chosen * row_bytes, out)
    np.testing.assert_array_equal(out, expected.reshape(-1, row_bytes)[chosen])
    apart = np.diff(stream._places)
    assert not (apart % mmap.PAGESIZE).any()
    assert most == 1 << 10 or not (apart % row_bytes).any()
    assert stream._size <= max(most, 10 * HUGE)


@pytest.mark.parametrize("size", [2, 7, 4096, 5000])
def test_parts_of_files_of_any_place_and_length(size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that end in a page, begin in one or have none, with and without maps dropped in between."""
    monkeypatch.setattr("loadax.files.byte_stream.MOST_MAPS", 3 if size == 7 else 100)
    random = np.random.default_rng(size)
    segments, contents = [], []
    for index, (begin, length) in enumerate(
        [(0, 8192), (1, 9000), (4096, 1), (5000, 0), (128, 20_001), (4097, 4096), (8, 3)]
    ):
        content = random.integers(0, 256, begin + length + 7, np.uint8)
        (tmp_path / str(index)).write_bytes(content.tobytes())
        segments.append(FileSpan(str(tmp_path / str(index)), begin, length))
        contents.append(content[begin : begin + length])
    stream, expected = MappedSegments(segments), np.concatenate(contents)
    starts = random.integers(0, len(expected) - size + 1, 300)
    for chosen in (starts, np.sort(starts), starts[:1], np.arange(0, len(expected) - size, size)):
        out = np.empty((len(chosen), size), np.uint8)
        stream.read_into(chosen, out)
        np.testing.assert_array_equal(out, expected[chosen[:, None] + np.arange(size)])
    # An even number of bytes of each, so that entries of two bytes are in step with the stream.
    entries = MappedSegments([each._replace(size=each.size // 2 * 2) for each in segments])
    words = np.concatenate([each[: len(each) // 2 * 2] for each in contents]).view(np.uint16)
    picked = np.array([0, 4095, 5000, 8000, 4000, 0, len(words) - 1])
    lengths = np.array([3, 1, 100, 7, 9000, len(words), 1])  # two of them cross files
    np.testing.assert_array_equal(
        entries.gather(picked, lengths, np.dtype(np.uint16)),
        np.concatenate([words[low : low + count] for low, count in zip(picked, lengths, strict=True)]),
    )


def test_files_that_are_not_side_by_side_are_half_as_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is reserved between two mapped files is a map of the process too."""
    monkeypatch.setattr("loadax.files.byte_stream.MOST_MAPS", 32)
    for index in range(200):
        (tmp_path / str(index)).write_bytes(bytes([index]) * 10)
    stream = MappedSegments([FileSpan(str(tmp_path / str(index)), 0, 10) for index in range(200)])
    before = len(Path("/proc/self/maps").read_text(encoding="utf-8").splitlines())
    for start in range(0, 2000, 30):  # of the files in between, none is mapped
        stream.read_into(np.array([start]), out := np.empty((1, 10), np.uint8))
        assert (out == start // 10).all()
        gc.collect()
        assert len(Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()) - before < 32 + 20


def test_mapped_files_are_read_without_the_lock(tmp_path: Path) -> None:
    """A fork may come while another thread holds it: the new process would wait for ever."""
    (tmp_path / "x").write_bytes(bytes(range(100)))
    stream = MappedSegments([FileSpan(str(tmp_path / "x"), 0, 100)])
    stream.read_into(np.array([0]), np.empty((1, 10), np.uint8))
    with ThreadPoolExecutor(1) as thread:
        with stream._lock:
            reading = thread.submit(stream.read_into, np.array([50]), out := np.empty((1, 10), np.uint8))
            wait([reading], HANG)
            finished = reading.done()
        assert finished
        reading.result()
    assert out.tolist() == [list(range(50, 60))]
