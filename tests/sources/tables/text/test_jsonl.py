"""JSON lines against Python's own reader; compressed files, the index, and lines that are no rows."""

import gzip
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import loadax
from loadax.errors import ArgumentError, LeafError, LeafTypeError, SourceError
from loadax.sources.tables.text import jsonl
from loadax.testing import check_source
from tests.sources.advice import follow
from tests.sources.tables.arrow.test_table import plain

ROWS: list[dict[str, Any]] = [
    {
        "x": row,
        "score": row / 2,
        "tokens": list(range(row % 5)),
        "text": f"ü{row}",
        "when": "2020-01-01",
        "in": {"a": row},
    }
    for row in range(300)
]
NUMBERS = ["x", "score", "in"]


def write(path: Path, rows: list[Any], end: str = "\n") -> Path:
    path.write_text("\n".join(map(json.dumps, rows)) + end)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files: one with blank lines at its end, one without a newline there."""
    write(tmp_path / "a.jsonl", ROWS[:170], "\n\n\r\n")
    write(tmp_path / "b.ndjson", ROWS[170:], "")
    return tmp_path


@pytest.mark.parametrize("window", [8 << 20, 7])
def test_rows_are_the_lines(folder: Path, window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "WINDOW", window)
    data = loadax.from_jsonl(folder)
    assert [plain(row) for row in data] == ROWS
    rows = np.random.default_rng(0).integers(0, 300, 40)
    assert data.map(lambda row: row["x"]).read(rows).tolist() == rows.tolist()


@pytest.mark.processes
def test_the_law_of_sources(folder: Path) -> None:
    check_source(loadax.from_jsonl(folder, columns=NUMBERS).source)


def test_dtypes_are_stated_or_inferred(folder: Path) -> None:
    data = loadax.from_jsonl(folder, dtypes={"x": "float32", "tokens": "uint16"})
    row = data[3]
    assert (row["x"].dtype, row["tokens"].dtype, row["score"]) == (np.float32, np.uint16, 1.5)
    packed = data.map(lambda row: row["tokens"]).pack(7)
    plainly = loadax.from_source([np.array(row["tokens"], np.uint16) for row in ROWS]).pack(7)
    assert [plain(one) for one in packed] == [plain(one) for one in plainly]
    tokens = loadax.from_jsonl(folder, columns="tokens", dtypes={"tokens": "uint16"}).pack(7)
    assert plain(tokens[5])["tokens"] == plain(plainly[5])["tokens"]


@pytest.mark.parametrize("ending", [".gz", ".GZ", ".zst"])
def test_compressed_files_are_decompressed_once(tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    content = write(tmp_path / "x", ROWS).read_bytes()
    path = tmp_path / f"x.jsonl{ending}"
    half = len(content) // 2
    pack = gzip.compress if ending.lower() == ".gz" else (lambda part: pa.compress(part, codec="zstd", asbytes=True))
    path.write_bytes(pack(content[:half]) + pack(content[half:]))  # two members, or frames
    with pytest.raises(ArgumentError, match=r"x.jsonl.* is compressed, so that no row .*; pass cache=FOLDER"):
        loadax.from_jsonl(path)
    assert [plain(row) for row in loadax.from_jsonl(path, cache=tmp_path / "cache")] == ROWS
    monkeypatch.setattr("loadax.sources.tables.text.decompress._decompress", None)
    assert plain(loadax.from_jsonl(path, cache=tmp_path / "cache")[299]) == ROWS[299]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"x": ', "it is not JSON: .*; correct the line, or leave it out"),
        ("[1, 2]", "a line is not an object; correct the line"),
        ("null", "a line is not an object; correct the line"),
        ('{"x": 1}{"x": 2}', "it is not JSON: Extra data"),
        ('{"x": "a"}', r"Column\(/x\) changed from number to string .*; correct the line, or state"),
        (
            '{"x": 1.5}',
            r"to int64, .*; .*, or state a type that all rows have by dtypes=, such as 'uint64' or 'float64'\n",
        ),
    ],
)
@pytest.mark.parametrize("early", [True, False])
def test_a_line_that_is_no_row_is_named(tmp_path: Path, line: str, message: str, early: bool) -> None:
    """Where types are inferred from it, and where they are not."""
    # Types are inferred from 2,048 rows; lines of which one is broken are parsed one by one.
    lines = ['{"a": 1, "x": 1}'] * (300 if early else 5000)
    bad = 8 if early else 3333
    lines[bad] = line.replace('"x": 1.5', '"a": 2, "x": 1.5')
    path = tmp_path / "x.jsonl"
    path.write_text("\n\n".join(lines))
    if early and line == '{"x": 1.5}':
        assert loadax.from_jsonl(path)[8]["x"] == 1.5
        return
    if early and line == '{"x": "a"}':
        message = (
            r"JSON parse error: Column\(/x\) changed from number to string; correct the line: all rows of a column"
        )
    with pytest.raises(SourceError, match=rf"{path}, line {2 * bad + 1}: .*{message}"):
        loadax.from_jsonl(path).read(range(bad - 5, bad + 5))
    if line != '{"x": "a"}':  # of which types could not be inferred
        assert loadax.from_jsonl(path)[bad + 1]["x"] == 1
    if line == '{"x": 1.5}':
        assert loadax.from_jsonl(path, dtypes={"x": "float64"})[bad]["x"] == 1.5


def test_a_file_of_nulls(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(" null \n")
    with pytest.raises(SourceError, match=rf"^{path}, line 1: a line is not an object; correct the line, or leave it"):
        loadax.from_jsonl(path)


@pytest.mark.parametrize("before", [0, 3000])
@pytest.mark.parametrize(
    ("first", "long", "dtype"),
    [
        ("9007199254740993", "9223372036854775808", "uint64"),
        ("-1", "9223372036854775808", "float64"),
        ("1", "18446744073709551616", "float64"),
        ("[1, 2]", "[3, 18446744073709551615]", "uint64"),
    ],
)
def test_integers_that_are_too_large_are_not_rounded(
    tmp_path: Path, first: str, long: str, dtype: str, before: int
) -> None:
    """Neither where types are inferred from them, nor where they are not."""
    lines = [f'{{"x": {first}}}'] * (1 + before) + [f'{{"x": {long}}}'] + [f'{{"x": {first}}}'] * before
    path = tmp_path / "x.jsonl"
    path.write_text("\n".join(lines))
    with pytest.raises(SourceError, match=rf"x.jsonl, line {2 + before}: .*state .* type.*dtypes=.*'uint64'") as caught:
        loadax.from_jsonl(path)[1 + before]
    if not before:
        assert f"column 'x' has the integer {long.rpartition(', ')[2].strip('[]')}" in str(caught.value)
    if dtype == "float64":
        with pytest.raises(SourceError, match=r"line \d+: .* to uint64, .*, such as 'uint64' or 'float64'"):
            loadax.from_jsonl(path, dtypes={"x": "uint64"}).read([0, 1 + before])
    data = loadax.from_jsonl(path, dtypes={"x": dtype})
    assert np.asarray(data[1 + before]["x"]).tolist() == np.array(json.loads(long), dtype).tolist()
    assert np.asarray(data[0]["x"]).tolist() == np.array(json.loads(first), dtype).tolist()


ROUNDED = 2**53 + 1


@pytest.mark.parametrize("before", [0, 3000])
@pytest.mark.parametrize(
    ("plain", "long", "column"),
    [
        ("1.5", "%d", "x"),
        ("1.5", "-%d", "x"),
        ("[null, 0.5]", "[null, %d]", "x"),
        ("[0.5]", "[1, %d]", "x"),
        ("[[0.5], []]", "[[], [null, %d]]", "x"),
        ('{"a": 0.5}', '{"a": %d}', "x.a"),
        ('{"a": {"b": [0.5]}}', '{"a": {"b": [1.5, %d]}}', "x.a.b"),
        ('[{"a": 0.5}]', '[{"a": 2}, {"a": %d}]', "x.a"),
        ('[[{"a": {"b": 0.5}}]]', '[[{"a": {"b": %d}}], []]', "x.a.b"),
    ],
)
def test_integers_beside_floats_are_not_rounded_at_any_depth(
    tmp_path: Path, plain: str, long: str, column: str, before: int
) -> None:
    """In rows that types are inferred from, and in others."""
    path = tmp_path / "x.jsonl"
    lines = [f'{{"y": 1, "x": {plain}}}'] * (1 + before) + [f'{{"y": 2, "x": {long % ROUNDED}}}']
    lines += lines[:1] * (before + before // 3)
    path.write_text("\n".join(lines) + "\n")
    message = rf"x.jsonl, line {2 + before}: column '{column}' has the integer -?\d+, which float64 may round; (.*)"
    with pytest.raises(SourceError, match=message) as caught:
        loadax.from_jsonl(path, nulls=0.0)[1 + before]
    found = re.search(message, str(caught.value))
    assert found is not None
    assert loadax.from_jsonl(path, columns="y")[1 + before]["y"] == 2
    if "dtypes" in found[1]:
        data = loadax.from_jsonl(path, dtypes={"x": "float64"}, nulls=0.0)
    else:
        path.write_text(path.read_text().replace(str(ROUNDED), f"{ROUNDED}.0"))
        data = loadax.from_jsonl(path)
    assert re.search(r"9007199254740992|9\.00719925e\+15", str(data[1 + before]["x"]))


def test_long_integers_that_floats_hold_are_read(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    values = [0.5, 2**60, -(2**63), 9007199254740994]
    path.write_text("".join(f'{{"x": [{value}], "id": {2**53 + 1}, "t": "{2**64 + 1}"}}\n' for value in values))
    data = loadax.from_jsonl(path)
    assert [float(row["x"][0]) for row in data] == values
    assert {(int(row["id"]), row["t"]) for row in data} == {(2**53 + 1, str(2**64 + 1))}


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32"])
def test_other_encodings_are_refused_by_name(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes('{"x": "é"}\n{"x": "b"}\n'.encode(encoding))
    with pytest.raises(SourceError, match=r"x\.jsonl: the file is in UTF-(16|32|16LE); write it in UTF-8: ") as caught:
        loadax.from_jsonl(path)
    command = str(caught.value).partition("UTF-8: ")[2].split()
    (tmp_path / "y.jsonl").write_bytes(subprocess.run(command, capture_output=True, check=True).stdout)
    assert [row["x"] for row in loadax.from_jsonl(tmp_path / "y.jsonl")] == ["é", "b"]


def test_long_numbers_with_fractions_stay_floats(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"x": 0.00012345678901234567}\n{"x": 1e300}\n{"x": 9223372036854775808}\n')
    assert loadax.from_jsonl(path).read([0, 1, 2])["x"].tolist() == [0.00012345678901234567, 1e300, 2.0**63]


def test_broken_lines_are_logged_when_types_are_inferred(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"x": 1}\n{"x": \n{"x": 2}\n[3]\n')
    data = loadax.from_jsonl(path)
    assert f"{path}, line 2 can't be read, nor 1 more of 4 lines; reading such a row is an error" in caplog.text
    assert data.read([0, 2])["x"].tolist() == [1, 2]
    for row in (1, 3):
        with pytest.raises(SourceError, match=rf"line {row + 1}: (it is not JSON|a line is not an object)"):
            data.read([row])


def test_a_column_of_nulls_has_the_stated_dtype(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"x": null}\n{"x": null}\n')
    with pytest.raises(
        LeafTypeError, match=r"'x' has nothing but nulls, .*; state it, as in dtypes=\{'x': 'float64'\}\n"
    ):
        loadax.from_jsonl(path)
    data = loadax.from_jsonl(path, dtypes={"x": "float64"}, nulls=-1.0)
    assert data.read([0, 1])["x"].tolist() == [-1.0, -1.0]


@pytest.mark.parametrize("line", ['{"x": "\\ud83d"}', '{"x": 1, "x": 2}'])
def test_lines_that_only_arrow_refuses_name_the_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(line)
    with pytest.raises(SourceError, match=r"x.jsonl, line 1: .*; correct the line, or leave it out$"):
        loadax.from_jsonl(path)


@pytest.mark.parametrize(
    ("broken", "line"),
    [
        ('{"x": 1}{"x": 2}\n   \n', 1),  # as many objects as lines
        ('{"x": 1}{"x": 2}\n{"x": \n3}\n', 1),
        ('{"x": 1\n}\n{"x": 2}{"x": 3}\n', 1),
    ],
)
def test_objects_that_are_not_one_a_line_are_refused_whatever_is_read_with_them(
    tmp_path: Path, broken: str, line: int
) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(broken)
    with pytest.raises(SourceError, match=rf"{path}, line {line}: it is not JSON"):
        loadax.from_jsonl(path)


@pytest.mark.parametrize("rows", [[0, 1], [1, 0]])
def test_a_byte_order_mark_is_not_part_of_the_first_line(tmp_path: Path, rows: list[int]) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"x": 0}\r\n {"x": 1} \r\n')
    assert loadax.from_jsonl(path).read(rows)["x"].tolist() == rows


def test_a_missing_entry_is_a_null(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", [{"x": 1, "y": 2}, {"y": 3}, {"x": None, "y": 4}])
    data = loadax.from_jsonl(path)
    with pytest.raises(SourceError, match=rf"column 'x' has 2 nulls, the first in {path}, line 2, which") as caught:
        data.read([0, 1, 2])
    filled, left_out = follow(caught.value, paths=path)
    assert filled.read([0, 1, 2])["x"].tolist() == [1, -1, -1]
    assert plain(left_out[1]) == {"y": 3}


def test_lists_of_changing_length_are_named_by_row(folder: Path) -> None:
    message = rf"^row 174 \({folder}/b.ndjson, byte \d+\): leaf \['tokens'\] .* rows are ragged: pad them with"
    with pytest.raises(LeafError, match=message):
        loadax.from_jsonl(folder, columns="tokens").read([175, 174])


def test_files_and_arguments_that_can_not_be_used(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text("\n\n")
    with pytest.raises(SourceError, match=r"x.jsonl: there are no lines; a row is a line with a JSON object"):
        loadax.from_jsonl(tmp_path)
    write(tmp_path / "x.jsonl", ROWS)
    for dtypes, message in [
        ({"none": "int32"}, "dtypes: there is no column 'none'"),
        (["x"], r"dtypes=\['x'\]: pass a dict such as \{'x': 'float32'\}"),
        ({"x": str}, r"dtypes\['x'\]=<class 'str'>: pass a dtype of numbers or bools, such as 'float32'; a map"),
    ]:
        with pytest.raises(ArgumentError, match=message):
            loadax.from_jsonl(tmp_path, dtypes=dtypes)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(5))
def test_error_names_the_line_whatever_is_between_lines(tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    bad: dict[int, str] = {}  # file and line, by row
    row = 0
    for name in "ab":
        path = tmp_path / f"{name}.jsonl"
        lines = list[bytes]()
        for _ in range(40):
            lines += [[b"", b"\r"][kind] for kind in random.integers(0, 2, random.integers(0, 3))]
            is_bad = row > 4 and random.random() < 0.1
            if is_bad:
                bad[row] = f"{path}, line {len(lines) + 1}: "
                lines.append([b'{"x": 1', b'{"x": 1]}', b'{"x": 1}{"x": 2}'][random.integers(3)])
            else:
                lines.append(b'{"x": %d}' % row + b"\r" * int(random.integers(2)))
            row += 1
        path.write_bytes(b"\n".join(lines))
    data = loadax.from_jsonl(tmp_path / "*.jsonl", dtypes={"x": "int64"})
    assert len(data) == row
    for number, text in bad.items():
        with pytest.raises(SourceError, match=re.escape(text)):
            data[number]
    for _ in range(10):
        rows = np.sort(random.choice(row, 25, replace=False))
        named = [number for number in rows.tolist() if number in bad]
        if not named:
            assert data.read(rows)["x"].tolist() == rows.tolist()
            continue
        with pytest.raises(SourceError) as caught:
            data.read(rows)
        assert any(str(caught.value).startswith(bad[number]) for number in named)
        assert any(f"loadax: reading row {number}" in caught.value.__notes__ for number in named)
