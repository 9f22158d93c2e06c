"""Hive partitions: the columns in the names of folders are those of pyarrow.dataset."""

import pickle
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.dataset
import pytest
from pyarrow import parquet

import loadax
from loadax.errors import ArgumentError, SourceError
from loadax.testing import check_source
from tests.servers.s3 import S3Server
from tests.sources.advice import follow

pytest_plugins = ["tests.servers.fixtures"]

LABELS = ["cat", "dog/x y", "ü=1"]


def write(folder: Path, within: str, **columns: Any) -> Path:
    path = folder / within / "part-0.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.table(columns), path, row_group_size=2)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, label in enumerate(LABELS):
        for month in (1, 12):
            write(tmp_path, f"label={quote(label, safe='')}/month={month:02}", x=[number * 100 + month] * 3)
    return tmp_path


def test_partitions_are_columns_as_pyarrow_reads_them(folder: Path) -> None:
    data = loadax.from_parquet(f"{folder}/**/*.parquet")
    theirs = pyarrow.dataset.dataset(folder, partitioning="hive").to_table().to_pylist()
    source: Any = data.source
    mine = [
        {"x": int(row["x"]), "month": int(row["month"]), "label": source.classes["label"][row["label"]]} for row in data
    ]
    assert sorted(mine, key=str) == sorted(
        ({key: row[key] for key in ("x", "month", "label")} for row in theirs), key=str
    )
    assert (data[0]["month"].dtype, data[0]["label"].dtype) == ("int32", "int32")
    check_source(data.source, loader=False)


@pytest.mark.parametrize("columns", ["label", ["label"], ["month", "x"], ["x"]])
@pytest.mark.parametrize("memory_bytes", [0, 1 << 30])
def test_partitions_are_chosen_by_name(folder: Path, columns: Any, memory_bytes: int) -> None:
    whole = loadax.from_parquet(f"{folder}/**/*.parquet").read(range(18))
    data = loadax.from_parquet(f"{folder}/**/*.parquet", columns=columns, memory_bytes=memory_bytes)
    read = pickle.loads(pickle.dumps(data.source)).read(range(18))
    assert {name: leaf.tolist() for name, leaf in read.items()} == {
        name: whole[name].tolist() for name in ([columns] if isinstance(columns, str) else columns)
    }


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        ("{}/label=cat/**/*.parquet", {"month"}),
        ("{}/label=cat/month=0*/*.parquet", {"month"}),
        ("{}/label={{cat,none}}/**/*.parquet", {"label", "month"}),
        ("{}/label=cat/month=01", set()),
        ("{}/label=cat/month=01/part-0.parquet", set()),
        (["{}/label=cat/month=01/part-0.parquet", "{}/label=cat/month=12/part-0.parquet"], {"month"}),
        (["{}/label=cat/month=01", "{}/label=cat/month=12"], {"month"}),
        ("file://{}/label=cat/**/*.parquet", {"month"}),
    ],
)
def test_only_folders_below_what_all_paths_name_are_partitions(folder: Path, paths: Any, expected: set[str]) -> None:
    if "none" in paths:
        write(folder, "label=none/month=01", x=[1])
    given = [path.format(folder) for path in paths] if isinstance(paths, list) else paths.format(folder)
    assert set(loadax.from_parquet(given)[0]) == {"x"} | expected


@pytest.mark.parametrize(
    ("values", "dtype", "expected"),
    [
        (["1", "-2"], "int32", [1, -2]),
        (["1", str(1 << 40)], "int64", [1, 1 << 40]),
        (["1", "a"], "int32", [0, 1]),
        (["1.5", "2"], "int32", [0, 1]),
        (["1", str(1 << 70)], "int32", [0, 1]),
    ],
)
def test_types_of_partitions_are_those_of_all_files(
    tmp_path: Path, values: list[str], dtype: str, expected: list[int]
) -> None:
    files = [write(tmp_path, f"k={value}", x=[0]) for value in values]
    read = loadax.from_parquet(files).read([0, 1])
    assert (read["k"].dtype, read["k"].tolist()) == (dtype, expected)


@pytest.mark.parametrize("absent", ["k=__HIVE_DEFAULT_PARTITION__", "."])
def test_a_null_partition_is_named_by_its_file(tmp_path: Path, absent: str) -> None:
    files = [write(tmp_path, "k=5", x=[0]), write(tmp_path, absent, x=[1])]
    with pytest.raises(SourceError, match=rf"column 'k' has a null in row 0 of {files[1].resolve()}") as caught:
        loadax.from_parquet(files)
    filled, left_out = follow(caught.value, paths=files)
    assert filled.read([0, 1])["k"].tolist() == [5, -1]
    assert set(left_out[1]) == {"x"}


def test_the_partition_takes_the_place_of_a_column_of_the_file(tmp_path: Path) -> None:
    files = [write(tmp_path, f"k={number}", k=["in the file"], x=[number]) for number in (3, 4)]
    assert loadax.from_parquet(files).read([0, 1])["k"].tolist() == [3, 4]


def test_classes_of_partitions_are_stated(folder: Path) -> None:
    names = ["cat", "ü=1", "dog/x y"]
    data = loadax.from_parquet(f"{folder}/**/*.parquet", classes={"label": names})
    assert data.read([0, 17])["label"].tolist() == [1, 2]
    with pytest.raises(
        SourceError, match=r"row 0 of .*: column 'label' has the category 'ü=1', which is not in classes"
    ):
        loadax.from_parquet(f"{folder}/**/*.parquet", classes={"label": names[::2]})[0]
    with pytest.raises(ArgumentError, match="classes: column 'month' contains int32, not categories or texts"):
        loadax.from_parquet(f"{folder}/**/*.parquet", classes={"month": names})


def test_partitions_in_a_bucket_are_those_on_disk(folder: Path, s3_server: S3Server, bucket: str) -> None:
    s3_server.upload(folder, bucket, "t/")
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.parquet"))
    local = loadax.from_parquet([folder / file for file in files])
    remote = loadax.from_parquet([f"s3://{bucket}/t/{quote(file)}" for file in files])
    assert {name: leaf.tolist() for name, leaf in remote.read(range(18)).items()} == {
        name: leaf.tolist() for name, leaf in local.read(range(18)).items()
    }
    assert remote.source.classes == local.source.classes
