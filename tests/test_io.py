"""Data that users pass: opened by its type, or refused with a line that works."""

import dataclasses
import importlib.util
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import attrs
import datasets
import flax.struct
import grain
import h5py
import jax
import netCDF4
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse
import tensorstore
import webdataset
import xarray
import xbatcher
import zarr
from flax.core import FrozenDict
from PIL import Image
from pyarrow import dataset as arrow_dataset, feather, parquet

import loadax
from loadax import testing
from loadax.core.tree import flatten
from loadax.errors import ArgumentError, LeafError, LeafTypeError, LoadaxError, SourceError
from tests import forkserver
from tests.sources.advice import follow, lines
from tests.sources.shards.corpora import write_tar, write_tfrecord

LIBRARIES = {name: sys.modules[name] for name in ("h5py", "numpy", "pyarrow", "xarray")}
WAYS: list[Callable[[Any], Any]] = [
    loadax.as_dataset,
    loadax.from_source,
    lambda data: loadax.Dataloader(data, 1),
    lambda data: loadax.mix({"one": data}, weights=[1]),
    lambda data: loadax.concat([data]),
]


def refused(data: Any, message: str, ways: Any = tuple(WAYS)) -> ArgumentError:
    """The error that every way of handing something over gives."""
    errors = []
    for way in ways:
        with pytest.raises(ArgumentError, match=message) as caught:
            way(data)
        errors.append(caught.value)
    assert len({str(error) for error in errors}) == 1
    return errors[0]


def numbers(dataset: Any) -> list[int]:
    """The leaf x of all rows."""
    return [int(np.asarray(row["x"])) for row in dataset]


class Pair(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass
class Plain:
    x: Any
    y: Any


@flax.struct.dataclass
class OfFlax:
    x: Any
    y: Any
    images: Any = None

    def __len__(self) -> int:
        return 2

    def __getitem__(self, field: int) -> Any:
        return (self.x, self.y)[field]


@pytest.mark.parametrize("kind", [dict, FrozenDict, Pair, Plain, OfFlax, lambda **columns: MappingProxyType(columns)])
def test_containers_of_arrays_are_trees(kind: Any) -> None:
    made = kind(x=np.arange(8), y=np.arange(8.0))
    data = loadax.as_dataset(made)
    assert len(data) == 8
    assert type(data[3]) is (dict if isinstance(made, MappingProxyType) else kind)
    assert flatten(loadax.Dataloader(made, 8)[0])[0][0].tolist() == list(range(8))
    assert len(loadax.concat([made, made])) == 16


@dataclasses.dataclass
class Rows:
    """A dataset that happens to be a dataclass."""

    count: int

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, row: int) -> Any:
        return {"x": row}


@dataclasses.dataclass
class OwnSource:
    spec: Any = None

    def __len__(self) -> int:
        return 8

    def read(self, rows: Any) -> Any:
        return {"x": rows}


@pytest.mark.processes
def test_objects_with_rows_are_read_by_rows() -> None:
    for data in (Rows(8), OwnSource(), [{"x": row} for row in range(8)]):
        assert numbers(loadax.from_source(data)) == numbers(loadax.as_dataset(data)) == list(range(8))
    assert numbers(loadax.from_source({row: {"x": row} for row in range(8)})) == list(range(8))
    assert numbers(loadax.as_dataset(datasets.Dataset.from_dict({"x": list(range(8))}))) == list(range(8))
    testing.check_source(Rows(8))


def test_a_dataset_is_itself_with_its_order() -> None:
    shuffled = loadax.from_arrays(np.arange(8)).shuffle(0)
    assert loadax.as_dataset(shuffled) is shuffled
    assert loadax.from_source(shuffled) is shuffled
    loader = loadax.Dataloader(shuffled, 8)
    for way in (loadax.as_dataset, loadax.from_source):
        with pytest.raises(ArgumentError, match=r"data is already a Dataloader; pass its dataset: data\.dataset"):
            way(loader)
    assert loadax.as_dataset(loader.dataset) is shuffled


VALUES = np.arange(4)
TABLE = pa.table({"x": VALUES})


def write_hdf5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["x"] = VALUES


