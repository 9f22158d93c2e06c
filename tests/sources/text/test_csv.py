"""CSV files against Python's own reader, and lines that are no rows."""

import csv
import gzip
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import loadax
from loadax.errors import ArgumentError, LeafTypeError, SourceError
from loadax.testing import check_source
from tests.sources.advice import follow
from tests.sources.arrow.test_table import plain

ROWS: list[dict[str, Any]] = [{"x": row, "y": row / 2, "name": f"a, {row}", "flag": row % 2 == 0} for row in range(50)]


def write(path: Path, rows: list[dict[str, Any]], delimiter: str = ",") -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.mark.processes
def test_rows_are_the_lines(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", ROWS[:30])
    write(tmp_path / "b.csv", ROWS[30:])
    data = loadax.from_csv(tmp_path)
    assert [plain(row) for row in data] == ROWS
    assert sorted(data.source.addresses) == [str(tmp_path / "a.csv"), str(tmp_path / "b.csv")]
    check_source(loadax.from_csv(tmp_path, columns=["x", "y"]).source)
    assert plain(loadax.from_csv(tmp_path, dtypes={"x": str})[3])["x"] == "3"


def test_delimiters_and_compression(tmp_path: Path) -> None:
    tabs = write(tmp_path / "a.tsv", ROWS, "\t")
    semicolons = write(tmp_path / "a.txt", ROWS, ";")
    content = write(tmp_path / "a.csv", ROWS).read_bytes()
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(content))
    (tmp_path / "B.CSV.GZ").write_bytes(gzip.compress(content))
    elsewhere = tmp_path / "of.tsv.files"
    elsewhere.mkdir()
    write(elsewhere / "a.csv", ROWS)
    (tmp_path / "c.csv.zst").write_bytes(pa.compress(content, codec="zstd", asbytes=True))
    for data in (
        loadax.from_csv(tabs),
        loadax.from_csv(semicolons, delimiter=";"),
        loadax.from_csv(tmp_path / "b.csv.gz"),
        loadax.from_csv(tmp_path / "B.CSV.GZ"),
        loadax.from_csv(elsewhere / "a.csv"),
        loadax.from_csv(tmp_path / "c.csv.zst"),
    ):
        assert plain(data[49]) == ROWS[49]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x,y\n1,2\n3\n", r"bad.csv: .*Row #3: Expected 2 columns, got 1: 3; correct that row$"),
        ("", r"bad.csv: the file is empty; its first line must name the columns"),
        ("x,z\n1,2\n", r"bad.csv: the columns are \['x', 'z'\], and \['x', 'y'\] in .*a.csv; pass files of the same"),
        (
            "x,y\n1.5,2\n",
            r"bad.csv: column 'x' contains double, and int64 in .*a.csv; state its type: dtypes=\{'x'",
        ),
        ("x,y\n1,\n", r"column 'y' has a null in row 0 of .*bad.csv, which an array can't hold"),
    ],
)
def test_a_bad_line_is_named_by_file_and_row(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    (tmp_path / "bad.csv").write_text(text)
    with pytest.raises(SourceError, match=message) as caught:
        loadax.from_csv(tmp_path)
    if "dtypes={'x': 'float64'}" in str(caught.value):
        assert loadax.from_csv(tmp_path, dtypes={"x": "float64"}).read([0, 1])["x"].tolist() == [1.0, 1.5]
    if "null" in str(caught.value):
        filled, left_out = follow(caught.value, paths=tmp_path)
        assert filled.read([0, 1])["y"].tolist() == [2, -1]
        assert left_out.read([0, 1])["x"].tolist() == [1, 1]


def test_entries_with_newlines_across_the_blocks_of_the_parser(tmp_path: Path) -> None:
    rows = [{"x": row, "text": f"a\n{row}\n" * 4} for row in range(100_000)]
    path = write(tmp_path / "x.csv", rows)
    data = loadax.from_csv(path)
    assert len(data) == len(rows)
    assert plain(data[77_777]) == rows[77_777]


@pytest.mark.parametrize("rows", [1000, 50_000])
def test_a_quote_that_is_not_closed(tmp_path: Path, rows: int) -> None:
    lines = [f"{row},hello" for row in range(rows)]
    lines[rows // 2] = f'{rows // 2},"oops'
    path = tmp_path / "x.csv"
    path.write_text("\n".join(["id,text", *lines, ""]))
    message = (
        rf"^{path}: a quote in row {rows // 2} is not closed, so the rest of the file would be one text; close it$"
    )
    with pytest.raises(SourceError, match=message):
        loadax.from_csv(path)
    path.write_text(path.read_text().replace('"oops', '"oops"'))
    assert len(loadax.from_csv(path)) == rows


@pytest.mark.parametrize("last", ['"two\nlines"', '"with ""quotes"" in\nit"', '"two\r\nlines","'])
def test_quotes_that_are_closed(tmp_path: Path, last: str) -> None:
    path = tmp_path / "x.csv"
    path.write_text(
        f'text,inches\n{last},5" pipe\n' if not last.endswith('"') else f'text,inches\na,5" pipe\n{last},6\n'
    )
    assert len(loadax.from_csv(path)) >= 1


@pytest.mark.parametrize(
    ("dtypes", "message"),
    [
        (None, r"row 1 of column 'place' is b'Orl\\xe9ans', which is not UTF-8; write the file in UTF-8, as `iconv"),
        ({"place": str}, r"CSV conversion error to string: invalid UTF8 data; write the file in UTF-8, as `iconv"),
    ],
)
def test_texts_that_are_not_utf_8(tmp_path: Path, dtypes: Any, message: str) -> None:
    path = tmp_path / "x.csv"
    path.write_text("place,n\nLyon,1\nOrléans,2\n", encoding="latin-1")
    with pytest.raises(SourceError, match=message):
        loadax.from_csv(path, dtypes=dtypes)
    assert loadax.from_csv(path, columns=["n"])[1] == {"n": 2}
    path.write_bytes(
        subprocess.run(["iconv", "-f", "LATIN1", "-t", "UTF-8", path], capture_output=True, check=True).stdout
    )
    assert loadax.from_csv(path, dtypes=dtypes)[1]["place"] == "Orléans"


def test_integers_that_are_too_large_are_not_rounded(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("x\n18446744073709551615\n9223372036854775809\n")
    message = rf"^{path}: column 'x' has integers too large for int64, .*; state its type: dtypes=\{{'x': 'uint64'\}}$"
    with pytest.raises(SourceError, match=message):
        loadax.from_csv(path)
    data = loadax.from_csv(path, dtypes={"x": "uint64"})
    assert data.read([0, 1])["x"].tolist() == [18446744073709551615, 9223372036854775809]
    path.write_text("x\n18446744073709551615.5\n1e19\n")
    assert loadax.from_csv(path).read([0, 1])["x"].tolist() == [2.0**64, 1e19]


@pytest.mark.parametrize("content", [gzip.compress(b"x,y\n" + b"1,2\n" * 2000)[:-20], b"x,y\n1,2\n"])
def test_a_file_that_can_not_be_decompressed(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.csv.gz"
    path.write_bytes(content)
    with pytest.raises(SourceError, match=rf"^{path}: it can't be decompressed: .*; copy it again$"):
        loadax.from_csv(path)


def test_names_of_columns_that_can_not_be_used(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("a,a\n1,2\n")
    with pytest.raises(SourceError, match=rf"2 columns of '{path}' are called 'a'; give each its own name"):
        loadax.from_csv(path)
    path.write_bytes("é\n1\n".encode("latin-1"))
    with pytest.raises(SourceError, match=rf"{path}: 'utf-8' codec can't decode byte 0xe9.*; write the file in UTF-8"):
        loadax.from_csv(path)


def test_an_entry_of_another_type(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("x\n1\nabc\n")
    with pytest.raises(
        SourceError,
        match=r"x.csv: .*'abc'.*; correct that row, or state the type of its column: dtypes=\{'\w+': str\}$",
    ):
        loadax.from_csv(path, dtypes={"x": "int32"})
    assert plain(loadax.from_csv(path, dtypes={"x": str})[1]) == {"x": "abc"}


def test_columns_without_values_have_the_stated_dtypes(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("a,b\n")
    dtypes: dict[str, Any] = {}
    for name in "ab":
        with pytest.raises(
            LeafTypeError, match=rf"'{name}' has nothing .*; state it, as in dtypes=\{{'{name}': 'float64'"
        ):
            loadax.from_csv(path, dtypes=dtypes)
        dtypes[name] = "float64"
    assert len(loadax.from_csv(path, dtypes=dtypes)) == 0


def test_arguments_that_can_not_be_used(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", ROWS)
    with pytest.raises(ArgumentError, match="dtypes: there is no column 'none'"):
        loadax.from_csv(path, dtypes={"none": "int32"})
    with pytest.raises(ArgumentError, match=r"dtypes\['x'\]='float16': .*; pass 'float32', and cast in a map$"):
        loadax.from_csv(path, dtypes={"x": "float16"})
    data = loadax.from_csv(path, columns=["x"], dtypes={"x": "float32"}).map(
        lambda row: {"x": row["x"].astype("float16")}
    )
    assert data[1]["x"].dtype == np.float16
    with pytest.raises(ArgumentError, match="delimiter='::': pass a single character"):
        loadax.from_csv(path, delimiter="::")
