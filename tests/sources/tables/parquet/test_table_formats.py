"""Files of Delta, Iceberg, Hudi and Lance tables are refused unless the table's log says that they count."""

import json
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from pyarrow import parquet

import loadax
from loadax.errors import SourceError
from tests.servers.s3 import S3Server
from tests.sources.advice import follow, lines

pytest_plugins = ["tests.servers.fixtures"]


def write_delta(folder: Path) -> None:
    """The rows 1 to 3 in two partitions, of which the first has been replaced by 10."""
    rows = pa.table({"x": [1, 2, 3], "part": ["a", "a", "b"]})
    deltalake.write_deltalake(str(folder), rows, partition_by=["part"])
    one = pa.table({"x": [10], "part": ["a"]})
    deltalake.write_deltalake(str(folder), one, mode="overwrite", predicate="part = 'a'")


def values(paths: Any) -> list[int]:
    return sorted(int(row["x"]) for row in loadax.from_parquet(paths, columns="x"))


WAYS: dict[str, Callable[[Path], Any]] = {
    "folder": str,
    "folder of a partition": lambda folder: folder / "part=a",
    "pattern": lambda folder: folder / "**" / "*.parquet",
    "pattern of a partition": lambda folder: folder / "part=a" / "*.parquet",
    "pattern above": lambda folder: folder.parent / "*" / "*" / "*.parquet",
    "all files": lambda folder: sorted(folder.rglob("*.parquet")),
    "a replaced file": lambda folder: next(
        file for file in sorted(folder.rglob("*.parquet")) if str(file) not in deltalake.DeltaTable(folder).file_uris()
    ),
    "URL": lambda folder: folder.as_uri(),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_replaced_files_of_delta_are_refused_with_the_line_that_reads_the_others(
    way: Callable[[Path], Any], tmp_path: Path
) -> None:
    write_delta(tmp_path / "t")
    with pytest.raises(SourceError, match=r"/t is a Delta table, whose log says which of its files count") as caught:
        loadax.from_parquet(way(tmp_path / "t"), columns="x")
    (data,) = follow(caught.value, deltalake=deltalake)
    assert values(deltalake.DeltaTable(tmp_path / "t").file_uris()) == [3, 10]
    assert sorted(int(row["x"]) for row in data) == [3, 10]


def test_files_of_delta_that_count_are_read_one_by_one(tmp_path: Path) -> None:
    write_delta(tmp_path / "t")
    files = deltalake.DeltaTable(tmp_path / "t").file_uris()
    assert sorted(value for file in files for value in values(file)) == [3, 10]


def test_delta_log_that_can_not_be_read_names_the_package(tmp_path: Path) -> None:
    write_delta(tmp_path / "t")
    files = deltalake.DeltaTable(tmp_path / "t").file_uris()
    for log in (tmp_path / "t" / "_delta_log").iterdir():
        log.write_bytes(b"rubbish")
    with pytest.raises(SourceError, match=r"t is a Delta table, .*, but it can't be read: .*; pip install deltalake"):
        loadax.from_parquet(files)


def test_files_with_deleted_rows_are_refused(tmp_path: Path) -> None:
    deltalake.write_deltalake(str(tmp_path / "t"), pa.table({"x": [1, 2, 3]}))
    (file,) = deltalake.DeltaTable(tmp_path / "t").file_uris()
    _delete_first_row(tmp_path / "t", Path(file))
    with pytest.raises(SourceError, match=r"Files of which single rows were deleted can't be read"):
        loadax.from_parquet([file])


def _delete_first_row(folder: Path, file: Path) -> None:
    """Adds a deletion vector to the log: a bitmap of row 0, in the encoding Z85."""
    bitmap = struct.pack("<iQIIIHHIH2x", 1681511377, 1, 0, 12346, 1, 0, 0, 16, 0)
    letters = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    words = struct.unpack(f">{len(bitmap) // 4}I", bitmap)
    encoded = "".join(letters[word // 85**power % 85] for word in words for power in (4, 3, 2, 1, 0))
    vector = {"storageType": "i", "pathOrInlineDv": encoded, "sizeInBytes": 34, "cardinality": 1}
    add = {"path": file.name, "partitionValues": {}, "size": file.stat().st_size, "modificationTime": 0}
    features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
    actions: Sequence[dict[str, Any]] = (
        {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}},
        {"remove": {"path": file.name, "deletionTimestamp": 0, "dataChange": True}},
        {"add": {**add, "dataChange": True, "stats": '{"numRecords": 3}', "deletionVector": vector}},
    )
    (folder / "_delta_log" / f"{1:020}.json").write_text("\n".join(map(json.dumps, actions)))


OTHERS = {
    "an Iceberg table": (
        "metadata/00002-a.metadata.json",
        r"StaticTable\.from_metadata\('.*/00010-a\.metadata",
    ),
    "a Hudi table": (".hoodie/hoodie.properties", r"hudi\.HudiTable\('.*/t'\)"),
    "a Lance table": ("_versions/1.manifest", r"lance\.dataset\('.*/t'\)"),
}


@pytest.mark.parametrize(("noun", "log", "line"), [(noun, *rest) for noun, rest in OTHERS.items()], ids=OTHERS)
def test_tables_of_other_formats_are_refused_with_a_line(noun: str, log: str, line: str, tmp_path: Path) -> None:
    folder = tmp_path / "t"
    (folder / "data").mkdir(parents=True)
    parquet.write_table(pa.table({"x": [1]}), folder / "data" / "a.parquet")
    assert values(folder / "data") == [1]
    for name in (log, log.replace("00002", "00010"), log.replace("00002", "00009")):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    for path in (folder, folder / "data", folder / "data" / "*.parquet", folder / "data" / "a.parquet"):
        with pytest.raises(SourceError, match=rf"t is {noun}, whose log .*; read it with loadax\.\w+\(.*{line}"):
            loadax.from_parquet(path)


def test_folders_called_metadata_are_no_table(tmp_path: Path) -> None:
    (tmp_path / "metadata").mkdir()
    (tmp_path / "metadata" / "notes.json").touch()
    (tmp_path / "_versions").mkdir()
    parquet.write_table(pa.table({"x": [1]}), tmp_path / "a.parquet")
    assert values(tmp_path) == [1]


def test_delta_in_a_bucket(s3_server: S3Server, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_delta(tmp_path / "t")
    s3_server.upload(tmp_path / "t", bucket, "lake/t/")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    url = f"s3://{bucket}/lake/t"
    every = [f"{url}/{file.relative_to(tmp_path / 't')}" for file in sorted((tmp_path / "t").rglob("*.parquet"))]
    for path in (url, f"{url}/", f"{url}/part=a/", f"{url}/*/*.parquet", f"{url}/**/*.parquet", every):
        with pytest.raises(SourceError, match=rf"{url} is a Delta table") as caught:
            loadax.from_parquet(path, columns="x")
        assert lines(str(caught.value)) == [f"loadax.from_parquet(deltalake.DeltaTable('{url}').file_uris())"]
    assert values(deltalake.DeltaTable(url).file_uris()) == [3, 10]
