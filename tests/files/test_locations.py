"""`where`: the bytes that it names are the row, and without the files that it names the row can't be read."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore as ts
import zarr
from hypothesis import given, strategies as st

import loadax
from loadax.errors import SourceError
from loadax.files.locations import joined, mapped_file
from loadax.protocols import Location
from loadax.sources.arrays import ArraySource
from loadax.sources.npy.source import open_npy
from loadax.sources.tokens.ragged import open_zarr
from loadax.sources.zarr.source import TensorStoreSource
from tests.writing.rows import made_up


def content(place: Location) -> bytes:
    assert place.first is not None
    assert place.last is not None
    return Path(place.file).read_bytes()[place.first : place.last + 1]


# Arrays


@pytest.mark.parametrize(
    "cut",
    [slice(None), slice(3, None), slice(40, 2, -3), (slice(5, 30), slice(1, 2)), (slice(None), slice(0, 3, 2))],
    ids=["whole", "from 3", "backwards", "one column", "every other column"],
)
def test_the_bytes_of_mapped_rows_are_the_rows(tmp_path: Path, cut: Any) -> None:
    """Also of slices, whose `offset` NumPy leaves as it was; a row whose bytes don't lie together has a file only."""
    values = made_up(np.int32, (2000, 4, 3))
    np.save(tmp_path / "x.npy", values)
    values.tofile(tmp_path / "x.bin")
    for mapped in (
        np.load(tmp_path / "x.npy", mmap_mode="r"),
        np.memmap(tmp_path / "x.bin", np.int32, "r", offset=7000 * 12, shape=(250, 4, 3)),
    ):
        array = mapped[1:][cut]
        source = ArraySource({"x": array})
        for row in (0, len(array) // 2, len(array) - 1):
            (place,) = source.locate(row)
            assert place.part == "['x']"
            if array[row].flags.c_contiguous:
                assert content(place) == array[row].tobytes()
            else:
                assert place == Location(str(mapped.filename), part="['x']")


def test_of_several_leaves_those_that_are_mapped(tmp_path: Path) -> None:
    values = made_up(np.float32, (20, 3))
    np.save(tmp_path / "x.npy", values)
    np.save(tmp_path / "f.npy", np.asfortranarray(values))
    mapped = open_npy({"x": tmp_path / "x.npy", "f": tmp_path / "f.npy"})
    tree = {
        "memory": values,
        "f": np.load(tmp_path / "f.npy", mmap_mode="r"),
        "x": np.load(tmp_path / "x.npy", mmap_mode="r"),
    }
    for source in (mapped, ArraySource(tree)):
        fortran, plain = source.locate(7)
        assert Location(*fortran) == Location(str(tmp_path / "f.npy"), part="['f']")
        assert content(Location(*plain)) == values[7].tobytes()
    assert ArraySource(values).locate(3) == []


def test_what_was_computed_from_a_map_lies_in_memory(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(10.0))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert mapped_file(mapped) is not None
    assert mapped_file(mapped + 1) is None
    assert mapped_file(np.arange(3)) is None


# Chunks


STORES: dict[str, dict[str, Any]] = {
    "zarr3": {"chunks": (4, 8, 3)},
    "zarr3 in shards": {"chunks": (2, 4, 3), "shards": (8, 8, 6)},
    "zarr3, keys as of version 2": {"chunks": (4, 8, 3), "chunk_key_encoding": {"name": "v2", "separator": "."}},
    "zarr2": {"chunks": (4, 8, 3), "zarr_format": 2},
    "zarr2 in folders": {"chunks": (4, 8, 3), "zarr_format": 2, "chunk_key_encoding": {"name": "v2", "separator": "/"}},
    "zarr3 raw, mapped": {"chunks": (100, 16, 12), "compressors": None, "filters": None},
}


@pytest.mark.parametrize("name", STORES)
def test_a_row_lies_in_the_files_without_which_it_cant_be_read(tmp_path: Path, name: str) -> None:
    values = made_up(np.float32, (120, 16, 12)) + 1
    array = zarr.create_array(tmp_path / "x", shape=values.shape, dtype=values.dtype, **STORES[name])
    array[:] = values
    places = open_zarr(tmp_path / "x", None).locate(110)
    kept = {Path(place.file) for place in places}
    assert len(kept) == len(places)
    # All other chunks may be gone,
    shutil.copytree(tmp_path / "x", tmp_path / "few")
    for file in (tmp_path / "few").rglob("*"):
        if (
            file.is_file()
            and file.name not in ("zarr.json", ".zarray", ".zattrs")
            and tmp_path / "x" / file.relative_to(tmp_path / "few") not in kept
        ):
            file.unlink()
    np.testing.assert_array_equal(open_zarr(tmp_path / "few", None).read(np.array([110]))[0], values[110])
    # and none of these.
    for number, file in enumerate(sorted(kept)):
        shutil.copytree(tmp_path / "x", tmp_path / str(number))
        (tmp_path / str(number) / file.relative_to(tmp_path / "x")).unlink()
        with pytest.raises(SourceError):
            open_zarr(tmp_path / str(number), None).read(np.array([110]))
    if name == "zarr3 raw, mapped":
        assert content(places[0]) == values[110].tobytes()


def test_chunks_are_named_by_their_numbers(tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "g", mode="w")
    group.create_array("a", shape=(100, 16, 12), dtype="f4", chunks=(4, 8, 3))
    group.create_array("b", shape=(100, 16, 12), dtype="f4", chunks=(2, 4, 3), shards=(8, 8, 6))
    places = open_zarr(tmp_path / "g", None).locate(37)
    folder = tmp_path / "g"
    assert places[0] == Location(f"{folder}/a/c/9/0/0", part="['a'] chunk [9, 0, 0]")
    assert places[8] == Location(f"{folder}/b/c/4/0/0", part="['b'] chunk [18, 0:2, 0:2]")
    assert [place.file.removeprefix(f"{folder}/b/c/") for place in places[8:]] == ["4/0/0", "4/0/1", "4/1/0", "4/1/1"]
    assert places[-1].part == "['b'] chunk [18, 2:4, 2:4]"


def test_n5_and_views_and_what_is_computed(tmp_path: Path) -> None:
    spec = {"driver": "n5", "kvstore": {"driver": "file", "path": str(tmp_path / "n")}}
    metadata = {"dimensions": [40, 6], "blockSize": [8, 3], "dataType": "uint16", "compression": {"type": "raw"}}
    store = ts.open({**spec, "metadata": metadata}, create=True).result()
    store[...] = np.arange(240, dtype=np.uint16).reshape(40, 6)
    assert TensorStoreSource(spec).locate(17) == [
        Location(f"{tmp_path}/n/2/0", part="chunk [2, 0]"),
        Location(f"{tmp_path}/n/2/1", part="chunk [2, 1]"),
    ]
    assert all(Path(place.file).is_file() for place in TensorStoreSource(spec).locate(17))
    assert TensorStoreSource(store[5:]).locate(2) == [Location(f"{tmp_path}/n")]  # rows of a view are others
    computed = ts.virtual_chunked(lambda domain, chunk, parameters: None, dtype=ts.int8, shape=[10])
    assert TensorStoreSource(computed).locate(3) == []


# Windows


def test_a_window_lies_where_its_rows_do(tmp_path: Path) -> None:
    values = made_up(np.int16, (50, 3))
    np.save(tmp_path / "x.npy", values)
    source = ArraySource(np.load(tmp_path / "x.npy", mmap_mode="r"))
    rows = loadax.from_source(source)[5:45]
    (place,) = rows.windows(4, 2).source.locate(3)
    assert content(place) == values[11:15].tobytes()
    window, targets = rows.windows(4, 2, lead=3, targets=2).source.locate(3)
    assert (content(window), content(targets)) == (values[11:15].tobytes(), values[17:19].tobytes())
    assert loadax.from_source(list(range(20))).windows(4, 2).source.locate(3) == []


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(0, 30), st.integers(0, 3), st.sampled_from(["", "p"])), max_size=8
    )
)
def test_joined_places_name_the_same_bytes(given: list[tuple[str, int, int, str]]) -> None:
    places = [Location(file, first, first + more, part) for file, first, more, part in given]
    found = joined(places)
    assert len(found) <= len(places)

    def covered(some: list[Location]) -> set[tuple[str, str, int]]:
        return {
            (each.file, each.part, byte)
            for each in some
            if each.first is not None and each.last is not None
            for byte in range(each.first, each.last + 1)
        }

    assert covered(found) == covered(places)
    assert joined([Location("a"), Location("a"), Location("b")]) == [Location("a"), Location("b")]
