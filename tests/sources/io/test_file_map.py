"""Maps of files without descriptors: the file's bytes, whatever happens to its name."""

import gc
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from loadax.sources.io.byte_stream import FileSpan, MappedSegments
from loadax.sources.io.file_map import FileMap


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
    for name in ("_libc", "ctypes", "mmap", "os"):
        monkeypatch.setattr(f"loadax.sources.io.file_map.{name}", None)
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


def test_a_stream_keeps_a_bounded_number_of_maps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadax.sources.io.byte_stream._MOST_MAPS", 3)
    for index in range(8):
        (tmp_path / str(index)).write_bytes(bytes([index]) * 10)
    stream = MappedSegments([FileSpan(str(tmp_path / str(index)), 0, 10) for index in range(8)])
    out = np.empty((80, 1), np.uint8)
    for _ in range(2):
        stream.read_into(np.arange(80)[::-1], out)
        assert out[::-1, 0].tolist() == np.repeat(np.arange(8), 10).tolist()
        gc.collect()
        assert maps_of(tmp_path) == 3
