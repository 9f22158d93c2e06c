"""Data frames: a dict of columns with their own dtypes."""

from collections.abc import Callable
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyarrow import compute  # noqa: F401  # what the advice names

import loadax
from loadax.errors import ArgumentError, LeafTypeError, SourceError
from loadax.protocols import ArraySpec
from tests.sources.advice import follow
from tests.worker_types import WORKER_TYPES

IDS = [16777217, 16777219, 33554433, 1073741825] * 2
"""float32 has none of them."""
NAMES = {"loadax": loadax, "numpy": np, "pandas": pd, "polars": pl, "pyarrow": pa}

Make = Callable[[dict[str, Any]], Any]

FRAMES: dict[str, Make] = {
    "pandas": pd.DataFrame,
    "pandas nullable": lambda columns: pd.DataFrame(
        {name: pd.array(each) if np.ndim(each) == 1 else each for name, each in columns.items()}
    ),
    "pandas arrow": lambda columns: pa.table(columns).to_pandas(types_mapper=pd.ArrowDtype),
    "polars": pl.DataFrame,
    "table": pa.table,
    "chunked table": lambda columns: pa.concat_tables([pa.table(columns).slice(0, 3), pa.table(columns).slice(3)]),
    "record batch": pa.RecordBatch.from_pydict,
}
NULLABLE = [name for name in FRAMES if name != "pandas"]


def some() -> dict[str, Any]:
    return {
        "id": np.array(IDS, np.int32),
        "small": np.arange(8, dtype=np.uint8),
        "x": np.linspace(0, 1, 8, dtype=np.float32),
        "flag": np.arange(8) % 3 == 0,
    }


@pytest.mark.parametrize("make", FRAMES.values(), ids=FRAMES)
@pytest.mark.parametrize(
    "way", [loadax.as_dataset, loadax.from_source, lambda frame: loadax.Dataloader(frame, 8).dataset]
)
def test_columns_keep_their_names_values_and_dtypes(make: Make, way: Any) -> None:
    data = way(make(some()))
    assert data.spec == {name: ArraySpec((), column.dtype) for name, column in some().items()}
    for name, column in data.read(range(8)).items():
        np.testing.assert_array_equal(column, some()[name])


@pytest.mark.parametrize("make", [pd.DataFrame, pa.table])
@pytest.mark.parametrize("worker_type", WORKER_TYPES)
def test_ids_reach_the_device_as_they_are(make: Make, worker_type: str) -> None:
    batch = loadax.Dataloader(make(some()), 8, worker_type=worker_type, num_workers=1)[0]
    assert batch["id"].tolist() == IDS
    assert {name: leaf.dtype for name, leaf in batch.items()} == {name: column.dtype for name, column in some().items()}


@pytest.mark.parametrize("name", NULLABLE)
def test_nulls_are_an_error_that_names_the_column(name: str) -> None:
    frame = FRAMES[name]({"good": [5, 6, 7, 8], "bad": [1, None, 3, None]})
    with pytest.raises(SourceError, match=r"column 'bad' has 2 nulls, the first in row 1, which an array") as caught:
        loadax.Dataloader(frame, 2)
    filled, left_out = follow(caught.value, data=frame, **NAMES)
    assert filled.read(range(4))["bad"].tolist() == [1, -1, 3, -1]
    assert filled.spec["bad"].dtype.kind == "i"
    assert left_out.read(range(2))["good"].tolist() == [5, 6]


@pytest.mark.parametrize("name", FRAMES)
def test_columns_of_texts_and_lists_are_for_maps(name: str) -> None:
    frame = FRAMES[name]({"x": [1, 2], "name": ["a", "bc"], "vector": [[1.0, 2.0], [3.0, 4.0]]})
    data = loadax.as_dataset(frame)
    assert data[1]["name"] == "bc"
    assert data.map(lambda row: {"sum": row["vector"].sum()}).read([0, 1])["sum"].tolist() == [3, 7]
    with pytest.raises(LeafTypeError, match=r"leaf \['name'\] has dtype object"):
        loadax.Dataloader(data.map(lambda row: {"name": row["name"]}), 1)


@pytest.mark.parametrize(
    ("frame", "values"),
    [
        (pd.DataFrame({"x": pd.Categorical(["b", "a"])}), [1, 0]),
        (pd.DataFrame({"x": pd.to_datetime(["1970-01-02"], utc=True).astype("datetime64[s, UTC]")}), [86400]),
        (pl.DataFrame({"x": ["b", "a"]}, schema={"x": pl.Categorical}), [0, 1]),
        (pa.table({"x": pa.array(["b", "a"]).dictionary_encode()}), [0, 1]),
        (pa.table({"x": pa.array([2, 5], pa.date32())}), [2, 5]),
    ],
)
def test_categories_and_times_are_ints(frame: Any, values: list[int]) -> None:
    assert loadax.as_dataset(frame).read(range(len(values)))["x"].tolist() == values


def test_a_column_of_values_of_several_kinds() -> None:
    with pytest.raises(ArgumentError, match=r"the DataFrame can't be exported to Arrow: .*; cast or drop that column"):
        loadax.as_dataset(pd.DataFrame({"bad": [1, "b"]}))


