"""Open stores of others: read by rows, whatever is asked for, and never whole."""

import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import tensorstore
import xarray
import zarr

import loadax
from loadax.errors import ArgumentError, SourceError
from loadax.protocols import ArraySpec
from tests.sources.advice import follow
from tests.worker_types import WORKER_TYPES

ROWS, COLUMNS = 1024, 64
BYTES = ROWS * COLUMNS * 4


def values() -> Any:
    return np.arange(ROWS * COLUMNS, dtype=np.int32).reshape(ROWS, COLUMNS)


class Counting(io.BytesIO):
    """A file of which is known how much was read."""

    count = 0

    def readinto(self, buffer: Any) -> int:
        self.count += len(buffer)
        return super().readinto(buffer)

    def read(self, size: int | None = -1) -> bytes:
        found = super().read(size)
        self.count += len(found)
        return found


class CountingStore(zarr.storage.WrapperStore[Any]):
    """A zarr store of which is known how much was read; xarray reads through a copy of it."""

    total = 0

    async def get(self, *args: Any, **kwargs: Any) -> Any:
        found = await super().get(*args, **kwargs)
        CountingStore.total += 0 if found is None else len(found)
        return found

    def with_read_only(self, read_only: bool = False) -> "CountingStore":  # zarr has it from 3.1.6 on
        return CountingStore(self._store.with_read_only(read_only))


def counter() -> Callable[[], int]:
    before = CountingStore.total
    return lambda: CountingStore.total - before


def of_hdf5(path: Path) -> tuple[Any, Callable[[], int]]:
    file = Counting()
    with h5py.File(file, "w") as target:
        target.create_dataset("x", data=values(), chunks=(16, COLUMNS))
    reading = Counting(file.getvalue())
    return h5py.File(reading, "r")["x"], lambda: reading.count


def of_zarr(path: Path) -> tuple[Any, Callable[[], int]]:
    store = CountingStore(zarr.storage.LocalStore(path / "x.zarr"))
    array = zarr.create_array(store, shape=(ROWS, COLUMNS), dtype="int32", chunks=(16, COLUMNS), compressors=None)
    array[:] = values()
    return array, counter()


def of_xarray(path: Path) -> tuple[Any, Callable[[], int]]:
    xarray.Dataset({"x": (("time", "place"), values())}).to_zarr(
        path / "y.zarr", encoding={"x": {"chunks": (16, COLUMNS), "compressors": None}}, consolidated=False
    )
    store = CountingStore(zarr.storage.LocalStore(path / "y.zarr"))
    return xarray.open_zarr(store, chunks=None, consolidated=False)["x"], counter()


def of_tensorstore(path: Path) -> tuple[Any, Callable[[], int]]:
    asked = [0]

    def read(domain: Any, out: Any, _: Any) -> None:
        asked[0] += out.nbytes
        out[...] = values()[tuple(slice(each.inclusive_min, each.exclusive_max) for each in domain)]

    store = tensorstore.virtual_chunked(
        read,
        dtype=tensorstore.int32,
        shape=(ROWS, COLUMNS),
        chunk_layout=tensorstore.ChunkLayout(read_chunk_shape=(16, COLUMNS)),
    )
    return store, lambda: asked[0]


KINDS = {"hdf5": of_hdf5, "zarr": of_zarr, "xarray": of_xarray, "tensorstore": of_tensorstore}
WAYS: dict[str, Callable[[Any], Any]] = {
    "as_dataset": loadax.as_dataset,
    "from_source": loadax.from_source,
    "from_arrays": loadax.from_arrays,
    "Dataloader": lambda data: loadax.Dataloader(data, 8).dataset,
    "in a dict": lambda data: loadax.as_dataset({"x": data}).map(lambda row: row["x"]),
    "beside an array": lambda data: loadax.as_dataset({"x": data, "y": np.arange(ROWS)}).map(lambda row: row["x"]),
    "concat": lambda data: loadax.concat([data]),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", WAYS)
def test_only_the_rows_that_are_asked_for_are_read(kind: str, way: str, tmp_path: Path) -> None:
    array, count = KINDS[kind](tmp_path)
    data = WAYS[way](array)
    assert len(data) == ROWS
    np.testing.assert_array_equal(data.read([5, 900]), values()[[5, 900]])
    assert 0 < count() < BYTES // 8


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [[5, 3, 5, 1023], [7, 8, 9], [2, 0, 1, 1], [], [ROWS - 1]])
def test_any_rows_come_as_numpy_has_them(kind: str, rows: list[int], tmp_path: Path) -> None:
    data = loadax.as_dataset(KINDS[kind](tmp_path)[0])
    assert data.spec == ArraySpec((COLUMNS,), np.dtype(np.int32))
    np.testing.assert_array_equal(data.read(rows), values()[rows].reshape(-1, COLUMNS))


