"""What was opened by a relative path is read from there, wherever the process goes later."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import jax
import numpy as np
import pytest
import tensorstore as ts
import xarray as xr
import zarr

import loadax
from loadax import Dataloader, Dataset
from loadax.work.payload import pack, unpack
from tests.formats.samples import COMPRESSED, SAMPLES

ROWS = 16
VALUES = np.arange(ROWS * 4, dtype=np.int32).reshape(ROWS, 4)
FILE = {"driver": "file", "path": "x.zarr/"}
ZIP = {"driver": "zip", "base": {"driver": "file", "path": "x.zip"}}
STORE: dict[str, Any] = {"driver": "zarr3", "kvstore": FILE}


def opened(spec: dict[str, Any]) -> Any:
    return ts.open(spec, read=True).result()


def tensorstore(store: Any) -> Dataset:
    return loadax.from_tensorstore(store, missing="fill")  # else missing chunks are errors


OPENED: dict[str, Callable[[], Any]] = {
    **{name: partial(sample.open, f"{name}/x{sample.ending}") for name, sample in SAMPLES.items()},
    "jsonl.gz": lambda: loadax.from_jsonl("x.jsonl.gz", cache="cache"),
    "memmap": lambda: loadax.from_arrays(np.load("x.npy", mmap_mode="r")),
    "zarr in zip": lambda: loadax.from_zarr("x.zip|zip:"),
    "spec": lambda: tensorstore(STORE),
    "Spec": lambda: tensorstore(ts.Spec(STORE)),
    "auto": lambda: tensorstore({**STORE, "driver": "auto"}),
    "cast": lambda: tensorstore({"driver": "cast", "dtype": "int64", "base": STORE}),
    "zip": lambda: tensorstore({**STORE, "kvstore": ZIP}),
    "open store": lambda: tensorstore(opened(STORE)),
    "open strict store": lambda: loadax.from_tensorstore(opened({**STORE, "fill_missing_data_reads": False})),
    "open cast": lambda: tensorstore(opened({"driver": "cast", "dtype": "int64", "base": STORE})),
    "open zip": lambda: tensorstore(opened({**STORE, "kvstore": ZIP})),
    "open store in a dict": lambda: {"x": opened(STORE)},
    "zarr.Array": lambda: {"x": zarr.open_array("x.zarr", mode="r")},
    "zarr.Array in a group": lambda: {"x": zarr.open_group("group.zarr", mode="r")["x"]},
    "zarr.Array in zip": lambda: {"x": zarr.open_array(zarr.storage.ZipStore("x.zip", mode="r"), mode="r")},
    "h5py": lambda: {"x": h5py.File("x.h5", "r")["x"]},
    "xarray": lambda: {"x": xr.open_zarr("group.zarr", chunks=None, consolidated=False)["x"]},
    "filter": lambda: loadax.from_npy("x.npy").filter(lambda _: True, key="all", index="filtered"),
    "cached": lambda: loadax.from_npy("x.npy").cache("cached"),
    "packed": lambda: loadax.from_source(list(VALUES)).pack(8, index="packed"),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for name, sample in SAMPLES.items():
        sample.file(folder / name / f"x{sample.ending}", range(ROWS))
    COMPRESSED["jsonl.gz"].file(folder / "x.jsonl.gz", range(ROWS))
    np.save(folder / "x.npy", VALUES)
    with zarr.storage.ZipStore(folder / "x.zip", mode="w") as store:
        for place in (folder / "x.zarr", store):
            zarr.create_array(place, shape=VALUES.shape, chunks=(4, 4), dtype="int32")[:] = VALUES
    array = zarr.open_group(folder / "group.zarr", mode="w").create_array(
        "x", shape=VALUES.shape, chunks=(4, 4), dtype="int32", dimension_names=("row", "column")
    )
    array[:] = VALUES
    with h5py.File(folder / "x.h5", "w") as file:
        file["x"] = VALUES
    return folder


@pytest.mark.parametrize("name", OPENED)
def test_relative_paths_hold_after_chdir(
    name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(dataset: Dataset) -> list[Any]:
        return jax.tree.leaves(dataset.read(range(len(dataset))))

    monkeypatch.chdir(folder)
    wanted = read(loadax.as_dataset(OPENED[name]()))
    assert any(leaf.any() for leaf in wanted)
    dataset = loadax.as_dataset(OPENED[name]())
    monkeypatch.chdir(tmp_path)
    payload = pack(dataset)  # as for a worker process that starts now
    try:
        copied = unpack(payload)
    finally:
        os.close(payload.descriptor)
    for got in (read(dataset), read(copied)):
        assert all(map(np.array_equal, got, wanted))
    assert not list(tmp_path.iterdir())


def test_relative_record_of_masked_rows_holds_after_chdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "later").mkdir()
    monkeypatch.chdir(tmp_path)
    data = loadax.from_arrays({"x": np.arange(8)}).map(lambda row: {"x": np.int64(int("0" if row["x"] else "one"))})
    loader = Dataloader(data, 8, on_error=loadax.MaskErrors(max_share=1, record="record.jsonl"))
    monkeypatch.chdir("later")
    list(loader)
    assert len((tmp_path / "record.jsonl").read_text().splitlines()) == 1
    assert not list((tmp_path / "later").iterdir())
