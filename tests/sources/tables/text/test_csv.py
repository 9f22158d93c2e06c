"""CSV files against Python's own reader, and lines that are no rows."""

import bz2
import csv
import gzip
import io
import lzma
import re
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

import loadax
from loadax.errors import ArgumentError, LeafTypeError, SourceError
from loadax.protocols import Visits
from loadax.testing import check_source
from tests.limits import examples
from tests.servers.ranges import RangeServer
from tests.sources.advice import follow
from tests.sources.tables.arrow.test_table import plain

pytest_plugins = ["tests.servers.fixtures"]

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
    (tmp_path / "B.CSV.GZ").write_bytes(gzip.compress(content))
    (tmp_path / "c.csv.zst").write_bytes(pa.compress(content, codec="zstd", asbytes=True))
    (tmp_path / "of.tsv.files").mkdir()
    commas = write(tmp_path / "of.tsv.files" / "a.csv", ROWS)
    for data in (
        loadax.from_csv(semicolons, delimiter=";"),
        *map(loadax.from_csv, (tabs, tmp_path / "B.CSV.GZ", commas, tmp_path / "c.csv.zst")),
    ):
        assert plain(data[49]) == ROWS[49]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x,y\n1,2\n3\n", r"bad.csv: .*Row #3: Expected 2 columns, got 1: 3; correct that row$"),
        ("", r"bad.csv: the file is empty; its first line must name the columns"),
        ("x,z\n1,2\n", r"bad.csv: there is no column 'y', which .*a.csv has; pass files of one schema"),
        ("x,y\n1.5,2\n", r"bad.csv: column 'x' contains double, and int64 in .*a.csv; .* or state its type by dtypes="),
        ("x,y\n1,\n", r"column 'y' has a null in row 0 of .*bad.csv, which an array can't hold"),
    ],
)
def test_a_bad_line_is_named_by_file_and_row(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    (tmp_path / "bad.csv").write_text(text)
    with pytest.raises(SourceError, match=message) as caught:
        loadax.from_csv(tmp_path)
    if "dtypes=" in str(caught.value):
        assert loadax.from_csv(tmp_path, dtypes={"x": "float64"}).read([0, 1])["x"].tolist() == [1.0, 1.5]
    if "null" in str(caught.value):
        filled, left_out = follow(caught.value, paths=tmp_path)
        assert filled.read([0, 1])["y"].tolist() == [2, -1]
        assert left_out.read([0, 1])["x"].tolist() == [1, 1]


def test_texts_of_several_lines(tmp_path: Path) -> None:
    rows = [{"x": row, "text": f"a\n{row}\n" * 4} for row in range(100_000)]
    data = loadax.from_csv(write(tmp_path / "x.csv", rows))
    assert len(data) == len(rows)
    assert [plain(data[row]) for row in (0, 77_777, 99_999)] == [rows[0], rows[77_777], rows[99_999]]


def test_long_lines(tmp_path: Path) -> None:
    rows = [{"x": row, "text": f"t{row}" * 400_000} for row in range(5)]
    data = loadax.from_csv(write(tmp_path / "x.csv", rows))
    assert [plain(row) for row in data] == rows


@pytest.mark.parametrize("rows", [1000, 50_000])
def test_a_quote_that_is_not_closed(tmp_path: Path, rows: int) -> None:
    lines = [f"{row},hello" for row in range(rows)]
    lines[rows // 2] = f'{rows // 2},"oops'
    path = tmp_path / "x.csv"
    path.write_text("\n".join(["id,text", *lines, ""]))
    message = rf"^{path}, line {rows // 2 + 2}: the quote that begins '\"oops' is not closed at the end of an entry;"
    with pytest.raises(SourceError, match=message):
        loadax.from_csv(path)
    assert len(loadax.from_csv(path, quote=None)) == rows
    path.write_text(path.read_text().replace('"oops', '"oops"'))
    assert len(loadax.from_csv(path)) == rows


@pytest.mark.parametrize(
    "last", ['"two, entries"', '"with ""quotes"" in, it"', '""', '""""', '"a", "b"'.replace(", ", "")]
)
def test_quotes_that_are_closed(tmp_path: Path, last: str) -> None:
    path = tmp_path / "x.csv"
    path.write_text(f'text,inches\na,5" pipe\n{last} ,"6"\n')
    if last == '"a""b"':
        assert loadax.from_csv(path)[1]["text"] == 'a"b '
    assert len(loadax.from_csv(path)) == 2


TSV = [f"{row}\ttext {row}" for row in range(10)]


@pytest.mark.parametrize(
    ("opening", "closing"), [('\t"text 3', '\t"text 7'), ('\t"text 3', '\ttext 7"'), ('\t"text" 3', "\ttext 7")]
)
@pytest.mark.parametrize("delimiter", ["\t", ",", ";"])
def test_quotes_of_a_file_without_quoting_swallow_no_rows(
    opening: str, closing: str, delimiter: str, tmp_path: Path
) -> None:
    lines = ["id\ttext", *TSV]
    lines[4], lines[8] = f"3{opening}", f"7{closing}"
    path = tmp_path / "x.tsv"
    path.write_text("\n".join([*lines, ""]).replace("\t", delimiter))
    with pytest.raises(SourceError, match=rf"^{path}.*if quotes are part of the texts of this file, pass quote=None"):
        loadax.from_csv(path, delimiter=delimiter)
    rows = loadax.from_csv(path, delimiter=delimiter, quote=None)
    assert [f"{row['id']}\t{row['text']}" for row in rows] == lines[1:]


@pytest.mark.parametrize(
    ("name", "content", "last", "encoding"),
    [
        ("x.csv", 'id,text\n1,"Dear Sir\nHello, you"\n', "Dear Sir\nHello, you", "utf-8"),
        ("x.csv", 'id,text\n1,"a\nno 2,b"\n', "a\nno 2,b", "utf-8-sig"),
        ("x.csv", 'sep=;\nid;text\n1;"a\r\nb"\n', "a\r\nb", "utf-8"),
        ("x.tsv", 'id\ttext\n1\t"def f():\n\treturn 1"\n', "def f():\n\treturn 1", "utf-16"),
        ("x.csv", 'id,text\r1,"a\rb"\r', "a\rb", "utf-8"),
        ("x.csv.gz", 'id,text\n1,"a\n\n""b"""', 'a\n\n"b"', "utf-8"),
    ],
)
def test_texts_of_several_lines_of_every_dialect(
    name: str, content: str, last: str, encoding: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes((gzip.compress if name.endswith("gz") else bytes)(content.encode(encoding)))
    assert plain(loadax.from_csv(path)[0]) == {"id": 1, "text": last}


def test_text_of_several_lines_between_other_quotes(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("id,text\n1,'a\n\"b'\n")
    assert loadax.from_csv(path, quote="'")[0]["text"] == 'a\n"b'


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_text_whose_lines_look_like_rows_is_read_as_error_says(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    for first, delimiter in (("", ","), ("sep=;\n", ";")):
        path.write_text(f'{first}id{delimiter}text\n1{delimiter}"a\n2{delimiter}b"\n', encoding=encoding)
        with pytest.raises(SourceError, match=rf"^{path}: the lines of the quoted text 'a.*' look like rows") as caught:
            loadax.from_csv(path)
        (data,) = follow(caught.value, pyarrow=pa, path=path)
        assert [plain(row) for row in data] == [{"id": 1, "text": f"a\n2{delimiter}b"}]
    path.write_text('id,text\n1,"a\n2,b"\n3,"another\ntext"\n')
    assert loadax.from_csv(path)[0]["text"] == "a\n2,b"


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_quote_without_end_names_its_line(newline: str, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(newline.join(["id,text", '1,"a', 'b"', '2,"open', "3,c", ""]).encode())
    message = rf"^{path}, line 4: the quote that begins '\"open.*' is not closed at the end of an entry"
    with pytest.raises(SourceError, match=message):
        loadax.from_csv(path)


ENTRIES = st.text(st.sampled_from("a1é ,;\t\"'\n\r"), max_size=6)


@settings(max_examples=examples(300))
@given(
    rows=st.lists(st.lists(ENTRIES, min_size=2, max_size=2), max_size=8),
    delimiter=st.sampled_from(",;\t"),
    quote=st.sampled_from("\"'"),
    newline=st.sampled_from(["\n", "\r\n", "\r"]),
    quote_all=st.booleans(),
)
def test_law_rows_are_those_of_the_standard_library(
    rows: list[list[str]], delimiter: str, quote: str, newline: str, quote_all: bool
) -> None:
    rows = [["several\nlines", "0"], *rows]  # no rows without quotes
    out = io.StringIO(newline="")
    # Python quotes only those ends of lines that it writes itself.
    quoting: Any = csv.QUOTE_ALL if quote_all or newline != "\r\n" else csv.QUOTE_MINIMAL
    writer = csv.writer(out, delimiter=delimiter, quotechar=quote, lineterminator=newline, quoting=quoting)
    writer.writerows([["x", "y"], *rows])
    read = list(csv.reader(io.StringIO(out.getvalue(), newline=""), delimiter=delimiter, quotechar=quote))
    assert read == [["x", "y"], *rows]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x.csv")
        path.write_bytes(out.getvalue().encode())
        data = loadax.from_csv(path, delimiter=delimiter, quote=quote, dtypes={"x": str, "y": str})
        assert [[row["x"], row["y"]] for row in data] == rows


def test_another_quote_character(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("id,text\n1,'a, b'\n2,'it''s \"5\"'\n")
    assert [row["text"] for row in loadax.from_csv(path, quote="'")] == ["a, b", 'it\'s "5"']


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_crlf_in_quotes_keeps_its_bytes_across_the_blocks_of_the_parser(newline: str, tmp_path: Path) -> None:
    """apache/arrow#51368."""
    values = [f"{row % 97}" * (row % 13) + "\r\n" * (row % 5) + "é" for row in range(150_000)]
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator=newline).writerows([["s", "t"], *([value, f"{value}!"] for value in values)])
    (tmp_path / "x.csv").write_bytes(out.getvalue().encode())
    read = loadax.from_csv(tmp_path / "x.csv").source.read_examples(
        Visits(np.arange(len(values)), np.zeros(len(values), np.int64))
    )
    assert [(row["s"], row["t"]) for row in read] == [(value, f"{value}!") for value in values]


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_blank_lines_of_one_column_are_rows(newline: str, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    for lines, ending in ((["1", "", "3"], newline), (["1", "", "3", ""], newline), (["", "", "3"], "")):
        path.write_bytes((newline.join(["", "x", *lines]) + ending).encode())
        expected = [int(line or -1) for line in lines]
        assert [int(row["x"]) for row in loadax.from_csv(path, nulls=-1)] == expected
        assert [row["x"] for row in loadax.from_csv(path, dtypes={"x": str})] == lines
        other = loadax.from_arrays({"y": np.arange(len(lines))})
        assert len(loadax.zip({"a": loadax.from_csv(path, nulls=-1), "b": other})) == len(lines)
    path.write_bytes(newline.join(["x,y", "1,2", "", "3,4", "", ""]).encode())
    assert [int(row["x"]) for row in loadax.from_csv(path)] == [1, 3]
    path.write_bytes(b"x")
    assert len(loadax.from_csv(path, dtypes={"x": "int32"})) == 0
    path.write_bytes(newline.join(["x", '"a', "", 'b"', "", "c", ""]).encode())
    assert [row["x"] for row in loadax.from_csv(path)] == [newline.join(["a", "", "b"]), "", "c"]


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("a;b\n1;2\n", ";"),
        ("a;b\n1,5;2,5\n3,5;4\n", ";"),
        ('"a";"b"\n"x;y";"z"\n', ";"),
        ("price, net;b\n1,5;2\n", ";"),
        ("a\tb\n1\t2", "\t"),
        ("a|b\r\n1|2\r\n", "|"),
        ("a;b;c" + "\n1;2;3" * 20_000, ";"),
    ],
)
def test_another_delimiter_is_refused_with_the_right_one(text: str, right: str, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text(text)
    code = re.escape(repr(right))
    message = rf"^{path}: its entries are separated by {code}, not by ','.*; pass delimiter={code}, or, if it is right"
    with pytest.raises(SourceError, match=message):
        loadax.from_csv(path)
    assert len(loadax.from_csv(path, delimiter=right).spec) == text.splitlines()[0].count(right) + 1
    if not {",", '"'} & {*text}:
        (name,) = loadax.from_csv(path, delimiter=",").spec
        assert right in name
    path.write_text(f"sep={right}\n{text}")
    assert len(loadax.from_csv(path).spec) == text.splitlines()[0].count(right) + 1


def test_comma_in_a_tsv_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_text("a,b\n1,2\n")
    with pytest.raises(SourceError, match=r"separated by ',', not by '\\t'"):
        loadax.from_csv(tmp_path / "x.tsv")


@pytest.mark.parametrize("text", ["text\na;b\nc\n", "a;b,c\n1,2\n", "x|y,z\n1|2,3\n", "(x, y)\tid\n1, 2\t5\n"])
def test_other_delimiters_in_some_lines_are_text(text: str, tmp_path: Path) -> None:
    path = tmp_path / ("x.tsv" if "\t" in text else "x.csv")
    path.write_text(text)
    assert len(loadax.from_csv(path)) == text.count("\n") - 1


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-8-sig"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress])
def test_encoding_and_compression_are_recognised_by_first_bytes(
    pack: Callable[[bytes], bytes], encoding: str, tmp_path: Path
) -> None:
    for name in ("x.csv", "x.csv.gz", "x.txt"):
        (tmp_path / name).write_bytes(pack("città,n\nparís,1\n".encode(encoding)))
        assert plain(loadax.from_csv(tmp_path / name)[0]) == {"città": "parís", "n": 1}


def test_remote_files_are_recognised_by_first_bytes(tmp_path: Path, range_server: RangeServer) -> None:
    (tmp_path / "x.csv").write_bytes(gzip.compress("x,y\n1,é\n".encode("utf-16")))
    assert plain(loadax.from_csv(f"{range_server.url}/x.csv")[0]) == {"x": 1, "y": "é"}
    (tmp_path / "x.jsonl").write_bytes(bz2.compress(b'{"x": 1}\n'))
    assert len(loadax.from_jsonl(f"{range_server.url}/x.jsonl", cache=tmp_path / "cache")) == 1


def test_text_cut_in_utf_16_names_file(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes("a,b\n1,2\n".encode("utf-16")[:-1])
    with pytest.raises(SourceError, match=r"x\.csv: 'utf-16-le' codec can't decode .*; copy it again$"):
        loadax.from_csv(tmp_path / "x.csv")


def test_chosen_columns_are_read_of_files_that_have_others_in_any_order(tmp_path: Path) -> None:
    (tmp_path / "0.csv").write_text("a,b\n1,x\n")
    (tmp_path / "1.csv").write_text("c,b,a\n0,,2\n")
    data = loadax.from_csv(tmp_path, columns=["b", "a"], nulls="")
    assert [data[row] for row in range(2)] == [{"a": 1, "b": "x"}, {"a": 2, "b": ""}]
    with pytest.raises(SourceError, match=r"1\.csv: there is a column 'c', which .*0\.csv has not"):
        loadax.from_csv(tmp_path)


@pytest.mark.parametrize(
    ("dtypes", "message"),
    [
        (None, r"column 'place' has texts that are not UTF-8; write the file in UTF-8, as `iconv"),
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


@pytest.mark.parametrize(
    "entries",
    [
        ["18446744073709551615", "9223372036854775809"],
        [str(2**64)],
        [str(-(2**63) - 1), "5"],
        ["1.5", str(2**53 + 1)],
        ["NA", "1", "", str(2**63)],
        [f"+{2**64 + 1}"],
        [f'"{2**100 + 1}"'],
        ["0" * 30 + str(2**64 + 1)],
        ["7" * 5000],
        ["1"] * 70_000 + [str(2**70 + 1)],
    ],
)
def test_integers_are_never_rounded(entries: list[str], tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("\n".join(["id,n", *(f"{entry},{row}" for row, entry in enumerate(entries)), ""]))
    message = (
        rf"^{path}: column 'id' has numbers from 2\*\*53 on, which float64 rounds if they are integers: -?[\dinf.e+]+ "
        r"in row \d+; state the type of its column: dtypes=\{'id': 'uint64'\} if all fit it, or str, or 'float64' "
        r"to round them$"
    )
    with pytest.raises(SourceError, match=message):
        loadax.from_csv(path, nulls="" if "NA" in entries else None)
    wanted = [entry.strip('"') for entry in entries]
    data = loadax.from_csv(path, dtypes={"id": str}, nulls="")
    assert data.read(np.arange(len(entries)))["id"].tolist() == wanted
    if all(entry.isdigit() and len(entry) < 21 and int(entry) < 2**64 for entry in entries):
        data = loadax.from_csv(path, dtypes={"id": "uint64"})
        assert [str(each) for each in data.read(np.arange(len(entries)))["id"].tolist()] == wanted
    assert loadax.from_csv(path, dtypes={"id": "float64"}, nulls=0)[0]["id"].dtype == np.float64


def test_large_floats_of_files_without_long_integers(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    floats = ["18446744073709551615.5", "1e19", "-1e300", "1.2345678901234567", "1.2345678901234567e+100"]
    path.write_text("x,y\n" + "".join(f"{each},999999999999999\n" for each in floats))
    assert loadax.from_csv(path).read(np.arange(5))["x"].tolist() == list(map(float, floats))
    path.write_text(path.read_text() + "1,1234567890123456\n")  # it may be of any column
    with pytest.raises(SourceError, match=r"column 'x' has numbers from .* 1.8446744073709552e\+19 in row 0; state"):
        loadax.from_csv(path)
    data = loadax.from_csv(path, dtypes={"x": "float64"}).read(np.arange(6))
    assert (data["x"][3], data["y"][5]) == (1.2345678901234567, 1234567890123456)


@pytest.mark.parametrize(("delimiter", "quote"), [(".", '"'), ("x", '"'), ("-", "'"), ("^", "."), ("]", "\\")])
def test_rounded_integers_between_odd_characters(delimiter: str, quote: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_text(f"a{delimiter}b\n1{delimiter}{quote}{2**64}{quote}\n2{delimiter}{2**64 + 1}\n")
    with pytest.raises(SourceError, match="column 'b' has numbers from"):
        loadax.from_csv(tmp_path / "a", delimiter=delimiter, quote=quote)


@pytest.mark.parametrize("header", [b'"a', b'a,"b', b"a\0,b\r", b"\0", b"a" * 200_000 + b",b", b'"a\nb",c', b"a,a\0"])
def test_odd_headers_end_in_a_named_error_or_are_read(header: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(header + b"\n" + b"1," * header.count(b",") + b"x\n2\n")
    with pytest.raises(SourceError, match=rf"^{path}") if header.count(b",") or header[:1] == b'"' else nullcontext():
        loadax.from_csv(path)


def test_names_of_columns_that_can_not_be_used(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("a,a\n1,2\n")
    with pytest.raises(SourceError, match=rf"several columns of '{path}' are called 'a'; give each its own name"):
        loadax.from_csv(path)
    path.write_bytes("é\n1\n".encode("latin-1"))
    with pytest.raises(SourceError, match=rf"{path}: 'utf-8' codec can't decode byte 0xe9.*; write the file in UTF-8"):
        loadax.from_csv(path)


def test_an_entry_of_another_type(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("x\n1\nabc\n")
    with pytest.raises(
        SourceError,
        match=r"x.csv: .*'abc'.*; correct that row, or state the type of its column by dtypes=$",
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
    with pytest.raises(ArgumentError, match=r"dtypes\['x'\]='float16': .*, such as 'float32', or str; a map can cast"):
        loadax.from_csv(path, dtypes={"x": "float16"})
    with pytest.raises(ArgumentError, match="delimiter='::': pass a single ASCII character"):
        loadax.from_csv(path, delimiter="::")
    wrong: list[Any] = ["", "::", "é", "\n", False, b'"']
    for quote in wrong:
        with pytest.raises(ArgumentError, match=r"quote=.*: pass a single ASCII character, or None for none"):
            loadax.from_csv(path, quote=quote)
    with pytest.raises(ArgumentError, match="quote=',' is the delimiter too; pass another one, or None for none"):
        loadax.from_csv(path, quote=",")