@pytest.mark.parametrize("kind", ["hdf5", "zarr", "xarray"])
@pytest.mark.parametrize("worker_type", WORKER_TYPES)
def test_a_loader_shuffles_them(kind: str, worker_type: str, tmp_path: Path) -> None:
    if kind == "hdf5":
        with h5py.File(tmp_path / "x.h5", "w") as target:
            target.create_dataset("x", data=values())
        array = h5py.File(tmp_path / "x.h5", "r")["x"]
    else:
        array, _ = KINDS[kind](tmp_path)
    data = loadax.as_dataset({"x": array, "row": np.arange(ROWS, dtype=np.int32)}).shuffle(3)
    for batch in loadax.Dataloader(data, 256, worker_type=worker_type, num_workers=2):
        np.testing.assert_array_equal(np.asarray(batch["x"]), values()[np.asarray(batch["row"])])


@pytest.mark.parametrize("kind", KINDS)
def test_chunks_are_known(kind: str, tmp_path: Path) -> None:
    data = loadax.as_dataset(KINDS[kind](tmp_path)[0]).shuffle(0, block="chunks", lanes=8)
    assert "block=16" in repr(data)
    assert sorted(data.read(range(ROWS))[:, 0].tolist()) == values()[:, 0].tolist()


XARRAY: dict[str, Callable[[Path], Any]] = {
    "zarr": lambda path: xarray.open_zarr(path / "y.zarr", chunks=None),
    "zarr, by dask": lambda path: xarray.open_zarr(path / "y.zarr"),
    "zarr, by open_dataset": lambda path: xarray.open_dataset(path / "y.zarr", engine="zarr"),
    "netCDF": lambda path: xarray.open_dataset(path / "y.nc"),
    "netCDF, by dask": lambda path: xarray.open_dataset(path / "y.nc", chunks={}),
    "several files": lambda path: xarray.open_mfdataset([path / "y.nc"]),
}


@pytest.mark.parametrize("door", XARRAY)
def test_chunks_of_xarray_are_those_of_its_file(door: str, tmp_path: Path) -> None:
    given = xarray.Dataset({"x": (("time", "place"), values()), "n": ("time", np.arange(ROWS, dtype=np.int32))})
    chunks = {"x": (16, COLUMNS), "n": (32,)}
    of_zarr = {name: {"chunks": size} for name, size in chunks.items()}
    given.to_zarr(tmp_path / "y.zarr", encoding=of_zarr, zarr_format=2)
    given.to_netcdf(tmp_path / "y.nc", encoding={name: {"chunksizes": size} for name, size in chunks.items()})
    with XARRAY[door](tmp_path) as opened:
        data = loadax.as_dataset(opened)
        shuffled = data.shuffle(0, block="chunks", lanes=8)
        assert "block=16" in repr(shuffled)
        rows = shuffled.read(range(ROWS))
        np.testing.assert_array_equal(rows["x"], values()[rows["n"]])
        assert sorted(rows["n"].tolist()) == list(range(ROWS))
        with pytest.raises(ArgumentError, match="xarray arrays has no chunks"):
            loadax.as_dataset(opened.load()).shuffle(0, block="chunks")


def in_memory(driver: str, path: Path) -> Any:
    content = io.BytesIO()
    if driver == "file object":
        with h5py.File(content, "w") as target:
            target["group/x"] = values()
        return h5py.File(content, "r")
    file = h5py.File(path / "nowhere.h5", "w", driver="core", backing_store=False)
    file["group/x"] = values()
    return file


@pytest.mark.parametrize("driver", ["file object", "memory"])
def test_hdf5_without_a_file_is_refused_for_processes_with_what_to_write(driver: str, tmp_path: Path) -> None:
    with in_memory(driver, tmp_path) as file:
        data = loadax.as_dataset({"x": file["group/x"]})
        refused = r"the HDF5 arrays are of a file object, or of memory .*h5py.File\(path\), or use worker_type"
        with pytest.raises(SourceError, match=refused):
            iter(loadax.Dataloader(data, 256, worker_type="process", num_workers=1))
        with pytest.raises(ArgumentError, match=refused):
            data.filter(lambda row: row["x"][0] > 9, index=tmp_path / "kept", executor=lambda: ThreadPoolExecutor(1))
        batches = [batch["x"] for batch in loadax.Dataloader(data, 256, worker_type="thread")]
        np.testing.assert_array_equal(np.concatenate(batches), values())


