"""Tables in memory: every type against what Arrow itself gives for a row."""

import decimal
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyarrow import csv, parquet

import loadax
from loadax.errors import ArgumentError, LeafTypeError, SourceError, UnsupportedError
from loadax.testing import check_source
from tests.sources.advice import follow

ROWS = 37


class Unhashable(pa.ExtensionType):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__(pa.int32(), "unhashable")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: Any, serialized: bytes) -> "Unhashable":
        return cls()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unhashable)

    __hash__ = None  # type: ignore[assignment]


def test_extension_types_need_not_be_hashable() -> None:
    column = pa.ExtensionArray.from_storage(Unhashable(), pa.array([3, 1, 2], pa.int32()))
    nested = pa.FixedSizeListArray.from_arrays(pa.concat_arrays([column, column]), 2)
    read = loadax.from_arrow(pa.table({"x": column, "pair": nested})).source.read(np.array([2, 0]))
    np.testing.assert_equal(read, {"x": np.array([2, 3], np.int32), "pair": np.array([[1, 2], [3, 1]], np.int32)})


def numbers() -> pa.Table:
    generator = np.random.default_rng(0)
    return pa.table(
        {
            "x": pa.array(generator.integers(-99, 99, ROWS), pa.int16()),
            "flag": generator.random(ROWS) < 0.5,
            "pair": pa.array(generator.random((ROWS, 2)).tolist(), pa.list_(pa.float32(), 2)),
            "flags": pa.array((generator.random((ROWS, 3)) < 0.5).tolist(), pa.list_(pa.bool_(), 3)),
            "inner": pa.array([{"y": row, "z": {"w": row / 2}} for row in range(ROWS)]),
            "label": pa.array([["cat", "dog", "cow"][row % 3] for row in range(ROWS)]).dictionary_encode(),
            "time": pa.array(range(ROWS), pa.timestamp("us", tz="UTC")),
            "day": pa.array(range(ROWS), pa.date32()),
        }
    )


def of_any_kind() -> pa.Table:
    table = numbers()
    lists: dict[str, Any] = {
        "tokens": pa.array([list(range(row % 5)) for row in range(ROWS)], pa.list_(pa.uint16())),
        "large": pa.array([list(range(row % 3)) for row in range(ROWS)], pa.large_list(pa.int64())),
        "views": pa.array([list(range(row % 3)) for row in range(ROWS)], pa.list_view(pa.int64())),
        "bits": pa.array([[True] * (row % 4) for row in range(ROWS)]),
        "times": pa.array([[row] * (row % 4) for row in range(ROWS)], pa.list_(pa.duration("s"))),
        "text": [str(row) for row in range(ROWS)],
        "view": pa.array([str(row) for row in range(ROWS)], pa.string_view()),
        "bytes": [str(row).encode() for row in range(ROWS)],
        "words": [[str(row)] * (row % 3) for row in range(ROWS)],
        "records": [[{"a": row}] * (row % 2) for row in range(ROWS)],
        "runs": pa.RunEndEncodedArray.from_arrays([30, ROWS], [7, 8]),
        "codes": pa.array([row % 4 * 10 for row in range(ROWS)]).dictionary_encode(),
    }
    for name, column in lists.items():
        table = table.append_column(name, column if isinstance(column, pa.Array) else pa.array(column))
    return table


