"""`filter(columns=)`: the function gets these leaves, only these are read, and the index knows which."""

import logging
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from loadax import Dataset, concat, from_arrays, from_huggingface, from_parquet, from_source, from_zarr, write_zarr
from loadax.errors import ArgumentError
from loadax.sources.tables.parquet.parquet_files import ParquetFiles

ROWS = 400
COLUMNS: dict[str, Any] = {
    "a": np.arange(ROWS),
    "b": np.arange(ROWS) % 7,
    "text": [f"text {row}" for row in range(ROWS)],
}
NUMBERS = {name: COLUMNS[name] for name in "ab"}


def parquet(path: Path) -> Dataset:
    pyarrow.parquet.write_table(pa.table(COLUMNS), path / "t.parquet", row_group_size=50)
    return from_parquet(path / "t.parquet")


def stored(path: Path) -> Dataset:
    write_zarr(NUMBERS, path / "z", shard_rows=100)
    return from_zarr(path / "z")


MADE: dict[str, Callable[[Path], Dataset]] = {
    "parquet": parquet,
    "zarr": stored,
    "arrays": lambda _: from_arrays(NUMBERS),
    "hugging face": lambda _: from_huggingface(
        datasets.Dataset.from_dict({name: list(values) for name, values in COLUMNS.items()}).select(range(ROWS))
    ),
    "examples": lambda _: from_source([{name: COLUMNS[name][row] for name in COLUMNS} for row in range(ROWS)]),
    "map": lambda _: from_arrays(NUMBERS["a"]).map(lambda a: {"a": a, "b": a % 7, "c": 0}),
    "concatenation": lambda path: concat([stored(path), from_arrays(NUMBERS)])[:ROWS],
}


@pytest.mark.parametrize("make", MADE.values(), ids=MADE.keys())
def test_function_gets_the_columns_alone(make: Callable[[Path], Dataset], tmp_path: Path) -> None:
    data, seen = make(tmp_path), set()

    def one(example: Any) -> bool:
        seen.add(tuple(example))
        return bool(example["b"] == 3)

    def two(example: Any) -> bool:
        seen.add(tuple(sorted(example)))
        return bool(example["b"] == 3 and example["a"] > 50)

    kept = data.filter(one, columns="b")
    assert [row["a"] for row in kept] == [row for row in range(ROWS) if row % 7 == 3]
    assert data.filter(two, columns=["b", "a"]).order_facts == data.filter(two).order_facts
    assert seen == {("b",), ("a", "b"), tuple(sorted(data[0]))}


def test_other_columns_of_parquet_are_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, read, decoded = parquet(tmp_path), ParquetFiles.read, set()

    def watched(self: Any, groups: Any, columns: Any) -> Any:
        decoded.update(columns)
        return read(self, groups, columns)

    monkeypatch.setattr(ParquetFiles, "read", watched)
    assert len(data.filter(lambda row: row["b"] == 3, columns=["b"])) == 57
    assert decoded == {("b",)}


def test_other_arrays_of_a_zarr_group_are_not_read(tmp_path: Path) -> None:
    data = stored(tmp_path)
    shutil.rmtree(tmp_path / "z/a/c")
    assert len(data.filter(lambda row: row["b"] == 3, columns=["b"])) == 57


def test_sources_of_some_leaves_pickle() -> None:
    given = MADE["hugging face"](Path()).source.keep_leaves({"b": 1})
    assert given is not None
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(given)).read(np.arange(9))["b"], COLUMNS["b"][:9])


@pytest.mark.parametrize("make", MADE.values(), ids=MADE.keys())
def test_index_knows_the_columns(
    make: Callable[[Path], Dataset], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "loadax")
    data = make(tmp_path)
    for number, (columns, message) in enumerate([("a", "written"), ("a", "read"), (["a", "b"], "does not match")]):
        caplog.clear()
        data.filter(lambda row: row["a"] < 5, columns=columns, index=tmp_path / "index")
        assert message in caplog.text, number


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["a", "c"], r"there is no leaf 'c'; the names of leaves are \['a', 'b'\]"),
        ([], r"columns=\(\[\],\): pass names of leaves, such as 'tokens', 'label'"),
        (3, "columns=3: pass a list of names"),
    ],
)
def test_columns_that_no_leaf_has(columns: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        from_arrays(NUMBERS).filter(lambda row: True, columns=columns)