WRITERS: dict[str, Callable[[Path], object]] = {
    ".npy": lambda path: np.save(path, VALUES),
    ".npz": lambda path: np.savez(path, x=VALUES),
    ".zarr": lambda path: loadax.write_zarr({"x": VALUES}, path),
    ".parquet": lambda path: parquet.write_table(TABLE, path),
    ".feather": lambda path: feather.write_feather(TABLE, path),
    ".arrow": lambda path: feather.write_feather(TABLE, path),
    ".csv": lambda path: path.write_text("x\n0\n1\n2\n3\n"),
    ".jsonl": lambda path: path.write_text('{"x": 0}\n{"x": 1}\n{"x": 2}\n{"x": 3}\n'),
    ".h5": write_hdf5,
    ".hdf5": write_hdf5,
    ".nc": lambda path: xarray.Dataset({"x": ("t", VALUES)}).to_netcdf(path, engine="scipy"),
    ".tar": lambda path: write_tar(path, {f"{row}.cls": b"%d" % row for row in VALUES}),
    ".tfrecord": lambda path: write_tfrecord(path, [b"%d" % row for row in VALUES]),
}
NUMBERS: dict[str, Callable[[Any], int]] = {".npy": int, ".tfrecord": int, ".tar": lambda row: int(row["cls"])}
"""The number in a row, where it is not the leaf x."""

UNCLOSED = pytest.mark.filterwarnings("ignore:.*unclosed file", "ignore:Exception ignored")
"""webdataset and xarray leave files to the collector."""


