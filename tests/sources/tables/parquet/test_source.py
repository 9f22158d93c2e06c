"""Parquet files against what Arrow gives for their tables: every row, each row group once, and bad files by name."""

import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import loadax
from loadax.core.spec import split_rows
from loadax.errors import ArgumentError, LeafError, LeafTypeError, SourceError
from loadax.sources.tables.arrow import columns as arrow_columns
from loadax.sources.tables.parquet import parquet_files
from loadax.sources.tables.parquet.parquet_files import ParquetFiles
from loadax.testing import check_source
from tests.limits import HANG
from tests.sources.advice import follow
from tests.sources.tables.arrow.test_table import ROWS, numbers, of_any_kind, oracle, plain

NUMBERS = ["x", "flag", "pair", "flags", "inner", "label", "time", "day"]
KINDS = [name for name in of_any_kind().column_names if name not in ("runs", "views")]  # which Parquet lacks


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files, of row groups of 10 and of 7 rows; the second has no category "cow"."""
    table = of_any_kind().select(KINDS)
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=10)
    parquet.write_table(table, tmp_path / "b.parquet", row_group_size=7)
    (tmp_path / "_SUCCESS").touch()
    return tmp_path


def expected() -> list[dict[str, Any]]:
    return oracle(of_any_kind().select(KINDS)) * 2


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[int, int]]:
    """How often each row group was decoded, by file and number; of its columns in `decoded.columns`."""
    counts: Counter[tuple[int, int]] = Counter()
    lock, read = threading.Lock(), ParquetFiles.read

    def counted(self: ParquetFiles, groups: Any, columns: Any) -> Any:
        with lock:
            counts.update((group.file, group.number) for group in groups)
            COLUMNS.update(columns)
        return read(self, groups, columns)

    COLUMNS.clear()
    monkeypatch.setattr(ParquetFiles, "read", counted)
    return counts


COLUMNS: set[tuple[str, ...]] = set()
"""Columns that were read since `decoded` was set up."""


def test_opening_parses_each_footer_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for file in range(100):  # more than are kept open
        parquet.write_table(pa.table({"x": [file, file]}), tmp_path / f"{file:03}.parquet")
    opened, make = Counter[str](), parquet.ParquetReader
    monkeypatch.setattr(parquet, "ParquetReader", lambda: [opened.update(["reader"]), make()][1])
    data = loadax.from_parquet(tmp_path)
    assert opened.total() == 100
    assert data.read(np.arange(200))["x"].tolist() == np.repeat(np.arange(100), 2).tolist()


def test_nulls_of_many_row_groups_and_files_are_counted_by_footers(tmp_path: Path) -> None:
    for file in range(3):
        table = pa.table({"x": [1, 2, None, 4, None, None], "y": [0] * 6})
        parquet.write_table(table.slice(0, 2) if file == 0 else table, tmp_path / f"{file}.parquet", row_group_size=2)
    first = f"column 'x' has 6 nulls, the first in row 2 of {tmp_path / '1.parquet'}, which an array can't hold"
    with pytest.raises(SourceError, match=re.escape(first)):
        loadax.from_parquet(tmp_path)
    assert loadax.from_parquet(tmp_path, columns="y")[13]["y"] == 0
    assert loadax.from_parquet(tmp_path, nulls=-1)[4]["x"] == -1


@pytest.mark.processes
def test_tables_are_read_without_pandas(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"x": [1, 2], "t": ["a", "b"], "l": [[1], [2, 3]]}), tmp_path / "a.parquet")
    (tmp_path / "a.jsonl").write_text('{"x": 1, "t": "a", "l": [1, 2]}\n')
    program = (
        "import sys, loadax\n"
        f"print([*loadax.from_parquet({str(tmp_path / 'a.parquet')!r})][1]['l'].tolist())\n"
        f"print([*loadax.from_jsonl({str(tmp_path / 'a.jsonl')!r})][0]['l'].tolist(), 'pandas' in sys.modules)\n"
    )
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=HANG)
    assert printed.stdout.split("\n") == ["[2, 3]", "[1, 2] False", ""]


@pytest.mark.parametrize("memory_bytes", [1 << 30, 3000, 0])
def test_rows_are_what_arrow_gives(folder: Path, memory_bytes: int) -> None:
    data = loadax.from_parquet(folder, memory_bytes=memory_bytes)
    assert [plain(row) for row in data] == expected()
    rows = np.random.default_rng(1).integers(0, 2 * ROWS, 50)
    texts = loadax.from_parquet(folder, columns=["text", "x"], memory_bytes=memory_bytes).read(rows)
    assert texts["text"].tolist() == [expected()[row]["text"] for row in rows.tolist()]
    assert texts["x"].tolist() == [expected()[row]["x"] for row in rows.tolist()]


@pytest.mark.processes
@pytest.mark.parametrize("columns", [NUMBERS, ["x", "label"]])
@pytest.mark.parametrize("memory_bytes", [1 << 30, 0])
def test_the_law_of_sources(folder: Path, columns: list[str], memory_bytes: int) -> None:
    source = loadax.from_parquet(folder, columns=columns, memory_bytes=memory_bytes).source
    assert np.asarray(source.chunks).tolist() == [0, 10, 20, 30, 37, 44, 51, 58, 65, 72]
    check_source(source)


def test_row_groups_of_one_row_and_of_none(tmp_path: Path) -> None:
    table = numbers().select(["x", "day"])
    parquet.write_table(table.slice(0, 5), tmp_path / "ones.parquet", row_group_size=1)
    with parquet.ParquetWriter(tmp_path / "some.parquet", table.schema) as writer:
        for part in (table.slice(5, 3), table.slice(8, 0), table.slice(8, 2)):
            writer.write_table(part)
    parquet.write_table(table.slice(0, 0), tmp_path / "none.parquet")
    data = loadax.from_parquet([tmp_path / "ones.parquet", tmp_path / "none.parquet", tmp_path / "some.parquet"])
    assert data.read(range(10))["x"].tolist() == table["x"].to_pylist()[:10]
    ones = loadax.from_parquet(tmp_path / "ones.parquet")
    assert ones.read([4, 0])["x"].tolist() == [table["x"].to_pylist()[row] for row in (4, 0)]
    none = loadax.from_parquet(tmp_path / "none.parquet")
    assert len(none) == 0
    assert none.source.read(np.empty(0, np.int64))["x"].dtype == np.int16


@pytest.mark.parametrize("memory_bytes", [1 << 30, 0])
@pytest.mark.parametrize("columns", ["tokens", ["tokens", "words"]])
def test_a_chunk_shuffle_decodes_each_row_group_once_an_epoch(
    tmp_path: Path, decoded: Counter[tuple[int, int]], memory_bytes: int, columns: Any
) -> None:
    rows = 240
    table = pa.table({"tokens": [[row] * 3 for row in range(rows)], "words": [[str(row)] for row in range(rows)]})
    parquet.write_table(table, tmp_path / "x.parquet", row_group_size=10)
    data = loadax.from_parquet(tmp_path / "x.parquet", columns=columns, memory_bytes=memory_bytes)
    data = data.shuffle(0, block="chunks", lanes=4).map(lambda row: row["tokens"][0])
    loader = loadax.Dataloader(data, 8, num_workers=2)
    _ = loader.spec
    decoded.clear()
    seen = np.concatenate([np.asarray(batch) for batch in loader])
    assert sorted(seen.tolist()) == list(range(rows))
    assert set(decoded.values()) == {1}


@pytest.mark.parametrize("memory_bytes", [1 << 30, 0])
def test_a_chunk_shuffle_of_numbers_decodes_each_row_group_once_and_no_other_column(
    tmp_path: Path, decoded: Counter[tuple[int, int]], memory_bytes: int
) -> None:
    table = pa.table({"x": np.arange(240, dtype=np.int32), "y": np.zeros(240, np.float32), "z": ["unread"] * 240})
    parquet.write_table(table, tmp_path / "x.parquet", row_group_size=10)
    data = loadax.from_parquet(tmp_path / "x.parquet", columns=["x", "y"], memory_bytes=memory_bytes)
    loader = loadax.Dataloader(data.shuffle(0, block="chunks", lanes=4), 8, num_workers=2)
    seen = np.concatenate([np.asarray(batch["x"]) for batch in loader])
    assert sorted(seen.tolist()) == list(range(240))
    assert set(decoded.values()) == {1}
    assert {("x",), ("y",)} == COLUMNS


def test_a_full_shuffle_decodes_each_row_group_once_if_all_fit(folder: Path, decoded: Counter[tuple[int, int]]) -> None:
    for columns in (["x", "day"], ["x", "text"]):
        decoded.clear()
        data = loadax.from_parquet(folder, columns=columns).shuffle(0)
        for _ in range(2):
            seen = [int(data.read([position])["x"][0]) for position in range(len(data))]
            assert sorted(seen) == sorted(row["x"] for row in expected())
        assert set(decoded.values()) == {1}


@pytest.mark.parametrize(("most", "longest"), [(16 << 20, 6), (100, 2)])
def test_small_row_groups_of_numbers_are_decoded_together(
    folder: Path, monkeypatch: pytest.MonkeyPatch, most: int, longest: int
) -> None:
    joined: list[int] = []
    read = ParquetFiles.read

    def recorded(self: ParquetFiles, groups: Any, columns: Any) -> Any:
        for some, table in read(self, groups, columns):
            assert len(table) == sum(group.rows for group in some)
            joined.append(len(some))
            yield some, table

    monkeypatch.setattr(parquet_files, "JOINED", most)
    monkeypatch.setattr(ParquetFiles, "read", recorded)
    rows, whole = np.random.default_rng(0).permutation(2 * ROWS), expected()
    for columns, together in ((["x", "day"], True), (["x", "flags"], False), (["x", "label"], False)):
        for wanted in (np.arange(2 * ROWS), rows, rows[::2]):
            data = loadax.from_parquet(folder, columns=columns, memory_bytes=0)
            joined.clear()
            batch = data.read(wanted)
            assert [plain(row) for row in split_rows(batch, len(wanted))] == [
                plain({name: whole[row][name] for name in columns}) for row in wanted
            ]
            assert max(joined) == (longest if together else 1)


@pytest.mark.parametrize("memory_bytes", [1 << 30, 0])
def test_lists_are_packed(folder: Path, memory_bytes: int) -> None:
    packed = loadax.from_parquet(folder, columns="tokens", memory_bytes=memory_bytes).pack(7)
    plainly = loadax.from_source([{"tokens": np.array(row["tokens"], np.uint16)} for row in expected()]).pack(7)
    assert [plain(row) for row in packed] == [plain(row) for row in plainly]


@pytest.mark.parametrize("memory_bytes", [1 << 30, 0])
def test_lists_of_changing_length_are_named_by_file_and_row(folder: Path, memory_bytes: int) -> None:
    data = loadax.from_parquet(folder, columns=["tokens", "x"], memory_bytes=memory_bytes)
    place = rf"\({folder}/b.parquet, row group 1, row 7 of the file\)"
    message = rf"^row 44 {place}: leaf \['tokens'\] is uint16\[2\], expected .* rows are ragged: pad them with"
    with pytest.raises(LeafError, match=message):
        data.read([35, 44])
    with pytest.raises(LeafError, match=rf"^row 44 {place}"):
        loadax.concat([data, data]).read([35, 44])


def test_rows_are_located_by_row_group(folder: Path) -> None:
    (location,) = loadax.from_parquet(folder).source.locate(40)
    assert location.file == str(folder / "b.parquet")
    assert location.part == "row group 0, row 3 of the file"
    metadata = parquet.read_metadata(location.file).row_group(0)
    assert location.first is not None
    assert location.last is not None
    assert location.last - location.first + 1 == sum(
        metadata.column(column).total_compressed_size for column in range(metadata.num_columns)
    )


def test_names_and_units_are_told(folder: Path) -> None:
    source: Any = loadax.from_parquet(folder).source
    assert source.units["time"] == "timestamp[us, tz=UTC]"
    assert "and 1 more" in repr(source)


def test_categories_of_all_files_are_numbered_together(tmp_path: Path) -> None:
    for name, labels in (("a", ["u", "v"]), ("b", ["w", "u"])):
        parquet.write_table(pa.table({"c": pa.array(labels).dictionary_encode()}), tmp_path / f"{name}.parquet")
    data = loadax.from_parquet(tmp_path)
    assert data.source.classes == {"c": ["u", "v", "w"]}
    assert data.read(range(4))["c"].tolist() == [0, 1, 2, 0]


@pytest.mark.parametrize("statistics", [True, False])
def test_a_null_is_named_by_column_file_and_row(tmp_path: Path, statistics: bool) -> None:
    path = tmp_path / "x.parquet"
    table = pa.table({"good": range(30), "x": [None if row == 17 else row for row in range(30)]})
    parquet.write_table(table, path, row_group_size=10, write_statistics=statistics)
    message = rf"column 'x' has a null in row 17 of {path}, which an array can't hold"
    with pytest.raises(SourceError, match=message) as caught:  # without statistics when it is read
        loadax.from_parquet(path).read(range(30))
    filled, left_out = follow(caught.value, paths=path)
    assert filled.read(range(30))["x"].tolist() == [-1 if row == 17 else row for row in range(30)]
    assert set(left_out.read([0])) == {"good"}


def test_nulls_of_several_columns_are_named_at_once(tmp_path: Path) -> None:
    table = pa.table({"x": [1, None], "y": [{"a": None}, {"a": 2}], "l": [[1], [None]]})
    parquet.write_table(table, tmp_path / "x.parquet", row_group_size=1)
    with pytest.raises(SourceError, match=r"column 'x' has a null in row 1 of .* and column 'y.a' has a null in row 0"):
        loadax.from_parquet(tmp_path)
    data = loadax.from_parquet(tmp_path, nulls={"x": 7, "y.a": 8})
    with pytest.raises(SourceError, match=r"column 'l' has a null in row 1 of .*nulls=\{'x': 7, 'y.a': 8, 'l': -1\}"):
        data[1]


def test_files_of_another_schema_are_named_with_the_column(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"x": [1], "y": [1.0]}), tmp_path / "a.parquet")
    for other, message in [
        ({"x": [1]}, r"b.parquet: there is no column 'y', which .*a.parquet has; .*columns=\['x'\]"),
        ({"x": [1.0], "y": [1.0]}, r"b.parquet: column 'x' contains double, and int64 in .*a.parquet; pass files of"),
        ({"x": [1], "y": [1.0], "z": [1]}, r"b.parquet: there is a column 'z', .*; pass files of one schema, or col"),
    ]:
        parquet.write_table(pa.table(other), tmp_path / "b.parquet")
        with pytest.raises(SourceError, match=message) as caught:
            loadax.from_parquet(tmp_path)
        advised = str(caught.value).partition("columns=")[2].partition("]")[0]
        if advised:
            assert len(loadax.from_parquet(tmp_path, columns=eval(advised + "]"))) == 2
    parquet.write_table(pa.table({"y": [2.0], "x": [2]}), tmp_path / "b.parquet")  # another order
    assert loadax.from_parquet(tmp_path).read([1])["x"].tolist() == [2]


def test_damaged_and_missing_files_are_named(folder: Path) -> None:
    path = folder / "b.parquet"
    content = path.read_bytes()
    for damaged in (b"", b"PAR1", content[: len(content) // 2], b"no table" * 20, content[:-9] + b"\xff" * 9):
        path.write_bytes(damaged)
        with pytest.raises(SourceError, match=rf"{path}: the file can't be read as Parquet: .*; copy it again"):
            loadax.from_parquet(folder)
    with pytest.raises(SourceError, match=r"none.parquet: there is no such file"):
        loadax.from_parquet(folder / "none.parquet")
    (folder / "empty").mkdir()
    with pytest.raises(SourceError, match=r"the folder has no .parquet file, but nothing; pass the files, or a pat"):
        loadax.from_parquet(folder / "empty")


def test_a_damaged_page_is_found_by_its_checksum(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    values = np.random.default_rng(0).integers(0, 1 << 60, 2000)
    parquet.write_table(
        pa.table({"x": values}),
        path,
        row_group_size=1000,
        compression="none",
        write_page_checksum=True,
        use_dictionary=False,
    )
    content = bytearray(path.read_bytes())
    content[-6000] ^= 1
    path.write_bytes(content)
    data = loadax.from_parquet(path)
    np.testing.assert_array_equal(data.read([3, 999])["x"], values[[3, 999]])
    with pytest.raises(SourceError, match=rf"{path}: the file can't be read as Parquet: .*CRC.*; copy it again"):
        data.read([1500])
    whole = loadax.from_parquet(path)
    with pytest.raises(SourceError, match=rf"{path}: the file can't be read as Parquet: .*CRC.*; copy it again"):
        whole.read(range(2000))  # decodes both row groups together
    np.testing.assert_array_equal(whole.read([3, 999])["x"], values[[3, 999]])


def test_arguments_that_can_not_be_used(folder: Path) -> None:
    with pytest.raises(ArgumentError, match="memory_bytes=-1: pass 0 or more"):
        loadax.from_parquet(folder, memory_bytes=-1)
    with pytest.raises(ArgumentError, match=r"nulls=\{'none': 0\}: there is no column 'none'"):
        loadax.from_parquet(folder, nulls={"none": 0})


@pytest.mark.parametrize("paths", ["", "*.parquet", "{0..1}.parquet"])
def test_decimals_are_refused_with_the_cast(paths: str, tmp_path: Path) -> None:
    for part in range(2):
        table = pa.table({"x": [part], "price": pa.array(["1.5"]).cast(pa.decimal128(5, 2))})
        parquet.write_table(table, tmp_path / f"{part}.parquet")
    with pytest.raises(LeafTypeError, match="column 'price' contains decimal128") as caught:
        loadax.from_parquet(tmp_path / paths)
    cast, left_out = follow(caught.value, paths=tmp_path / paths, pyarrow=pa)
    assert plain(cast[0]) == {"x": 0, "price": 1.5}
    assert plain(left_out[0]) == {"x": 0}


def test_threads_that_view_a_column_first_read_their_own_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet.write_table(pa.table({"x": range(100), "text": [str(row) for row in range(100)]}), tmp_path / "x.parquet")
    data, both = loadax.from_parquet(tmp_path / "x.parquet"), threading.Barrier(2)
    view, opened = vars(arrow_columns)["view"], arrow_columns.Numbers._open

    def after_both(function: Callable[..., Any], *arguments: Any) -> Any:
        result = function(*arguments)
        both.wait(HANG)
        return result

    monkeypatch.setattr(arrow_columns, "view", partial(after_both, view))
    monkeypatch.setattr(arrow_columns.Numbers, "_open", lambda *arguments: after_both(opened, *arguments))
    with ThreadPoolExecutor(2) as pool:
        rows = [[51, 61, 7], [52, 62, 8]]
        assert [read["x"].tolist() for read in pool.map(data.read, rows)] == rows
