"""What is damaged is found: everywhere, in stores of any writer."""

import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, given, settings, strategies as st
from numcodecs import Blosc, Zlib  # type: ignore[import-untyped]
from zarr.codecs import Crc32cCodec, GzipCodec, ZstdCodec

from loadax.errors import SourceError
from loadax.writing import store_damage as verify_module
from loadax.writing.store_damage import Damage, Verification, verify
from loadax.writing.write import write_zarr
from tests.limits import examples
from tests.writing.rows import TreeRows, tree_of

ROWS, SHARD = 64, 16


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "s"
    write_zarr(TreeRows(tree_of(ROWS)), path, chunk_rows=2, shard_rows=SHARD)
    return path


@pytest.fixture
def path(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole, tmp_path / "s")
    return tmp_path / "s"


def spans(path: Path) -> list[tuple[str, int, int]]:
    return [(each.array, each.start, each.stop) for each in verify(path).damages]


def test_all_is_well(path: Path) -> None:
    nbytes = ROWS * (8 * 8 * 3 + 300 * 4 + 8)
    assert verify(path) == Verification(str(path), ROWS, 3, nbytes, damages=(), unchecked=(), ours=True)


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_every_flipped_byte_is_found(data: st.DataObject, path: Path) -> None:
    shards = sorted(each for each in path.rglob("c/**/*") if each.is_file())
    shard = data.draw(st.sampled_from(shards))
    content = shard.read_bytes()
    at, mask = data.draw(st.integers(0, len(content) - 1)), data.draw(st.integers(1, 255))
    shard.write_bytes(content[:at] + bytes([content[at] ^ mask]) + content[at + 1 :])
    name, part = shard.relative_to(path).parts[0], int(shard.relative_to(path).parts[2])
    try:
        ((array, start, stop),) = spans(path)
    finally:
        shard.write_bytes(content)
    # A chunk of it, or all of it where the byte belongs to the index.
    assert array == name
    assert part * SHARD <= start < stop <= (part + 1) * SHARD
    assert stop - start == (2 if at < len(content) - (16 * SHARD // 2 + 4) else SHARD)


def test_the_damaged_chunk_is_named(path: Path) -> None:
    shard = path / "more.field/c/2/0"
    content = bytearray(shard.read_bytes())
    content[3] ^= 1
    shard.write_bytes(content)
    (damage,) = verify(path).damages
    assert (damage.array, damage.start, damage.stop) == ("more.field", 32, 34)
    assert f'Error reading shard entry {{0, 0}}/{{8, 1}} in local file "{shard}"' in damage.message


def test_all_damages_are_listed_and_neighbours_are_one(path: Path) -> None:
    (path / "image/c/1/0/0/0").unlink()
    (path / "image/c/2/0/0/0").write_bytes(b"")
    (path / "image/c/3/0/0/0").write_bytes((path / "image/c/3/0/0/0").read_bytes()[:-1])
    label = path / "more.label/c/0"
    label.write_bytes(label.read_bytes()[:40])
    field = path / "more.field/c/1/0"
    content = bytearray(field.read_bytes())
    content[0] ^= 1
    content[len(content) // 2] ^= 1
    field.write_bytes(content)
    found = spans(path)
    assert found[0] == ("image", 16, 64)
    assert [each[0] for each in found[1:]] == ["more.field", "more.field", "more.label"]
    assert found[1] == ("more.field", 16, 18)
    assert found[3] == ("more.label", 0, 16)


def test_a_chunk_missing_in_a_shard(path: Path) -> None:
    """As a writer leaves it who skips zeros."""
    zarr.open_array(path / "more.label", mode="r+", config={"write_empty_chunks": False})[20:22] = 0
    (damage,) = verify(path).damages
    assert (damage.array, damage.start, damage.stop) == ("more.label", 20, 22)
    assert "is missing" in damage.message


def test_an_array_that_is_gone(path: Path) -> None:
    shutil.rmtree(path / "image")
    (damage,) = verify(path).damages
    assert damage == Damage("image", 0, ROWS, damage.message)
    assert 'image/zarr.json" does not exist' in damage.message


def test_metadata_that_say_something_else_than_the_manifest(path: Path) -> None:
    node = path / "more.label/zarr.json"
    metadata = json.loads(node.read_text())
    metadata["shape"] = [ROWS - 16]
    node.write_text(json.dumps(metadata))
    (damage,) = verify(path).damages
    assert damage.message == "its zarr.json says int64[48], but loadax.json says int64[64]; copy both again"
    node.write_text("{")
    (damage,) = verify(path).damages
    assert (damage.array, damage.start, damage.stop) == ("more.label", 0, ROWS)
    assert (
        "Error parsing JSON" in damage.message
        or "DATA_LOSS" in damage.message
        or "FAILED_PRECONDITION" in damage.message
    )


def test_the_group_itself(path: Path) -> None:
    (path / "zarr.json").write_text("{")
    with pytest.raises(SourceError, match=r"s/zarr\.json is not valid JSON"):
        verify(path)
    (path / "zarr.json").unlink()
    with pytest.raises(SourceError, match=r"s: its zarr\.json is missing; copy it again"):
        verify(path)


def test_what_is_half_written_is_no_store(path: Path) -> None:
    (path / "loadax.json").rename(path / "loadax.partial.json")
    with pytest.raises(SourceError, match=r"the store is unfinished \(loadax\.json is missing\)"):
        verify(path)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="contains no zarr array or group of arrays"):
        verify(tmp_path)


def test_pieces_of_a_large_shard(tmp_path: Path) -> None:
    """80 MiB in one shard are read in two pieces; damage in both is found."""
    path = tmp_path / "s"
    write_zarr(TreeRows(np.ones((80, 1 << 20), np.uint8)), path, chunk_rows=1, shard_rows=80)
    shard = path / "c/0/0"
    content = bytearray(shard.read_bytes())
    each = (len(content) - 80 * 16 - 4) // 80
    content[each * 2 + 5] ^= 1
    content[each * 79 + 5] ^= 1
    shard.write_bytes(content)
    assert len(spans(path)) == 2
    shard.unlink()
    assert spans(path) == [("", 0, 80)]


FOREIGN: dict[str, dict[str, Any]] = {
    "v2 raw": {"zarr_format": 2, "compressors": None},
    "v2 blosc": {"zarr_format": 2, "compressors": Blosc(cname="lz4")},
    "v2 zlib": {"zarr_format": 2, "compressors": Zlib()},
    "v3 raw": {"zarr_format": 3, "compressors": None},
    "v3 zstd": {"zarr_format": 3},
    "v3 gzip": {"zarr_format": 3, "compressors": GzipCodec()},
    "v3 crc32c": {"zarr_format": 3, "compressors": (ZstdCodec(), Crc32cCodec())},
    "v3 shards": {"zarr_format": 3, "shards": (20, 6)},
}
CHECKED = {"v2 zlib", "v3 gzip", "v3 crc32c"}


def foreign(path: Path, kind: str) -> dict[tuple[int, int], Path]:
    """A group with an array of 50 x 6 in files of 10 or 20 x 3 or 6, and another; gives the files by row and column."""
    arguments = {"chunks": (10, 3), **FOREIGN[kind]}
    version = arguments.pop("zarr_format")
    group = zarr.open_group(path, mode="w", zarr_format=version)
    array = group.create_array("x", shape=(50, 6), dtype="f8", **arguments)
    array[:] = np.arange(1, 301).reshape(50, 6)
    group.create_array("time", shape=(7,), chunks=(7,), dtype="i4")[:] = np.arange(1, 8)
    shape = array.shards or array.chunks
    cells = [(row, column) for row in range(-(-50 // shape[0])) for column in range(6 // shape[1])]
    return {
        (row * shape[0], column * shape[1]): path / "x" / (f"{row}.{column}" if version == 2 else f"c/{row}/{column}")
        for row, column in cells
    }


@pytest.mark.parametrize("kind", FOREIGN)
def test_stores_of_others(kind: str, tmp_path: Path) -> None:
    chunks = foreign(tmp_path, kind)
    report = verify(tmp_path)
    assert report == Verification(str(tmp_path), 50, 2, 50 * 6 * 8 + 28, (), report.unchecked, ours=False)
    assert ("x" in report.unchecked) == (kind not in CHECKED)
    (first, lost), *_, (last, short) = chunks.items()
    rows = 20 if "shards" in kind else 10
    lost.unlink()
    short.write_bytes(short.read_bytes()[:20])
    assert spans(tmp_path) == [("x", 0, rows), ("x", last[0], 50)]
    assert first == (0, 0)


@pytest.mark.parametrize("kind", sorted(CHECKED))
def test_flipped_bytes_in_stores_with_checksums(kind: str, tmp_path: Path) -> None:
    chunks = foreign(tmp_path, kind)
    content = bytearray(chunks[20, 3].read_bytes())
    content[-6] ^= 1
    chunks[20, 3].write_bytes(content)
    assert spans(tmp_path) == [("x", 20, 30)]


def test_a_single_value_has_no_rows(tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path, mode="w")
    group.create_array("one", shape=(), dtype="i4")[...] = 3
    assert (verify(tmp_path).rows, verify(tmp_path).damages) == (0, ())
    (tmp_path / "one/c").unlink()
    assert spans(tmp_path) == [("one", 0, 1)]


def test_a_bar_when_wanted(path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # tqdm before 4.68 cuts the bar there
    verify(path)
    assert capfd.readouterr().err == ""
    verify(path, progress=True)
    assert "87.5k/87.5k" in capfd.readouterr().err


def _places(found: Verification) -> list[tuple[str, int, int]]:
    """Where damages are. TensorStore words one damage in two ways, by which of its reads meets it first."""
    return [(damage.array, damage.start, damage.stop) for damage in found.damages]


def test_interrupted_check_goes_on(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for damaged in sorted(path.rglob("c/1*"))[:2]:
        for file in [damaged, *damaged.rglob("*")]:
            if file.is_file():
                file.write_bytes(file.read_bytes()[:-9])
    monkeypatch.setattr(verify_module, "PART_BYTES", 1)
    monkeypatch.setattr(verify_module, "PARTS_AT_ONCE", 1)
    expected = _places(verify(path))
    assert expected
    read, boxes, is_first = verify_module._read, list[object](), True

    def interrupted(array: Any, box: Any, batch: Any) -> Any:
        boxes.append(box)
        if is_first and len(boxes) == 5:
            raise OSError("the server is gone")
        return read(array, box, batch)

    monkeypatch.setattr(verify_module, "_read", interrupted)
    with pytest.raises(OSError, match="gone") as caught:
        verify(path, tmp_path / "i")
    assert any("of 12 parts are kept in" in note for note in caught.value.__notes__)
    finished = len([*tmp_path.glob("i/*.parts/*.npz")])
    first, boxes[:], is_first = len(boxes), [], False
    assert _places(verify(path, tmp_path / "i")) == expected
    assert 0 < finished < first
    once, boxes[:] = len(boxes), []
    assert _places(verify(path, tmp_path / "i")) == expected
    assert boxes == []
    os.utime(path / "loadax.json", (0, 0))
    with ThreadPoolExecutor(2) as executor:
        assert _places(verify(path, tmp_path / "i", executor)) == expected
    assert len(boxes) > once
