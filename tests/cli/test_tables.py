"""The commands on files of tables."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

import loadax
from loadax.cli import main


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    table = pa.table({"x": range(40), "y": [row / 2 for row in range(40)], "name": [str(row) for row in range(40)]})
    (tmp_path / "parts").mkdir()
    parquet.write_table(table, tmp_path / "parts" / "a.parquet", row_group_size=10)
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    (tmp_path / "x.csv").write_text("x,y\n1,2.5\n")
    return tmp_path


@pytest.mark.parametrize(
    ("path", "lines"),
    [
        ("parts", ["40 rows in 1 file", "4 chunks of 10 rows", "\nloadax.from_parquet({!r})\n"]),
        ("parts/*.parquet", ["40 rows in 1 file", "['name']  a single value  object"]),
        (
            "x.jsonl",
            ["40 rows in 1 file", "['y']     a single value  float64", "\nloadax.from_jsonl({!r})\n"],
        ),
        ("x.csv", ["1 row in 1 file", "\nloadax.from_csv({!r})\n"]),
    ],
)
def test_inspect_shows_columns_and_row_groups(folder: Path, path: str, lines: list[str], capsys: Any) -> None:
    assert main(["inspect", str(folder / path)]) == 0
    shown = capsys.readouterr().out
    for line in lines:
        assert line.format(str(folder / path)) in shown, shown


def test_inspect_shows_row_groups_as_chunks(folder: Path, capsys: Any) -> None:
    parquet.write_table(pa.table({"x": range(8000)}), folder / "large.parquet", row_group_size=2000)
    assert main(["inspect", str(folder / "large.parquet")]) == 0
    shown = capsys.readouterr().out
    assert "4 chunks of 2,000 rows, each decoded whole" in shown


@pytest.mark.parametrize("path", ["parts", "parts/a.parquet", "x.jsonl"])
def test_convert_writes_columns_of_tables(folder: Path, path: str) -> None:
    out = folder / "out.zarr"
    assert main(["convert", str(folder / path), str(out), "--columns", "x,y"]) == 0
    assert loadax.from_zarr(out).read([39])["y"].tolist() == [19.5]


def test_compressed_json_lines_are_kept_in_the_cache(folder: Path, capsys: Any) -> None:
    (folder / "x.jsonl.gz").write_bytes(gzip.compress((folder / "x.jsonl").read_bytes()))
    arguments = ["convert", str(folder / "x.jsonl.gz"), str(folder / "out.zarr"), "--columns", "x"]
    assert main(arguments) == 2
    assert "pass cache=FOLDER, a local folder for its decompressed content, or decompress it (--cache)" in (
        capsys.readouterr().err
    )
    assert main([*arguments, "--cache", str(folder / "cache")]) == 0
    assert loadax.from_zarr(folder / "out.zarr").read([39])["x"].tolist() == [39]
    assert main(["inspect", str(folder / "x.csv"), "--cache", str(folder / "cache")]) == 2
    assert "which takes no --cache; leave it out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"x": 1}\n{"x": null}\n', "say what nulls become: loadax.from_jsonl(paths, nulls={'x': -1})"),
        ('{"x": "a"}\n', "is not numeric, but write_zarr writes numbers; convert it to numbers in a map"),
    ],
)
def test_what_needs_code_goes_into_a_function(content: str, message: str, folder: Path, capsys: Any) -> None:
    path = folder / "bad.jsonl"
    path.write_text(content)
    assert main(["convert", str(path), str(folder / "out.zarr")]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert f"a function that returns the dataset: pass MODULE:FUNCTION instead of {path}\n" in said


def test_lists_of_any_length_are_converted(folder: Path) -> None:
    (folder / "lists.jsonl").write_text('{"x": [1]}\n{"x": [1, 2]}\n')
    assert main(["convert", str(folder / "lists.jsonl"), str(folder / "out.zarr")]) == 0
    assert [row["x"].tolist() for row in loadax.from_zarr(folder / "out.zarr")] == [[1], [1, 2]]


def test_options_of_other_kinds_are_refused(folder: Path, capsys: Any) -> None:
    assert main(["convert", str(folder / "parts"), str(folder / "out.zarr"), "--dtype", "int8"]) != 0
    assert "which takes no --dtype; leave it out" in capsys.readouterr().err
    assert main(["inspect", str(folder / "none.parquet")]) != 0
    assert "none.parquet does not exist; pass the path or URL of" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--columns", "--variables"])
def test_columns_are_arrays_of_zarr_too(option: str, folder: Path, capsys: Any) -> None:
    assert main(["convert", str(folder / "parts"), str(folder / "out.zarr"), option, "y,x"]) == 0
    capsys.readouterr()
    assert main(["inspect", str(folder / "out.zarr"), option, "y"]) == 0
    shown = capsys.readouterr().out
    assert "zarr3 group, 1 array of 40 rows" in shown
    assert "variables=('y',)" in shown
    assert main(["inspect", str(folder / "out.zarr"), option, "z"]) == 2
    assert "has no array 'z', but x, y; pass these" in capsys.readouterr().err


def test_a_list_beside_images_is_not_the_data(folder: Path, capsys: Any) -> None:
    (folder / "photos").mkdir()
    Image.new("RGB", (8, 8)).save(folder / "photos" / "0.png")
    (folder / "photos" / "labels.csv").write_text("file,label\n0.png,cat\n")
    assert main(["convert", str(folder / "photos"), str(folder / "out.zarr")]) == 0
    assert loadax.from_zarr(folder / "out.zarr").read([0])["image"].shape == (1, 8, 8, 3)


def test_inspect_of_nested_folders_uses_the_text_of_the_function(tmp_path: Path, capsys: Any) -> None:
    for name in ("hive/year=2026/part-0.parquet", "hive/year=2027/part-0.parquet", "spark/day.parquet/part-0.parquet"):
        (tmp_path / name).parent.mkdir(parents=True)
        parquet.write_table(pa.table({"x": [1]}), tmp_path / name)
    assert main(["inspect", str(tmp_path / "hive")]) == 2
    advice = capsys.readouterr().err
    assert "the folder has no .parquet file, but year=2026, year=2027; pass the files, or a pattern such as" in advice
    assert main(["inspect", str(tmp_path / "hive" / "**" / "*.parquet")]) == 0
    assert main(["inspect", str(tmp_path / "spark")]) == 0
    assert "1 row in 1 file" in capsys.readouterr().out
    (tmp_path / "kaggle").mkdir()
    (tmp_path / "kaggle" / "a.tfrec").write_bytes(b"x")
    assert main(["inspect", str(tmp_path / "kaggle")]) == 2
    assert "a.tfrec" in capsys.readouterr().err
    (tmp_path / "nothing" / "below").mkdir(parents=True)
    assert main(["inspect", str(tmp_path / "nothing")]) == 2
    assert "contains no zarr array" in capsys.readouterr().err
