"""`classes=` states the names of categories, by every function that makes some: train and valid number them alike."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyarrow import parquet

import loadax
from loadax.errors import ArgumentError, SourceError
from tests.sources.tables.arrow.test_table import plain

NAMES = ["cow", "dog", "cat"]
Opener = Callable[..., loadax.Dataset]


def of_parquet(names: list[Any], path: Path, **options: Any) -> loadax.Dataset:
    parquet.write_table(pa.table({"c": pa.array(names, pa.string()).dictionary_encode()}), path)
    return loadax.from_parquet(path, **options)


def of_parquet_texts(names: list[Any], path: Path, **options: Any) -> loadax.Dataset:
    parquet.write_table(pa.table({"c": names}), path)
    return loadax.from_parquet(path, **options)


def of_csv(names: list[Any], path: Path, **options: Any) -> loadax.Dataset:
    path.write_text("".join(f'"{name}"\n' for name in ["c", *names]))
    return loadax.from_csv(path, **options)


def of_jsonl(names: list[Any], path: Path, **options: Any) -> loadax.Dataset:
    path.write_text("".join(json.dumps({"c": name}) + "\n" for name in names))
    return loadax.from_jsonl(path, **options)


def of_table(make: Callable[[list[Any]], Any]) -> Opener:
    """Opens the table that a function makes of the names."""
    return lambda names, _, **options: loadax.from_arrow(make(names), **options)


OPENERS: dict[str, Opener] = {
    "parquet": of_parquet,
    "texts of parquet": of_parquet_texts,
    "csv": of_csv,
    "jsonl": of_jsonl,
    "arrow": of_table(lambda names: pa.table({"c": pa.array(names).dictionary_encode()})),
    "pandas": of_table(lambda names: pd.DataFrame({"c": pd.Categorical(names)})),
    "polars": of_table(lambda names: pl.DataFrame({"c": pl.Series(names, dtype=pl.Categorical)})),
}


@pytest.fixture(params=OPENERS)
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    """Opens names as a column `c`."""
    return lambda names, **options: OPENERS[request.param](names, tmp_path / "x", **options)


def test_stated_names_number_all_datasets_alike(opener: Opener) -> None:
    for names in (["cat", "dog"], ["dog", "dog"], ["dog", "cow", "cat"]):
        data = opener(names, classes={"c": NAMES})
        read = data.read(range(len(names)))["c"]
        assert (read.dtype, read.tolist()) == ("int32", [NAMES.index(name) for name in names])
        assert data.source.classes == {"c": NAMES}


def test_a_name_that_is_not_stated_is_named_with_its_row(opener: Opener) -> None:
    with pytest.raises(
        SourceError, match=r"(row|line) \d.*: column 'c' has the category 'bee', which is not in classes\["
    ):
        opener(["dog", "bee"], classes={"c": NAMES}).read(range(2))


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        (["cat"], r"classes=\['cat'\]: pass a dict of the names by column, such as classes="),
        ({"c": "cat"}, r"classes\['c'\]"),
        ({"c": ["cat", "cat"]}, r"classes\['c'\]=\['cat', 'cat'\] are no different texts"),
        ({"c": []}, r"classes\['c'\]=\[\] are no different texts"),
        ({"c": [1]}, r"classes\['c'\]=\[1\] are no different texts"),
        ({"d": ["cat"]}, r"classes: there is no column 'd'; there are \['c'\]"),
    ],
)
def test_classes_that_can_not_be_used(opener: Opener, classes: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        opener(["cat"], classes=classes)


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_stated_names_of_members_and_nulls(tmp_path: Path, kind: str) -> None:
    codes = pa.array(["dog", None, "cat"]).dictionary_encode()
    column = pa.StructArray.from_arrays([codes, pa.array(["x", "y", None])], ["a", "b"])
    table = pa.table({"s": column, "x.y": ["cow", "dog", "cow"], "free": ["p", "q", "p"]})
    options: Any = {"classes": {"s.a": NAMES, "s.b": ["y", "x"], "x.y": NAMES}, "nulls": {"s.a": -1, "s.b": -7}}
    if kind == "parquet":
        parquet.write_table(table, tmp_path / "x.parquet", row_group_size=1)
        data = loadax.from_parquet(tmp_path, **options)
    else:
        data = loadax.from_arrow(table, **options)
    assert [plain(row) for row in data] == [
        {"s": {"a": 1, "b": 1}, "x.y": 0, "free": "p"},
        {"s": {"a": -1, "b": 0}, "x.y": 1, "free": "q"},
        {"s": {"a": 2, "b": -7}, "x.y": 0, "free": "p"},
    ]
    with pytest.raises(SourceError, match=r"column 's.b' has a null in row 2"):
        list(loadax.from_arrow(table, classes=options["classes"], nulls={"s.a": -1}))


def test_other_types_have_no_names() -> None:
    for column in ([1], [1.5], [["a"]], [b"a"]):
        with pytest.raises(ArgumentError, match=r"classes: column 'c' contains .*, not categories or texts; leave it"):
            loadax.from_arrow(pa.table({"c": column}), classes={"c": ["a"]})


def test_integers_of_csv_are_names_where_these_are_stated(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("c\n07\n1\n")
    assert loadax.from_csv(tmp_path, classes={"c": ["1", "07"]}).read(range(2))["c"].tolist() == [1, 0]


@pytest.mark.parametrize(
    ("writes", "opens"),
    [(of_parquet, loadax.from_parquet), (of_csv, loadax.from_csv), (of_jsonl, loadax.from_jsonl)],
)
def test_a_cache_of_other_stated_names_is_refused(tmp_path: Path, writes: Opener, opens: Opener) -> None:
    writes(["dog"] * 3, tmp_path / "x")
    opens(tmp_path / "x", classes={"c": NAMES}).cache(tmp_path / "cache", progress=False)
    with pytest.raises(ArgumentError, match=r"data.memory .*overwrite=True"):
        opens(tmp_path / "x", classes={"c": [*NAMES, "bee"]}).cache(tmp_path / "cache", progress=False)
