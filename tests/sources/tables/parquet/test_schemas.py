"""Files whose schemas differ in Arrow's notes alone are of one schema; columns are found by their exact names."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

import loadax
from loadax.errors import SourceError
from loadax.sources.tables.arrow.call import column_names, refuse_repeated
from loadax.sources.tables.arrow.unify import unified
from tests.sources.advice import follow
from tests.sources.tables.arrow.test_table import plain

WORDS, LISTS = ["a", "b", "a"], [[1], [], [2, 3]]


def code(kind: Any) -> Any:
    return pa.array(["v", "u", "v"]).cast(pa.dictionary(kind, pa.string()))


ALIKE: dict[str, tuple[list[Any], Any]] = {
    "texts": ([pa.array(WORDS, kind()) for kind in (pa.string, pa.large_string, pa.string_view)], WORDS),
    "bytes": (
        [pa.array([b"a", b"b", b"a"], kind()) for kind in (pa.large_binary, pa.binary, pa.binary_view)],
        [b"a", b"b", b"a"],
    ),
    "lists": (
        [pa.array(LISTS, kind(pa.int32())) for kind in (pa.list_, pa.large_list, pa.list_view, pa.large_list_view)],
        LISTS,
    ),
    "fixed lists": ([pa.array([[1, 2]] * 3, pa.list_(pa.int32(), *size)) for size in ([2], [])], [[1, 2]] * 3),
    "lists of texts": (
        [pa.array([["a"], []], pa.list_(pa.string())), pa.array([["a"], []], pa.large_list(pa.large_string()))],
        [["a"], []],
    ),
    "fields": (
        [pa.array(LISTS, pa.list_(pa.field(name, pa.int32(), name == "e"))) for name in ("item", "e")],
        LISTS,
    ),
    "categories": ([code(kind) for kind in (pa.int8(), pa.int32(), pa.uint16())], None),
    "codes": ([pa.array([7, 9]).dictionary_encode(), pa.array([7, 9])], [7, 9]),
    "zones": ([pa.array([1, 2], pa.timestamp("us", zone)) for zone in ("UTC", "Europe/Berlin", "+00:00")], [1, 2]),
    "members": (
        [
            pa.array([{"a": 1, "t": "x"}]),
            pa.array([{"t": "x", "a": 1}], pa.struct({"t": pa.large_string(), "a": pa.int64()})),
        ],
        [{"a": 1, "t": "x"}],
    ),
    "maps": (
        [pa.array([[("k", 1)]], pa.map_(kind, pa.int64())) for kind in (pa.string(), pa.large_string())],
        [[("k", 1)]],
    ),
}


@pytest.mark.parametrize("name", ALIKE)
@pytest.mark.parametrize("memory_bytes", [0, 1 << 30])
def test_schemas_that_differ_in_notes_of_arrow_are_one(tmp_path: Path, name: str, memory_bytes: int) -> None:
    columns, expected = ALIKE[name]
    for turned in range(len(columns)):
        arrays = columns[turned:] + columns[:turned]
        for number, array in enumerate(arrays):
            parquet.write_table(pa.table({"c": array, "n": range(len(array))}), tmp_path / f"{number}.parquet")
        data = loadax.from_parquet(tmp_path, memory_bytes=memory_bytes)
        rows = [plain(row)["c"] for row in data]
        if expected is None:
            source: Any = data.source
            assert [source.classes["c"][row] for row in rows] == [
                each for array in arrays for each in array.to_pylist()
            ]
        else:
            assert rows == expected * len(columns)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("empty", [[], None], ids=["without rows", "of nulls"])
@pytest.mark.parametrize(
    "column",
    [[1, 2], ["a", "b"], [[1], [2, 3]], [{"a": {"b": 1}}] * 2, pa.array(["u", "v"]).dictionary_encode(), [True, False]],
)
def test_parts_without_rows_or_of_nulls_take_the_type_of_others(
    tmp_path: Path, column: Any, empty: Any, first: bool
) -> None:
    other: dict[str, Any] = {"c": pa.array([], pa.float64())} if empty == [] else {"c": pa.nulls(2)}
    parquet.write_table(pa.table({"c": column}), tmp_path / "b.parquet")
    parquet.write_table(pa.table(other), tmp_path / f"{'a' if first else 'c'}.parquet")
    if empty == []:
        expected = [plain(row) for row in loadax.from_parquet(tmp_path / "b.parquet")]
        assert [plain(row) for row in loadax.from_parquet(tmp_path)] == expected
        return
    with pytest.raises(SourceError, match=r"column 'c(\.a\.b)?' has 2 nulls, the first in row 0 of .*/[ac].parquet"):
        loadax.from_parquet(tmp_path).read(range(4))
    rows = list(loadax.from_parquet(tmp_path, nulls=_value(column)))
    assert len(rows) == 4


def _value(column: Any) -> Any:
    """A value for nulls of a column."""
    kind = pa.array(column).type if isinstance(column, list) else column.type
    return "" if pa.types.is_string(kind) else False if pa.types.is_boolean(kind) else -1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pa.int32(), pa.int64()),
        (pa.string(), pa.binary()),
        (pa.timestamp("us"), pa.timestamp("us", "UTC")),
        (pa.timestamp("us"), pa.timestamp("ns")),
        (pa.string(), pa.dictionary(pa.int32(), pa.string())),
        (pa.list_(pa.int32()), pa.list_(pa.int64())),
        (pa.struct({"a": pa.int32()}), pa.struct({"b": pa.int32()})),
        (pa.struct({"a": pa.int32()}), pa.struct({"a": pa.float32()})),
        (pa.map_(pa.string(), pa.int32()), pa.map_(pa.string(), pa.int64())),
        (pa.int64(), pa.duration("s")),
    ],
)
def test_types_that_differ_in_leaves_or_meaning_are_not_one(one: Any, other: Any) -> None:
    assert unified(one, other) is None
    assert unified(other, one) is None
    assert unified(pa.list_(one), pa.large_list(other)) is None


DOTTED = pa.table(
    {
        "x": [1, 2],
        "x.y": [3, None],
        "x.y.z": [{"a": 4}, {"a": None}],
        "": [9, 9],
        "s": [{"x.y": 5, "x": 6}, {"x.y": 7, "x": 8}],
        "xy": [[10], [11]],
    }
)


@pytest.mark.parametrize("columns", [["x"], ["x", "s"], ["s"], ["xy", "x"], ["", "x"]])
@pytest.mark.parametrize("statistics", [True, False])
def test_names_with_dots_and_names_that_begin_others_are_columns_of_their_own(
    tmp_path: Path, columns: list[str], statistics: bool
) -> None:
    path = tmp_path / "x.parquet"
    parquet.write_table(DOTTED, path, row_group_size=1, write_statistics=statistics)
    rows = [plain(row) for row in loadax.from_parquet(path, columns=columns, memory_bytes=0)]
    assert rows == DOTTED.select(columns).to_pylist()


def test_nulls_of_names_with_dots_are_named_and_become_values(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    parquet.write_table(DOTTED, path)
    with pytest.raises(
        SourceError, match=r"column 'x.y' has a null in row 1 of .* and column 'x.y.z.a' has a"
    ) as caught:
        loadax.from_parquet(path)
    filled, left_out = follow(caught.value, paths=path)
    assert plain(filled[1])["x.y"] == -1
    assert set(left_out[0]) == {"x", "", "s", "xy"}


class Counted(str):
    """A name that counts how often it is compared."""

    __slots__ = ()
    comparisons = 0

    def __eq__(self, other: object) -> bool:
        Counted.comparisons += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


@pytest.mark.parametrize("check", [refuse_repeated, lambda names: column_names(names, names)])
def test_checks_of_names_compare_each_a_few_times(check: Any) -> None:
    Counted.comparisons = 0
    check([Counted(f"gene {number}") for number in range(2000)])
    assert Counted.comparisons < 20_000


def test_columns_of_one_name_are_refused_before_their_categories_are_read(tmp_path: Path) -> None:
    table = pa.Table.from_arrays(
        [pa.array(["a", "b"]).dictionary_encode(), pa.array([1, 2]), pa.array([3, 4])], list("xxy")
    )
    parquet.write_table(table, tmp_path / "x.parquet")
    for columns in (None, "x"):
        with pytest.raises(SourceError, match="several columns are called 'x'; give each its own name"):
            loadax.from_parquet(tmp_path, columns=columns)
    assert loadax.from_parquet(tmp_path, columns="y").read([1])["y"].tolist() == [4]
