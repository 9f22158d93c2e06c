"""Nothing is written over what is read, by whatever name it is called."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import loadax
from loadax.cli.program import main
from loadax.dataset import Dataset
from loadax.errors import ArgumentError
from loadax.sources import path_overlap
from loadax.sources.adapt import as_source
from tests.writing.rows import files

ROWS = {"x": np.arange(24).reshape(12, 2)}
REFUSED = r"overlaps .*, which this dataset reads; choose another path to write to"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A zarr store, and a link to it and to the folder that it is in."""
    loadax.write_zarr(ROWS, tmp_path / "data" / "src.zarr", progress=False)
    (tmp_path / "link.zarr").symlink_to(tmp_path / "data" / "src.zarr")
    (tmp_path / "linked").symlink_to(tmp_path / "data")
    return tmp_path / "data" / "src.zarr"


NAMES = (
    "data/src.zarr",
    "link.zarr",
    "linked/src.zarr",
    "data/../data/src.zarr",
    "linked/../data/src.zarr/",
    "link.zarr/x",
    "data",
    "linked",
    ".",
)


@pytest.mark.parametrize("read", ["data/src.zarr", "link.zarr", "linked/src.zarr"])
@pytest.mark.parametrize("written", NAMES)
def test_by_links_and_dots(
    read: str, written: str, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = files(store)
    dataset = loadax.from_zarr(read)
    with pytest.raises(ArgumentError, match=REFUSED):
        loadax.write_zarr(dataset, written, overwrite=True, progress=False)
    with pytest.raises(ArgumentError, match=REFUSED):
        dataset.cache(written, overwrite=True, progress=False)
    assert main(["convert", read, written, "--overwrite"]) == 2
    assert files(store) == before


def test_by_the_same_folder_under_another_name(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a bind mount has it: no link is resolved, but it is one folder on the disk."""
    elsewhere = tmp_path / "mounted.zarr"
    loadax.write_zarr(ROWS, elsewhere, progress=False)
    identity = path_overlap._identity
    monkeypatch.setattr(path_overlap, "_identity", lambda path: identity(path.replace(str(elsewhere), str(store))))
    with pytest.raises(ArgumentError, match=REFUSED):
        loadax.write_zarr(loadax.from_zarr(store), elsewhere, overwrite=True, progress=False)
    with pytest.raises(ArgumentError, match=REFUSED):
        loadax.write_zarr(loadax.from_zarr(store), elsewhere / "x" / "below", overwrite=True, progress=False)


def of_npy(folder: Path) -> Dataset:
    np.save(folder / "a.npy", np.arange(10))
    return loadax.from_npy(folder / "a.npy")


def of_tokens(folder: Path) -> Dataset:
    np.arange(100, dtype=np.uint16).tofile(folder / "a.bin")
    return loadax.from_tokens(folder / "a.bin", 8, dtype="uint16")


def of_documents(folder: Path) -> Dataset:
    np.save(folder / "a.npy", np.arange(10))
    return loadax.from_documents(folder / "a.npy", offsets=[0, 4, 10])


def of_mapped_documents(folder: Path) -> Dataset:
    np.save(folder / "a.npy", np.arange(10))
    return loadax.from_documents(np.load(folder / "a.npy", mmap_mode="r"), offsets=[0, 4, 10])


def of_images(folder: Path) -> Dataset:
    Image.new("RGB", (4, 4)).save(folder / "a.png")
    return loadax.from_images(folder)


def of_zarr(folder: Path) -> Dataset:
    loadax.write_zarr(ROWS, folder / "s", progress=False)
    return loadax.from_zarr(folder / "s")


def of_a_cast(folder: Path) -> Dataset:
    loadax.write_zarr(ROWS["x"], folder / "s", progress=False)
    inner = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{folder}/s/"}}
    return loadax.from_tensorstore({"driver": "cast", "dtype": "float32", "base": inner})


@pytest.mark.parametrize(
    "opened", [of_npy, of_tokens, of_documents, of_mapped_documents, of_images, of_zarr, of_a_cast]
)
def test_of_every_kind_of_data(opened: Callable[[Path], Dataset], tmp_path: Path) -> None:
    """Around what is read: the folder that its files are in."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    data = opened(tmp_path / "real")
    if opened in (of_documents, of_mapped_documents):
        data = data.pack(4)
    before = files(tmp_path / "real")
    wrapped: list[Any] = [data, data.map_batch(lambda batch: batch), loadax.concat([data, data])]
    for each in wrapped:
        for path in (tmp_path / "real", tmp_path / "link", tmp_path):
            with pytest.raises(ArgumentError, match=REFUSED):
                loadax.write_zarr(each, path, overwrite=True, progress=False)
    assert files(tmp_path / "real") == before


def test_of_caches(tmp_path: Path) -> None:
    cached = loadax.from_arrays(ROWS).cache(tmp_path / "c", progress=False)
    (tmp_path / "link").symlink_to(tmp_path / "c")
    for path in (tmp_path / "c", tmp_path / "link"):
        with pytest.raises(ArgumentError, match=REFUSED):
            cached.map_batch(lambda batch: {"x": batch["x"] + 1}).cache(path, overwrite=True, progress=False)
    assert cached[3]["x"].tolist() == ROWS["x"][3].tolist()


def test_what_only_sounds_alike_is_another_place(store: Path, tmp_path: Path) -> None:
    loadax.write_zarr(loadax.from_zarr(store), tmp_path / "data" / "src.zarr2", progress=False)
    loadax.write_zarr(loadax.from_zarr(store), tmp_path / "src.zarr", progress=False)
    assert loadax.from_zarr(tmp_path / "src.zarr")[3]["x"].tolist() == ROWS["x"][3].tolist()


@pytest.mark.parametrize(
    ("first", "second", "met"),
    [
        ("s3://b/a", "s3://b/a/", True),
        ("s3://b/a/c", "s3://b/a", True),
        ("s3://b/a", "s3://b/ab", False),
        ("s3://b/a", "/b/a", False),
        ("/d.db/|ocdbt:a/", "/d.db|ocdbt:b/", False),
        ("/d.db/|ocdbt:a/", "/d.db|ocdbt:a/c", True),
        ("/d.db/|ocdbt:a/", "/d.db", True),
        ("/a.zip|zip:", "/a.zip", True),
    ],
)
def test_urls_and_databases(first: str, second: str, met: bool) -> None:
    class Reads:
        addresses = (first,)
        spec = None

        def __len__(self) -> int:
            return 1

        def read(self, rows: Any) -> Any:
            return rows

    if met:
        with pytest.raises(ArgumentError, match=REFUSED):
            path_overlap.check_elsewhere(as_source(Reads()), second)
    else:
        path_overlap.check_elsewhere(as_source(Reads()), second)
