"""A function that is given a file of another format names the call that opens it."""

import json
import re
import shutil
import tomllib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import xarray
from pyarrow import parquet

import loadax
from loadax.errors import SourceError
from loadax.files import magic
from loadax.sources import formats
from loadax.sources.format import Format
from loadax.sources.formats import FORMATS
from tests.sources.advice import follow
from tests.sources.shards.corpora import write_tar, write_tfrecord

ROWS = {"a.parquet": 4, "a.jsonl": 5, "a.csv": 6, "a.tfrecord": 7, "a.tar": 8, "a.npy": 9}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("formats")
    parquet.write_table(pa.table({"x": range(4)}), folder / "a.parquet")
    (folder / "a.jsonl").write_text("".join(json.dumps({"x": row}) + "\n" for row in range(5)))
    (folder / "a.csv").write_text("x\n" + "1\n" * 6)
    write_tfrecord(folder / "a.tfrecord", [b"record"] * 7)
    write_tar(folder / "a.tar", {f"{row}.cls": b"3" for row in range(8)})
    np.save(folder / "a.npy", np.zeros((9, 2)))
    return folder


def test_content_says_more_than_the_name(folder: Path, tmp_path: Path) -> None:
    shutil.copy(folder / "a.tar", tmp_path / "a.parquet")
    with pytest.raises(
        SourceError, match=r"a\.parquet is a tar file; open it with loadax\.from_webdataset\("
    ) as caught:
        loadax.from_parquet(tmp_path / "a.parquet")
    assert [len(dataset) for dataset in follow(caught.value)] == [ROWS["a.tar"]]
    for damaged in ("a.parquet", "b"):  # named like its format, or like none: only the error of the function itself
        (tmp_path / damaged).write_bytes(b"neither")
        with pytest.raises(SourceError, match="can't be read as Parquet") as caught:
            loadax.from_parquet(tmp_path / damaged)
        assert "open it with" not in str(caught.value)


def test_csv_whose_first_line_begins_as_a_json_object(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text('{"a": 1},b\n1,2\n')
    assert loadax.from_csv(tmp_path / "x.csv")[0] == {'{"a": 1}': 1, "b": 2}


def test_tokens_are_not_read_from_other_formats(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"a\.tar is a tar file; open it with loadax\.from_webdataset\("):
        loadax.from_tokens(folder / "a.tar", seq_len=3, dtype="uint16")
    np.save(tmp_path / "flat.npy", np.arange(9, dtype=np.int32))
    assert len(loadax.from_tokens(tmp_path / "flat.npy", seq_len=4)) == 2
    (tmp_path / "text.bin").write_text('{"text": "the bytes of a text are tokens too"}\n')
    assert len(loadax.from_tokens(tmp_path / "text.bin", seq_len=7, dtype="uint8")) > 1


@pytest.mark.parametrize("indent", [None, 2])
def test_references_of_kerchunk_are_opened_as_advised(indent: int | None, tmp_path: Path) -> None:
    xarray.Dataset({"x": ("n", np.arange(4.0))}).to_zarr(tmp_path / "store", zarr_format=2, consolidated=False)
    files = [path for path in (tmp_path / "store").rglob("*") if path.is_file()]
    references = {
        path.relative_to(tmp_path / "store").as_posix(): path.read_text() if path.name[0] == "." else [str(path)]
        for path in files
    }
    path = tmp_path / "refs.json"
    path.write_text(json.dumps({"version": 1, "refs": references}, indent=indent))
    for open_ in (loadax.from_zarr, loadax.from_csv):
        with pytest.raises(SourceError, match=r"refs\.json is a file of references to zarr chunks") as caught:
            open_(path)
        (data,) = follow(caught.value, xarray=xarray)
        assert data.read(range(4))["x"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("name", ["a.tfrec", "train00-1338.tfrec", "a.tfrecord-00000-of-00001"])
def test_tfrecord_files_of_any_name_are_found(name: str, folder: Path, tmp_path: Path) -> None:
    shutil.copy(folder / "a.tfrecord", tmp_path / name)
    (tmp_path / f"{name}.idx").write_text("0 17\n17 17\n")
    assert len(loadax.from_tfrecord(tmp_path)) == ROWS["a.tfrecord"]


def test_guide_to_the_command_line_has_the_options_of_every_format() -> None:
    guide = (Path(loadax.__file__).parents[1] / "docs/guides/command_line.md").read_text()
    rows = re.findall(r"^\|.*\| `(from_\w+)` \| (.*) \|$", guide, re.MULTILINE)
    assert {function: set(re.findall("[a-z-]{2,}", options)) for function, options in rows} == {
        function: {"--" + option.replace("_", "-") for option in one.options} for function, one in FORMATS.items()
    }


@pytest.mark.parametrize("record", FORMATS.values(), ids=FORMATS)
def test_extra_of_a_format_installs_what_reads_it(record: Format) -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    installed = project["optional-dependencies"][record.extra] if record.extra else project["dependencies"]
    assert {*record.requires} <= {re.split("[<>=]", requirement)[0] for requirement in installed}


def test_first_bytes_of_every_record_are_looked_at_before_the_records() -> None:
    never = Format("from_nothing", "a file without first bytes of its own").magic
    assert {record.magic for record in formats.KNOWN} - {never} == {*magic.ALL}