@pytest.mark.parametrize("ending", WRITERS)
@UNCLOSED
def test_error_for_a_path_opens_it(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"data{ending}"
    WRITERS[ending](path)
    error = refused(path if ending == ".npy" else str(path), r"is a path; open it: ")
    assert len(lines(str(error))) == 1
    (data,) = follow(error, **LIBRARIES)
    number = NUMBERS.get(ending, lambda row: int(row["x"]))
    assert [number(data[row]) for row in range(4)] == [0, 1, 2, 3]


def test_other_paths_name_the_functions(tmp_path: Path) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    others = "from_parquet, from_jsonl, .*, or what another library makes of it"
    for path, functions in {
        tmp_path / "x.array_record": r"from_array_record\(",
        tmp_path / "x.bin": r"from_tokens\(",
        tmp_path / "x.what": others,
        "s3://bucket/folder": others,
    }.items():
        refused(path, rf"is a path; open it: loadax\..*{functions}")
    (data,) = follow(refused(tmp_path, "is a path; open it: loadax"))
    assert data.source.addresses == [str(tmp_path)]


def test_splits_are_named() -> None:
    hugging = datasets.Dataset.from_dict({"x": [0, 1, 2, 3]})
    splits: list[Any] = [
        datasets.DatasetDict(train=hugging, test=hugging),
        {"train": Rows(4), "test": Rows(5)},
        {"train": loadax.as_dataset(Rows(4)), "test": loadax.as_dataset(Rows(5))},
        {"train": grain.MapDataset.range(4).map(lambda x: {"x": x}), "test": grain.MapDataset.range(4)},
        {"train": pd.DataFrame({"x": range(4)}), "test": pd.DataFrame({"x": range(4)})},
        MappingProxyType({"train": Rows(4)}),
    ]
    for data in splits:
        error = refused(data, r"is an? \w+ of 'train'.*, each a dataset of its own; hand over one of them")
        assert numbers(follow(error, data=data)[0]) == [0, 1, 2, 3]
    refused(datasets.IterableDatasetDict(train=hugging.to_iterable_dataset()), "'train', each a dataset of its own")


def test_a_mapping_of_arrays_has_no_rows() -> None:
    frozen: Any = FrozenDict({"x": np.arange(4)})  # type: ignore[no-untyped-call]
    mappings: list[Any] = [{"x": np.arange(4), "y": np.arange(4)}, MappingProxyType({"x": np.arange(4)}), frozen]
    for data in mappings:
        error = refused(data, r"with the keys 'x'.*, so its entries are no rows", [loadax.from_source])
        assert numbers(follow(error, data=data)[0]) == [0, 1, 2, 3]


def generate() -> Iterator[Any]:
    yield from ({"x": row} for row in range(4))


class Iterable:
    def __iter__(self) -> Iterator[Any]:
        return generate()


class IterableDataset(Iterable):
    """As torch's: there is a __getitem__ that raises, and there may be a length."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, row: int) -> Any:
        raise NotImplementedError


class Loader(Iterable):
    """As torch's DataLoader."""

    def __init__(self) -> None:
        self.dataset = Rows(4)

    def __len__(self) -> int:
        return 2


class OfTensorFlow(Iterable):
    def as_numpy_iterator(self) -> Iterator[Any]:
        return generate()


@pytest.mark.parametrize(
    "make", [generate, Iterable, IterableDataset, Loader, OfTensorFlow, lambda: map(dict, generate())]
)
def test_error_for_iterables_reads_them(make: Any) -> None:
    data = make()
    error = refused(
        data,
        r"which can only be iterated over, so it can't be read at any row; hand over what can be: "
        r"loadax\.from_source\(",
    )
    (followed,) = follow(error, data=data)
    assert numbers(followed) == [0, 1, 2, 3]
    assert ("data.dataset" in str(error), "as_numpy_iterator" in str(error)) == (make is Loader, make is OfTensorFlow)


@UNCLOSED
def test_web_datasets(tmp_path: Path) -> None:
    WRITERS[".tar"](tmp_path / "x.tar")
    data = webdataset.WebDataset(str(tmp_path / "x.tar"), shardshuffle=False).decode()
    if importlib.util.find_spec("torch"):  # then it is one of torch's iterable datasets, which are read as streams
        assert loadax.as_dataset(data).is_stream
        return
    error = refused(data, "which can only be iterated over")
    assert [row["cls"] for row in follow(error, data=data)[0]] == [0, 1, 2, 3]


class OtherFrame:
    """A frame of a library that loadax does not know: columns by their names, and Arrow's interface."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, name: str) -> Any:
        return [0, 1, 2, 3]

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise AssertionError("one array of all columns")

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return TABLE.__arrow_c_stream__(requested_schema)


@pytest.mark.parametrize(
    "make",
    [
        lambda path: xbatcher.BatchGenerator(xarray.Dataset({"x": ("time", VALUES)}), {"time": 2}),
        lambda path: pl.LazyFrame({"x": VALUES}),
        arrow_dataset.dataset,
        parquet.ParquetFile,
        lambda path: OtherFrame(),
    ],
)
def test_error_for_unread_tables_reads_them(make: Any, tmp_path: Path) -> None:
    WRITERS[".parquet"](tmp_path / "x.parquet")
    data = make(tmp_path / "x.parquet")
    error = refused(
        data, r"is an? \w+, which can't be read by rows; make arrays|OtherFrame of columns; open it as a table"
    )
    assert numbers(follow(error, data=data)[0]) == [0, 1, 2, 3]
    assert numbers(loadax.as_dataset(TABLE.to_reader())) == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", [scipy.sparse.csc_matrix, scipy.sparse.coo_array])
def test_error_for_sparse_matrices_opens_their_rows(kind: Any) -> None:
    data = kind(np.eye(4))
    error = refused(data, r"the data is an? \w+, which can't be read by rows; make arrays of it")
    (made,) = follow(error, data=data, np=np)
    assert [row["indices"].tolist() for row in made] == [[0], [1], [2], [3]]


@pytest.mark.parametrize("name", ["keras.src.trainers.data_adapters.PyDataset", "tf_keras.src.utils.Sequence"])
@pytest.mark.parametrize("door", [loadax.as_dataset, loadax.from_source, lambda data: loadax.Dataloader(data, 2)])
def test_error_for_batches_of_keras_takes_them_apart(name: str, door: Callable[[Any], Any]) -> None:
    module, _, kind = name.rpartition(".")

    class Batches(type(kind, (), {"__module__": module})):  # type: ignore[misc]
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> Any:
            rows = np.arange(4 * index, min(4 * index + 4, 10))
            return {"a": rows, "b": np.stack([rows, rows], 1)}, -rows

    data = Batches()
    with pytest.raises(ArgumentError, match="a Batches of Keras, each entry of which is a batch, not a row") as error:
        door(data)
    (made,) = follow(error.value, data=data, jax=jax, np=np)
    inputs, label = made.read(range(10))
    assert (inputs["a"].tolist(), label.tolist()) == (list(range(10)), [-row for row in range(10)])
    assert inputs["b"].shape == (10, 2)


def test_error_for_netcdf4_opens_its_file_by_rows(tmp_path: Path) -> None:
    with netCDF4.Dataset(tmp_path / "x.nc", "w") as data:
        data.createDimension("time", 4)
        data.createVariable("x", "i8", ("time",))[:] = [0, 1, 2, 3]
    with netCDF4.Dataset(tmp_path / "x.nc") as data:
        error = refused(data, "is a Dataset, which can't be read by rows")
        assert numbers(follow(error, data=data, xarray=xarray)[0]) == [0, 1, 2, 3]


def test_error_for_delta_tables_reads_their_files(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    deltalake.write_deltalake(tmp_path / "t", pa.table({"x": [9, 9]}))
    deltalake.write_deltalake(tmp_path / "t", pa.table({"x": range(4)}), mode="overwrite")
    data = deltalake.DeltaTable(tmp_path / "t")
    error = refused(data, "is a DeltaTable, which can't be read by rows")
    assert numbers(follow(error, data=data)[0]) == [0, 1, 2, 3]


SPARSE = scipy.sparse.csr_matrix(np.eye(8, dtype=np.float32))
SPARSE_DOORS: dict[str, Callable[[Callable[[Any], Any]], Any]] = {
    "row": lambda change: loadax.from_source([{"x": change(SPARSE[row])} for row in range(8)]),
    "map": lambda change: loadax.from_arrays(np.arange(8)).map(lambda row: {"x": change(SPARSE[[row]])}),
    "map_batch": lambda change: loadax.from_arrays(np.arange(8)).map_batch(lambda rows: {"x": change(SPARSE[rows])}),
}


@pytest.mark.parametrize("door", SPARSE_DOORS)
def test_error_for_sparse_leaves_names_what_makes_an_array(door: str) -> None:
    make = SPARSE_DOORS[door]
    with pytest.raises(LeafError, match=r"is a csr_matrix, which is sparse") as error:
        loadax.Dataloader(make(lambda rows: rows), 8)
    assert "return an array: matrix.toarray(), of one row matrix.toarray().ravel()" in str(error.value)
    right = make(lambda rows: rows.toarray() if door == "map_batch" else rows.toarray().ravel())
    np.testing.assert_array_equal(loadax.Dataloader(right, 8)[0]["x"], np.eye(8))
    later = make(lambda rows: rows) if door != "map_batch" else right
    dense = later.map(lambda row: {"x": row["x"].toarray().ravel() if hasattr(row["x"], "toarray") else row["x"]})
    np.testing.assert_array_equal(loadax.Dataloader(dense, 8)[0]["x"], np.eye(8))
    with pytest.raises(SourceError, match=r"pass the array of it: matrix.toarray\(\), or rows that stay") as leaf:
        loadax.from_arrays({"x": SPARSE})
    beside = follow(leaf.value, matrix=SPARSE, y=np.arange(8))[-1]
    assert beside[3]["y"] == 3


@attrs.define
class OfAttrs:
    x: Any
    y: int


class OfPydantic(OfAttrs):
    """As pydantic's models have it."""

    def model_dump(self) -> dict[str, Any]:
        return {"x": self.x, "y": self.y}


@pytest.mark.parametrize("kind", [OfAttrs, OfPydantic])
def test_error_for_rows_that_are_objects_makes_dicts_of_them(kind: Any) -> None:
    data = loadax.from_source([kind(np.full(3, row), row) for row in range(8)])
    with pytest.raises(LeafTypeError, match="has dtype object") as error:
        loadax.Dataloader(data, 8)
    assert "of attrs .map(attrs.asdict), of pydantic .map(lambda row: row.model_dump())" in str(error.value)
    right = data.map(attrs.asdict) if kind is OfAttrs else data.map(lambda row: row.model_dump())
    assert loadax.Dataloader(right, 8)[0]["x"][:, 0].tolist() == list(range(8))


@pytest.mark.processes
def test_queries_of_duckdb() -> None:
    """In a process of their own: DuckDB writes to the terminal when Python ends."""
    result = forkserver.run(["-m", "tests.queries"])
    assert (result.returncode, result.stdout) == (0, "[0, 1, 2, 3]\n"), result.stderr


def test_from_source_recognises_known_types() -> None:
    """All of these have a `[row]` that gives something else than rows, or a `read` that is no source's."""
    store = tensorstore.open({"driver": "array", "array": [0, 1, 2, 3], "dtype": "int64"}).result()
    assert loadax.from_source(store).read([2, 1]).tolist() == [2, 1]
    for frame in (
        pd.DataFrame({"x": range(4)}, index=[3, 2, 1, 0]),
        pl.DataFrame({"x": range(4)}),
        pa.table({"x": range(4)}),
    ):
        assert numbers(loadax.from_source(frame)) == [0, 1, 2, 3]
    series = pd.Series([0, 1, 2, 3], index=[3, 2, 1, 0])
    assert loadax.from_source(series).read(range(4)).tolist() == [0, 1, 2, 3]
    group = zarr.group()
    group.create_array("x", data=np.arange(4))
    assert numbers(loadax.from_source(group)) == [0, 1, 2, 3]


def test_modules_that_lack_a_class_are_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Classes are looked for in modules that are loaded, and a module may lack them."""
    monkeypatch.setitem(sys.modules, "pandas", types.ModuleType("pandas"))
    assert numbers(loadax.as_dataset(Rows(4))) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "data", [None, 5, 2.5, {1, 2}, object(), b"", {}, (), [], {"x": 5}, {"x": [1, 2]}, {"x": object()}]
)
def test_other_objects_are_errors_of_loadax(data: Any) -> None:
    with pytest.raises(LoadaxError):
        loadax.Dataloader(data, 1)