def plain(value: Any) -> Any:
    """A row of loadax as Python has it."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def oracle(table: pa.Table) -> list[dict[str, Any]]:
    """Rows of a table by Arrow alone; times as their ints, labels in the order in which they appear."""
    columns = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        if pa.types.is_temporal(column.type):
            width = pa.int32() if column.type == pa.date32() else pa.int64()
            columns[name] = column.cast(width).to_pylist()
        elif name == "times":
            columns[name] = column.cast(pa.list_(pa.int64())).to_pylist()
        elif name == "label":
            names = list(dict.fromkeys(column.to_pylist()))
            columns[name] = [names.index(each) for each in column.to_pylist()]
        else:
            columns[name] = column.to_pylist()
    return [{name: column[row] for name, column in columns.items()} for row in range(table.num_rows)]


def in_batches(table: pa.Table) -> pa.Table:
    """A table in several record batches, each with its own dictionary."""
    labels = table["label"].combine_chunks().dictionary_decode()
    parts = [table.slice(first, 10) for first in range(0, table.num_rows, 10)]
    own = [labels.slice(first, 10).dictionary_encode() for first in range(0, table.num_rows, 10)]
    return pa.concat_tables([part.set_column(5, "label", each) for part, each in zip(parts, own, strict=True)])


SHAPES: list[Callable[[pa.Table], pa.Table]] = [lambda table: table, in_batches, lambda table: table.slice(6, 20)]


@pytest.mark.parametrize("shape", SHAPES, ids=["whole", "in batches", "sliced"])
@pytest.mark.parametrize("combined", [True, False])
def test_rows_are_what_arrow_gives(shape: Any, combined: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadax.sources.tables.arrow.table.COMBINED_BYTES", 1 << 30 if combined else 0)
    table = shape(of_any_kind())
    data = loadax.from_arrow(table)
    assert [plain(row) for row in data] == oracle(table)


def test_a_leaf_that_is_kept_stays_as_it_was() -> None:
    """Batches are read into memory that is used again, but never while a leaf of it is referenced."""
    data = loadax.from_arrow(pa.table({"x": np.arange(1000), "y": np.arange(1000, dtype=np.uint8)}))
    kept = [data.read(range(first, first + 100))["x"] for first in range(0, 900, 100)]
    for _ in range(20):
        data.read(range(900, 1000))
    assert np.concatenate(kept).tolist() == list(range(900))


@pytest.mark.processes
@pytest.mark.parametrize("shape", SHAPES[:2], ids=["whole", "in batches"])
def test_the_law_of_sources(shape: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadax.sources.tables.arrow.table.COMBINED_BYTES", 0)
    check_source(loadax.from_arrow(shape(numbers())).source)


def test_names_and_units_are_told() -> None:
    source: Any = loadax.from_arrow(numbers()).source
    assert source.classes == {"label": ["cat", "dog", "cow"]}
    assert source.units == {"time": "timestamp[us, tz=UTC]", "day": "date32[day]"}
    assert "label: class label of cat, dog, cow" in repr(source)
    assert "time: timestamp[us, tz=UTC] as int64" in repr(source)


def test_a_tensor_of_each_row_keeps_its_shape() -> None:
    values = np.arange(24, dtype=np.int32).reshape(4, 2, 3)
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(values)
    bits = pa.array((values.reshape(4, 6) % 5 == 0).tolist(), pa.list_(pa.bool_(), 6))
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 1, 3, 4], pa.int32()), tensors)
    holes = pa.array([[1] * 6, None, [2] * 6, [3] * 6], pa.list_(pa.int8(), 6))
    columns = {
        "x": tensors,
        "bits": pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.bool_(), (2, 3)), bits),
        "lists": lists,
        "holes": pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.int8(), (2, 3)), holes),
    }
    data = loadax.from_arrow(pa.table(columns).slice(1), nulls={"holes": 7})
    read = data.map(lambda row: {**row, "lists": row["lists"].sum()}).read([2, 0])
    np.testing.assert_array_equal(read["x"], values[[3, 1]])
    np.testing.assert_array_equal(read["bits"], values[[3, 1]] % 5 == 0)
    assert read["lists"].tolist() == [values[3].sum(), 0]
    assert read["holes"].tolist() == [[[3] * 3] * 2, [[7] * 3] * 2]


@pytest.mark.parametrize(
    "make",
    [
        pl.DataFrame,
        pd.DataFrame,
        lambda columns: pa.table(columns).to_batches()[0],
        lambda columns: pa.table(columns).to_reader(),
        lambda columns: pa.table(columns).to_struct_array().chunk(0),
        lambda columns: pa.table(columns).to_struct_array(),
    ],
    ids=["polars", "pandas", "batch", "reader", "structs", "chunked structs"],
)
def test_tables_of_all_libraries_are_read_alike(make: Any) -> None:
    columns = {"x": [1, 2, 3], "text": ["a", "b", "c"], "tokens": [[1], [2, 3], []]}
    data = loadax.from_arrow(make(columns))
    assert [plain(row) for row in data] == pa.table(columns).to_pylist()


def test_categories_of_polars() -> None:
    frame = pl.DataFrame({"c": ["u", "v"], "e": ["u", "v"]}, schema={"c": pl.Categorical, "e": pl.Enum(["v", "u"])})
    data = loadax.from_arrow(frame)
    assert data.source.classes == {"c": ["u", "v"], "e": ["v", "u"]}
    assert plain(data[1]) == {"c": 1, "e": 0}


def test_objects_of_polars_are_no_data() -> None:
    data = pl.DataFrame({"x": [1], "o": pl.Series([object()], dtype=pl.Object)})
    with pytest.raises(LeafTypeError, match=r"column 'o' .* drop it, as in data\.drop\('o'\)$"):
        loadax.from_arrow(data)
    assert plain(loadax.from_arrow(data.drop("o"))[0]) == {"x": 1}


def test_nan_of_pandas_is_a_number_and_its_index_is_dropped() -> None:
    frame = pd.DataFrame({"x": [1.0, np.nan], "name": ["a", "b"]}, index=["i", "j"])
    row = loadax.from_arrow(frame)[1]
    assert np.isnan(row["x"])
    assert row["name"] == "b"
    assert set(row) == {"x", "name"}


NULLS: dict[str, tuple[Any, Any, list[Any]]] = {
    "x": ([1, None, 3], -1, [1, -1, 3]),
    "score": ([0.5, None, 1.0], float("inf"), [0.5, float("inf"), 1.0]),
    "flag": ([True, None, False], True, [True, True, False]),
    "text": (["a", None, "b"], "", ["a", "", "b"]),
    "data": ([b"a", None, b"b"], b"?", [b"a", b"?", b"b"]),
    "tokens": ([[1], None, [2, None]], 0, [[1], [], [2, 0]]),
    "bits": ([[True], None, [None]], False, [[True], [], [False]]),
    "pair": (pa.array([[1, 2], None, [3, None]], pa.list_(pa.int32(), 2)), 9, [[1, 2], [9, 9], [3, 9]]),
    "words": ([["a"], None, []], [], [["a"], [], []]),
    "label": (pa.array(["u", None, "v"]).dictionary_encode(), -1, [0, -1, 1]),
    "time": (pa.array([1, None, 2], pa.timestamp("s")), 0, [1, 0, 2]),
    "inner": ([{"y": 1}, None, {"y": None}], 7, [{"y": 1}, {"y": 7}, {"y": 7}]),
}


@pytest.mark.parametrize("name", NULLS)
def test_nulls_are_refused_with_their_row_or_become_a_value(name: str) -> None:
    column, value, expected = NULLS[name]
    path = "inner.y" if name == "inner" else name
    table = pa.table({"good": [1, 2, 3], name: column}).slice(0)
    with pytest.raises(SourceError, match=rf"column '{path}' has (a null|2 nulls, the first) in row 1, which an array"):
        loadax.from_arrow(pa.concat_tables([table.slice(0, 1), table.slice(1)]), columns=[name, "good"])
    with pytest.raises(SourceError, match="say what nulls become") as caught:
        loadax.from_arrow(table)
    filled, left_out = follow(caught.value, data=table)
    if name in ("label", "text"):  # no category has the value that is advised
        assert plain(filled[1])[name] == value
    assert len(filled.read([0])) == 2
    assert plain(left_out[1]) == {"good": 2}
    data = loadax.from_arrow(table, nulls={path: value})
    assert [plain(data[row])[name] for row in range(3)] == expected
    if name != "words":  # a column of objects alone
        assert [plain(row)[name] for row in loadax.from_arrow(table.select([name]), nulls=value)] == expected


def test_all_columns_with_nulls_are_named_at_once() -> None:
    data = pa.table({"x": [1, None], "y": [None, "a"], "z": [1, 2]})
    with pytest.raises(
        SourceError, match=r"column 'x' has a null in row 1 and column 'y' has a null in row 0"
    ) as caught:
        loadax.from_arrow(data)
    filled, left_out = follow(caught.value, data=data)
    assert plain(filled[1]) == {"x": -1, "y": "a", "z": 2}
    assert plain(left_out[1]) == {"z": 2}


@pytest.mark.parametrize(
    ("name", "value"), [("x", "a"), ("x", 0.5), ("flag", 0), ("text", 0), ("tokens", "a"), ("x", [1]), ("x", 1 << 70)]
)
def test_a_value_of_another_type_is_refused(name: str, value: Any) -> None:
    table = pa.table({name: NULLS[name][0]})
    with pytest.raises(ArgumentError, match=rf"nulls: column '{name}' contains .* is not one; pass a value") as caught:
        loadax.from_arrow(table, nulls=value)
    good = str(caught.value).partition("such as nulls=")[2]
    loadax.from_arrow(table, nulls=eval(good))


def test_nulls_of_a_column_that_does_not_exist() -> None:
    with pytest.raises(ArgumentError, match=r"nulls=\{'y': 0\}: there is no column 'y'; there are \['x'\]"):
        loadax.from_arrow(pa.table({"x": [1]}), nulls={"y": 0})


@pytest.mark.parametrize(
    "column",
    [
        [decimal.Decimal(1)],
        [{"price": decimal.Decimal(1)}],
        [[decimal.Decimal(1)]],
        pa.array([(1, 2, 3)], pa.month_day_nano_interval()),
        pa.nulls(1),
    ],
)
def test_other_types_without_an_array(column: Any) -> None:
    data = pa.table({"x": [1], "bad": column})
    found = r"contains .*; (cast it to numbers: .*|write it as another type)"
    message = rf"column 'bad(\.price)?' ({found}, or|has nothing but nulls, .*values, or)"
    with pytest.raises(LeafTypeError, match=message) as caught:
        loadax.from_arrow(data)
    *cast, left_out = follow(caught.value, data=data, pyarrow=pa)
    assert plain(left_out[0]) == {"x": 1}
    assert [plain(dataset[0]) for dataset in cast] == [{"x": 1, "bad": 1.0}] * pa.types.is_decimal(data["bad"].type)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([1, 2], r"the data is a list, without Arrow's C stream interface"),
        ({"x": [1]}, r"the data is a dict, without .*, or use a table of them: pyarrow.table\(data\)$"),
        (np.arange(3), r"the data is a ndarray, without Arrow's C stream interface"),
        ("x.parquet", r"data='x.parquet' is a path; open it: loadax.from_parquet\('x.parquet'\)"),
        (pl.LazyFrame({"x": [1]}), r"LazyFrame, which can't be read by rows"),
        (pd.DataFrame({"x": [1 << 70]}, dtype=object), r"the DataFrame can't be exported to Arrow: .*; cast or drop"),
        (pd.DataFrame({"x": pd.arrays.SparseArray([1])}), r"the DataFrame can't be exported to Arrow: .*column x"),
    ],
)
def test_data_that_is_not_a_table(data: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        loadax.from_arrow(data)


@pytest.mark.parametrize("kind", [pl.Int128, pl.UInt128, pl.List(pl.UInt128), pl.Struct({"y": pl.Int128}), pl.Object])
@pytest.mark.parametrize("door", [loadax.from_arrow, loadax.as_dataset, lambda data: loadax.Dataloader(data, 1)])
def test_frames_of_polars_with_types_of_no_array_are_named_by_column(kind: Any, door: Callable[[Any], Any]) -> None:
    value: Any = {"y": 1} if isinstance(kind, pl.Struct) else [1] if isinstance(kind, pl.List) else 1
    odd = pl.Series("odd", [value], kind)
    with pytest.raises(
        LeafTypeError, match=r"column 'odd' of the DataFrame contains .*; cast or drop it, as in data.dr"
    ):
        door(pl.DataFrame({"x": [1], "odd": odd}))
    if kind is not pl.Object:
        with pytest.raises(LeafTypeError, match=r"is a column of .*128.*, which is not numeric"):
            loadax.from_arrays({"x": odd})


def test_names_in_types_of_polars_are_not_types() -> None:
    enum, struct = pl.Enum(["Object", "Int128"]), pl.Struct({"UInt128": pl.Int8})
    data = pl.DataFrame({"e": pl.Series(["Int128"], dtype=enum), "s": pl.Series([{"UInt128": 3}], dtype=struct)})
    assert plain(loadax.from_arrow(data)[0]) == {"e": 1, "s": {"UInt128": 3}}


@pytest.mark.parametrize("data", [pa.array([1, 2]), pa.chunked_array([[1], [2]]), pl.Series([1, 2])])
def test_a_single_column_is_named(data: Any) -> None:
    with pytest.raises(ArgumentError, match=r"a single column; name it") as caught:
        loadax.from_arrow(data)
    assert plain(follow(caught.value, data=data, pyarrow=pa)[0][1]) == {"x": 2}


@pytest.fixture(params=["arrow", "csv", "huggingface", "jsonl", "parquet"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A function that opens the columns x and y of a table, in each of its formats."""
    table, path = pa.table({"x": [1, 2], "y": [3, 4]}), tmp_path / "table"
    csv.write_csv(table, path.with_suffix(".csv"))
    path.with_suffix(".jsonl").write_text('{"x": 1, "y": 3}\n{"x": 2, "y": 4}\n')
    parquet.write_table(table, path.with_suffix(".parquet"))
    given: dict[str, Any] = {"arrow": table, "huggingface": datasets.Dataset(table)}
    return partial(getattr(loadax, f"from_{request.param}"), given.get(request.param, f"{path}.{request.param}"))