@pytest.mark.parametrize("name", FRAMES)
def test_single_columns_are_arrays(name: str) -> None:
    """As in dict(frame), or of one frame beside arrays."""
    frame = FRAMES[name](some())
    columns = {"id": frame["id"], "other": np.arange(8)}
    assert loadax.Dataloader(columns, 8)[0]["id"].tolist() == IDS
    assert loadax.from_arrays(frame["id"]).read([1]).tolist() == [IDS[1]]
    assert loadax.from_source(frame["id"])[1] == IDS[1]
    with pytest.raises(LeafTypeError, match=r"leaf \['x'\] is a column of .*leave it out, or encode it as numbers"):
        loadax.as_dataset({"x": FRAMES[name]({"name": ["a", "b"]})["name"]})


@pytest.mark.parametrize("column", [pd.Series([1, None], dtype="Int64"), pl.Series([1, None]), pa.array([1, None])])
def test_nulls_of_a_single_column(column: Any) -> None:
    with pytest.raises(
        SourceError, match=r"leaf \['x'\] is a column with 1 nulls, which an array of \w+ can't hold; fill them first"
    ):
        loadax.from_arrays({"x": column})


def test_rows_of_a_frame_are_its_order_and_nan_is_a_number() -> None:
    frame = pd.DataFrame({"x": np.array([10, np.nan, 30], np.float32)}, index=[2, 0, 1])
    for data in (frame, {"x": frame["x"]}):
        np.testing.assert_array_equal(loadax.as_dataset(data).read([0, 1, 2])["x"], frame["x"].to_numpy())


def test_frames_without_columns_or_with_one_name_for_two() -> None:
    for frame in (pd.DataFrame(), pl.DataFrame(), pa.table({})):
        with pytest.raises(SourceError, match="has no columns"):
            loadax.as_dataset(frame)
    for twice in (
        pd.DataFrame(np.zeros((2, 2)), columns=["a", "a"]),
        pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]),
    ):
        with pytest.raises(SourceError, match=r"2 columns of the .* are called 'a'; give each its own name"):
            loadax.as_dataset(twice)


def test_arrays_that_are_known_are_trusted(tmp_path: Any) -> None:
    mapped = np.memmap(tmp_path / "x", np.int32, mode="w+", shape=(8,))
    for array in (np.arange(8), mapped, jax.numpy.arange(8), np.arange(8).astype(ml_dtypes.bfloat16)):
        assert len(loadax.as_dataset(array)) == 8
        assert loadax.Dataloader({"x": array}, 8)[0]["x"].dtype == jax.dtypes.canonicalize_dtype(array.dtype)


def test_tensors_of_torch_and_tensorflow_are_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins: both libraries are large. Like theirs, these have `__array__`, and refuse what NumPy lacks."""
    import sys
    import types

    class Tensor:
        def __init__(self, values: Any, error: Exception | None = None):
            self.values, self.error = values, error

        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            if self.error:
                raise self.error
            return np.asarray(self.values)

    for module in ("torch", "tensorflow"):
        monkeypatch.setitem(sys.modules, module, types.SimpleNamespace(Tensor=Tensor))
        assert loadax.as_dataset({"x": Tensor([1, 2])}).read([1])["x"].tolist() == [2]
        assert loadax.as_dataset(Tensor([1, 2])).read([1]).tolist() == [2]
        for error in (TypeError("Got unsupported ScalarType BFloat16"), RuntimeError("requires grad")):
            with pytest.raises(
                SourceError, match=rf"leaf \['x'\] is a Tensor that NumPy can't convert \({error}\); convert it first"
            ):
                loadax.as_dataset({"x": Tensor([1, 2], error)})


class Lazy:
    """Has `__array__` and rows, as lazy arrays and frames of other libraries have."""

    def __init__(self) -> None:
        self.whole = 0

    def __len__(self) -> int:
        return 8

    def __getitem__(self, row: int) -> Any:
        return np.full(2, row)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        self.whole += 1
        return np.stack([self[row] for row in range(8)])


def test_object_with_array_method_is_read_by_rows() -> None:
    lazy = Lazy()
    assert loadax.Dataloader(lazy, 8)[0].tolist() == [[row, row] for row in range(8)]
    message = (
        r"leaf \['x'\] is a Lazy, which would be read into memory whole; "
        r".* numpy\.asarray of it; .* loadax\.from_source reads them"
    )
    for way in (loadax.as_dataset, loadax.from_arrays):
        with pytest.raises(SourceError, match=message):
            way({"x": lazy})
    assert lazy.whole == 0
    assert loadax.from_arrays({"x": np.asarray(lazy)}).read([1])["x"].tolist() == [[1, 1]]
    assert loadax.from_source(lazy).read([1]).tolist() == [[1, 1]]


class Columns(dict[str, Any]):
    """A dict that NumPy would take for one array."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise AssertionError("one array of all columns")


def test_a_dict_with_an_array_method_is_a_dict() -> None:
    data = loadax.as_dataset(Columns(id=np.array(IDS, np.int32), x=np.zeros(8, np.float32)))
    assert data.read(range(8))["id"].tolist() == IDS
    assert data.spec["x"] == ArraySpec((), np.dtype(np.float32))
