"""What was opened by a relative path is read from there, wherever the process goes later."""

import gzip
import os
import tarfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import h5py
import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorstore as ts
import xarray as xr
import zarr
from array_record.python.array_record_module import ArrayRecordWriter
from PIL import Image

import loadax
from loadax import Dataloader, Dataset
from loadax.loader.workers.pickling import pack, unpack

ROWS = 16
VALUES = np.arange(ROWS * 4, dtype=np.int32).reshape(ROWS, 4)
FILE = {"driver": "file", "path": "x.zarr/"}
ZIP = {"driver": "zip", "base": {"driver": "file", "path": "x.zip"}}
STORE: dict[str, Any] = {"driver": "zarr3", "kvstore": FILE}


def opened(spec: dict[str, Any]) -> Any:
    return ts.open(spec, read=True).result()


def tensorstore(store: Any) -> Dataset:
    return loadax.from_tensorstore(store, missing="fill")  # else missing chunks are errors


DOORS: dict[str, Callable[[], Any]] = {
    "npy": lambda: loadax.from_npy("x.npy"),
    "memmap": lambda: loadax.from_arrays(np.load("x.npy", mmap_mode="r")),
    "tokens": lambda: loadax.from_tokens("x.bin", seq_len=4, dtype=np.int32),
    "zarr": lambda: loadax.from_zarr("group.zarr"),
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
    "parquet": lambda: loadax.from_parquet("x.parquet"),
    "jsonl": lambda: loadax.from_jsonl("x.jsonl"),
    "jsonl.gz": lambda: loadax.from_jsonl("x.jsonl.gz", cache="cache"),
    "csv": lambda: loadax.from_csv("x.csv"),
    "images": lambda: loadax.from_images("images"),
    "webdataset": lambda: loadax.from_webdataset("x.tar").map(lambda row: int(row["txt"])),
    "array_record": lambda: loadax.from_array_record("x.array_record", dtype="int32").pad(4),
    "filter": lambda: loadax.from_npy("x.npy").filter(lambda _: True, key="all", index="filtered"),
    "cached": lambda: loadax.from_npy("x.npy").cache("cached"),
    "packed": lambda: loadax.from_source(list(VALUES)).pack(8, index="packed"),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    np.save(folder / "x.npy", VALUES)
    VALUES.tofile(folder / "x.bin")
    with zarr.storage.ZipStore(folder / "x.zip", mode="w") as store:
        for place in (folder / "x.zarr", store):
            zarr.create_array(place, shape=VALUES.shape, chunks=(4, 4), dtype="int32")[:] = VALUES
    array = zarr.open_group(folder / "group.zarr", mode="w").create_array(
        "x", shape=VALUES.shape, chunks=(4, 4), dtype="int32", dimension_names=("row", "column")
    )
    array[:] = VALUES
    with h5py.File(folder / "x.h5", "w") as file:
        file["x"] = VALUES
    pq.write_table(pa.table({"x": VALUES[:, 0]}), folder / "x.parquet")
    lines = "".join(f'{{"x": {row}}}\n' for row in range(ROWS))
    (folder / "x.jsonl").write_text(lines)
    (folder / "x.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (folder / "x.csv").write_text("x\n" + "".join(f"{row}\n" for row in range(ROWS)))
    (folder / "images" / "a").mkdir(parents=True)
    writer = ArrayRecordWriter(str(folder / "x.array_record"), "group_size:1")
    with tarfile.open(folder / "x.tar", "w") as tar:
        for row in range(ROWS):
            Image.fromarray(np.full((4, 4, 3), row, np.uint8)).save(folder / "images" / "a" / f"{row:02}.png")
            member = tarfile.TarInfo(f"{row:02}.txt")
            member.size = len(content := str(row).encode())
            tar.addfile(member, BytesIO(content))
            writer.write(VALUES[row].tobytes())
    writer.close()
    return folder


@pytest.mark.parametrize("door", DOORS)
def test_relative_paths_hold_after_chdir(
    door: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(dataset: Dataset) -> list[Any]:
        return jax.tree.leaves(dataset.read(range(len(dataset))))

    monkeypatch.chdir(folder)
    wanted = read(loadax.as_dataset(DOORS[door]()))
    assert any(leaf.any() for leaf in wanted)
    dataset = loadax.as_dataset(DOORS[door]())
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