def test_other_dtypes_and_byte_orders(tmp_path: Path) -> None:
    given = np.arange(8, dtype=">i2")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", data=given)
        assert loadax.Dataloader(file["x"], 8)[0].tolist() == list(range(8))
    assert loadax.Dataloader(xarray.DataArray(given), 8)[0].dtype == np.int16
    assert loadax.Dataloader(zarr.array(given), 8)[0].tolist() == list(range(8))


def test_maps_that_write_in_place_leave_arrays_in_memory_alone() -> None:
    given = np.ones((16, 4), np.float32)

    def double(batch: Any) -> Any:
        batch *= 2
        return batch

    data = loadax.as_dataset(xarray.DataArray(given)).map_batch(double)
    for rows in (np.arange(16), np.arange(3, 9), np.array([5, 1, 1])):
        assert (data.read(rows) == 2).all()
    assert (given == 1).all()


def test_groups_are_dicts_of_their_arrays(tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "g", mode="w")
    for name in ("x", "y"):
        group.create_array(name, shape=(8, 2), dtype="int32")[:] = 1
    with h5py.File(tmp_path / "g.h5", "w") as file:
        file["x"], file["inner/y"] = np.ones((8, 2), np.int32), np.arange(8)
        assert loadax.Dataloader(file, 8)[0]["inner"]["y"].tolist() == list(range(8))
        assert loadax.as_dataset(file["inner"])[3] == {"y": 3}
        assert loadax.from_source(file)[3]["inner"] == {"y": 3}
    dataset = xarray.Dataset(
        {"x": (("time", "place"), np.ones((8, 2), np.int32)), "y": ("time", np.arange(8))}, {"place": [4, 5]}
    )
    assert loadax.Dataloader(dataset, 8)[0]["y"].tolist() == list(range(8))
    for data in (group, dataset):
        for way in (loadax.as_dataset, loadax.from_source):
            assert sorted(way(data)[0]) == ["x", "y"]
            assert way(data)[0]["x"].tolist() == [1, 1]


def test_groups_whose_arrays_differ_say_which_belong_together(tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "g", mode="w")
    dataset = xarray.Dataset(
        {"a": ("time", np.zeros(8)), "b": ("time", np.zeros(8)), "c": ("place", np.zeros(8)), "d": ((), 1.0)}
    )
    for name, shape in {"a": (8,), "b": (8, 2), "c": (5,), "d": ()}.items():
        group.create_array(name, shape=shape, dtype="int32")
    for data in (group, dataset):
        with pytest.raises(
            SourceError, match=r"different first dimensions \(a: .*\), .* hand over those that belong together"
        ) as caught:
            loadax.Dataloader(data, 8)
        (followed,) = follow(caught.value, data=data)
        assert sorted(followed[0]) == ["a", "b"]
    for empty in (zarr.open_group(tmp_path / "e", mode="w"), xarray.Dataset()):
        with pytest.raises(SourceError, match="has no arrays; pass one that has"):
            loadax.as_dataset(empty)


def test_single_values_have_no_rows(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"], file["none"] = 5, h5py.Empty("f")
        scalars = [file["x"], file["none"], zarr.array(5), xarray.DataArray(5)]
        for scalar in scalars:
            with pytest.raises(
                SourceError, match=r"leaf given is a scalar of (h5py|zarr|xarray) without rows; leave it out"
            ):
                loadax.as_dataset(scalar)
            with pytest.raises(SourceError, match=r"leaf \['s'\] is a scalar"):
                loadax.from_arrays({"s": scalar, "x": np.arange(5)})


@pytest.mark.processes
def test_a_file_in_memory_can_not_go_to_another_process(tmp_path: Path) -> None:
    array, _ = of_hdf5(tmp_path)
    loader = loadax.Dataloader({"x": array}, 8, worker_type="process", num_workers=1)
    with pytest.raises(Exception, match=r"(?s)which other processes can't open; open them by a path"):
        next(iter(loader))
