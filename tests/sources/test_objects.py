"""Files of any kind as rows, and folders and patterns of `.npy` files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadax import Dataloader, from_npy, from_objects
from loadax.errors import ArgumentError, SourceError
from tests.servers.ranges import RangeServer

pytest_plugins = ["tests.servers.fixtures"]


def write(folder: Path, names: str = "cab") -> None:
    for name in names:
        (folder / f"{name}.raw").write_bytes(name.encode() * (ord(name) - 96))
    (folder / ".hidden").write_bytes(b"x")
    (folder / "more").mkdir()
    (folder / "more" / "d.raw").write_bytes(b"")


def test_rows_are_paths_and_contents(tmp_path: Path) -> None:
    write(tmp_path)
    expected = [{"path": str(tmp_path / f"{name}.raw"), "bytes": name.encode() * n} for n, name in enumerate("abc", 1)]
    data = from_objects(tmp_path)
    assert [data[row] for row in range(len(data))] == expected
    assert [data[row] for row in range(3)] == [from_objects([row["path"] for row in expected])[row] for row in range(3)]
    everything = from_objects(tmp_path / "**" / "*.raw")
    assert [row["bytes"] for row in map(everything.__getitem__, range(4))] == [b"a", b"bb", b"ccc", b""]
    assert data.read([2, 0, 2])["bytes"].tolist() == [b"ccc", b"a", b"ccc"]
    assert data.source.locate(1)[0].file == expected[1]["path"]


def test_a_map_decodes_them(tmp_path: Path) -> None:
    write(tmp_path)
    sizes = from_objects(tmp_path).map(lambda row: {"size": np.int32(len(row["bytes"]))}).shuffle(0)
    with Dataloader(sizes, 3, shard_index=0, shard_count=1, num_workers=1).host_batches() as batches:
        assert sorted(next(batches)["size"].tolist()) == [1, 2, 3]


def test_remote_objects_take_one_request(tmp_path: Path, range_server: RangeServer) -> None:
    write(tmp_path)
    urls = [f"{range_server.url}/{name}.raw" for name in "abc"]
    data = from_objects([*urls, str(tmp_path / "a.raw"), f"{range_server.url}/more/d.raw"])
    assert data.read(range(5))["bytes"].tolist() == [b"a", b"bb", b"ccc", b"a", b""]


def test_objects_that_are_missing(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"paths=\[\] is empty; pass the path or URL of a file"):
        from_objects([])
    with pytest.raises(SourceError, match=r"none.raw: there is no such file"):
        from_objects(str(tmp_path / "none.raw"))[0]
    with pytest.raises(SourceError, match="the folder has no files"):
        from_objects(tmp_path)


def save(folder: Path, arrays: dict[str, Any]) -> None:
    for name, array in arrays.items():
        np.save(folder / name, array)


def test_npy_folders_and_patterns_are_the_rows_of_their_files(tmp_path: Path) -> None:
    rows = np.arange(30).reshape(10, 3)
    save(tmp_path, {"b.npy": rows[4:9], "a.npy": rows[:4], "c.npy": rows[9:]})
    (tmp_path / "notes.txt").write_text("not a .npy file")
    for given in (tmp_path, f"{tmp_path}/*.npy", f"{tmp_path}/{{a,b,c}}.npy"):
        data = from_npy(given)
        np.testing.assert_array_equal(data.read([9, 0, 4, 3]), rows[[9, 0, 4, 3]])
        assert len(data) == 10
    tree = from_npy({"x": tmp_path, "y": tmp_path / "*.npy"})
    np.testing.assert_array_equal(tree.read(range(10))["y"], rows)
    assert from_npy([str(tmp_path / "a.npy"), str(tmp_path / "a.npy")])[0][1].tolist() == [0, 1, 2]


def test_npy_files_that_do_not_go_together(tmp_path: Path) -> None:
    save(tmp_path, {"a.npy": np.zeros((2, 3)), "b.npy": np.zeros((2, 4))})
    with pytest.raises(SourceError, match=r"b.npy has rows of float64\[4\], but .*a.npy of float64\[3\]; pass files"):
        from_npy(tmp_path)
    save(tmp_path, {"b.npy": np.asfortranarray(np.zeros((2, 3)))})
    with pytest.raises(SourceError, match=r"b.npy is in Fortran order.*open it alone"):
        from_npy(tmp_path)
    assert len(from_npy(tmp_path / "b.npy")) == 2
    with pytest.raises(SourceError, match=r"no file matches this pattern"):
        from_npy(f"{tmp_path}/x*.npy")
