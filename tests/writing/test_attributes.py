"""Names of categories and units of times: stores keep them, and give them back as the data did."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import zarr
from PIL import Image
from pyarrow import parquet

import loadax
from loadax.cli import main

TABLE = pa.table(
    {
        "c": pa.array(["x", "y", "x"]).dictionary_encode(),
        "t": pa.array([1, 2, 3], pa.timestamp("us", "UTC")),
        "s": pa.StructArray.from_arrays(
            [pa.array(["ü", "v", "v"]).dictionary_encode(), pa.array([1, 2, 3], pa.duration("s"))], ["a", "d"]
        ),
        "n": [1, 2, 3],
    }
)
CLASSES = {"c": ["x", "y"], "s.a": ["ü", "v"]}
UNITS = {"t": "timestamp[us, tz=UTC]", "s.d": "duration[s]"}


def known(data: loadax.Dataset) -> tuple[Any, Any]:
    source: Any = data.source
    return source.classes, source.units


@pytest.fixture(params=["from_parquet", "from_arrow"])
def data(request: pytest.FixtureRequest, tmp_path: Path) -> loadax.Dataset:
    parquet.write_table(TABLE, tmp_path / "a.parquet")
    return loadax.from_parquet(tmp_path / "a.parquet") if request.param == "from_parquet" else loadax.from_arrow(TABLE)


def written(data: loadax.Dataset, path: Path) -> loadax.Dataset:
    loadax.write_zarr(data, path, progress=False)
    return loadax.from_zarr(path)


def cached(data: loadax.Dataset, path: Path) -> loadax.Dataset:
    data.cache(path, progress=False)
    return data.cache(path, progress=False)  # of a finished one


VERBS: dict[str, Callable[[loadax.Dataset], loadax.Dataset]] = {
    "rows": lambda data: data,
    "slice": lambda data: data[1:],
    "filter": lambda data: data.filter(lambda row: row["n"] > 1),
    "repeat": lambda data: data.repeat(2),
    "concat": lambda data: loadax.concat([data, data]),
    "shuffle": lambda data: data.shuffle(0),
    "mix": lambda data: loadax.mix([data, data], [1, 1], seed=0),
}


@pytest.mark.parametrize(
    ("store", "verb"),
    [(written, verb) for verb in VERBS] + [(cached, verb) for verb in VERBS if verb not in ("shuffle", "mix")],
)
def test_stores_keep_names_and_units(data: loadax.Dataset, store: Any, verb: str, tmp_path: Path) -> None:
    again = store(VERBS[verb](data), tmp_path / "x.zarr")
    assert known(again) == (CLASSES, UNITS)
    assert known(written(again, tmp_path / "y.zarr")) == (CLASSES, UNITS)
    assert known(loadax.concat([again, again])) == (CLASSES, UNITS)


def test_other_readers_of_zarr_see_them(data: loadax.Dataset, tmp_path: Path) -> None:
    written(data, tmp_path / "x.zarr")
    group = zarr.open_group(str(tmp_path / "x.zarr"), mode="r")
    assert dict(group["c"].attrs) == {"classes": ["x", "y"]}
    assert dict(group["t"].attrs) == {"units": UNITS["t"]}
    assert dict(group["n"].attrs) == {}


def test_convert_keeps_them(tmp_path: Path) -> None:
    parquet.write_table(TABLE, tmp_path / "a.parquet")
    assert main(["convert", str(tmp_path / "a.parquet"), str(tmp_path / "x.zarr"), "--columns", "c,t"]) == 0
    assert main(["convert", str(tmp_path / "x.zarr"), str(tmp_path / "y.zarr")]) == 0
    assert known(loadax.from_zarr(tmp_path / "y.zarr")) == ({"c": ["x", "y"]}, {"t": UNITS["t"]})


def test_zip_keeps_them_by_part(data: loadax.Dataset, tmp_path: Path) -> None:
    both = loadax.zip({"one": data, "two": loadax.from_arrays(np.arange(3))})
    assert known(written(both, tmp_path / "x.zarr"))[0] == {f"one.{path}": names for path, names in CLASSES.items()}


def test_a_map_leaves_no_names_that_may_be_wrong(data: loadax.Dataset, tmp_path: Path) -> None:
    mapped = data.map(lambda row: {"c": 1 - row["c"], "t": row["t"]})
    assert known(written(mapped, tmp_path / "x.zarr")) == ({}, {})


@pytest.mark.parametrize("combine", [loadax.concat, lambda parts: loadax.mix(parts, [1, 1])])
def test_parts_that_number_names_in_other_ways_are_told_of_and_have_no_names(tmp_path: Path, combine: Any) -> None:
    other = loadax.from_arrow(pa.table({"c": pa.array(["y", "x"]).dictionary_encode()}))
    with pytest.warns(
        UserWarning, match=r"of leaf 'c' differently, \['x', 'y'\] and \['y', 'x'\]; .*classes=\{'c': \[…\]\}"
    ):
        both = combine([loadax.from_arrow(TABLE, columns=["c"]), other])
    assert known(written(both, tmp_path / "x.zarr")) == ({}, {})


def test_parts_with_further_names_number_those_of_others_alike() -> None:
    parts = [loadax.from_arrow(pa.table({"c": ["x"]}), classes={"c": ["x", "y", "z"][:most]}) for most in (3, 1, 2)]
    assert loadax.concat(parts).source.classes == {}


def test_classes_of_images_are_kept(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / "images" / name).mkdir(parents=True)
        Image.new("RGB", (4, 4)).save(tmp_path / "images" / name / "0.png")
    data = loadax.from_images(tmp_path / "images")
    assert known(written(data, tmp_path / "x.zarr")) == ({"label": ["cat", "dog"]}, {})


def test_an_array_by_itself_keeps_its_units(tmp_path: Path) -> None:
    array = zarr.create_array(str(tmp_path / "x"), shape=(3,), dtype="int32", attributes={"units": "K", "classes": 5})
    array[:] = [1, 2, 3]
    assert known(written(loadax.from_zarr(tmp_path / "x"), tmp_path / "y")) == ({}, {"": "K"})


@pytest.mark.parametrize("stopped", [True, False])
def test_an_unfinished_store_goes_on_with_them(data: loadax.Dataset, tmp_path: Path, stopped: bool) -> None:
    fail: list[int] = [1] if stopped else []

    class Failing:
        def __len__(self) -> int:
            return 3

        def __getitem__(self, row: int) -> int:
            if row == 2 and fail:
                fail.clear()
                raise KeyError(row)
            return row

    both = loadax.zip({"one": data, "two": loadax.from_source(Failing())})
    if stopped:
        with pytest.raises(KeyError):
            loadax.write_zarr(both, tmp_path / "x", progress=False, shard_rows=1, workers=1)
    loadax.write_zarr(both, tmp_path / "x", progress=False, shard_rows=1, resume=stopped)
    assert known(loadax.from_zarr(tmp_path / "x"))[0]["one.c"] == ["x", "y"]