def test_columns_are_chosen_by_name(opened: Any) -> None:
    for chosen in (["y", "x"], ("y", "x"), {"x", "y"}, np.array(["x", "y"])):
        assert plain(opened(columns=chosen)[0]) == {"x": 1, "y": 3}
    assert plain(opened(columns="x")[1]) == {"x": 2}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("none", "columns='none': there is no column 'none'; there are ['x', 'y']"),
        ("xy", "columns='xy': there is no column 'xy'"),
        (["x", "x"], "columns=['x', 'x'] names a column twice"),
        ([], "columns=[] names none"),
        (5, "columns=5: pass a list of names of columns"),
        (b"x", "columns=b'x': pass a list of names of columns"),
        ({"x": 1}, "columns={'x': 1}: pass a list of names of columns"),
        ([5], "columns=[5]: there is no column 5"),
        ([["x"]], "columns=[['x']]: there is no column ['x']; there are ['x', 'y']"),
    ],
)
def test_columns_that_are_not_there_are_refused(opened: Any, columns: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(message)):
        opened(columns=columns)


def test_two_members_of_one_name() -> None:
    struct = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(SourceError, match=r"several columns of 'x' are called 'a'; give each its own name"):
        loadax.from_arrow(pa.table({"x": struct}))


def test_a_column_named_like_the_member_of_another() -> None:
    table = pa.table({"a": [{"b": 1}], "a.b": [7]})
    with pytest.raises(SourceError, match=r"two leaves of 'a' and 'a.b' are called 'a.b'; give each its own") as caught:
        loadax.from_arrow(table)
    (left_out,) = follow(caught.value, data=table)
    assert plain(left_out[0]) == {"a": {"b": 1}}
    within = pa.table({"x": [{"a": {"b": 1}, "a.b": 7}]})
    with pytest.raises(SourceError, match=r"two leaves of 'x' are called 'x.a.b'; give each its own name$"):
        loadax.from_arrow(within)


def test_a_table_without_rows() -> None:
    data = loadax.from_arrow(numbers().slice(0, 0))
    assert len(data) == 0
    assert data.source.read(np.empty(0, np.int64))["x"].dtype == np.int16


def test_without_pyarrow_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UnsupportedError, match=r"pip install pyarrow, or, .* pip install -e '\.\[parquet\]'$"):
        loadax.from_arrow(object())
