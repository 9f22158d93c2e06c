"""Zarr arrays and groups, of version 2 and 3, by their path alone."""

import json
import pickle
import warnings
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import tensorstore as ts
import zarr
import zarr.storage

import loadax
from loadax import from_tensorstore, from_zarr, write_zarr
from loadax.errors import ArgumentError, SourceError
from loadax.sources.tokens.ragged import open_zarr
from loadax.sources.zarr.source import TensorStoreSource
from tests.servers.ranges import RangeServer
from tests.sources.advice import lines

pytest_plugins = ["tests.servers.fixtures"]

VALUES = np.arange(1, 41, dtype=np.int32).reshape(10, 4)
VERSIONS = [2, 3]


def write_array(path: Path, version: int = 3, values: Any = VALUES) -> None:
    driver = "zarr3" if version == 3 else "zarr"
    layout = ts.ChunkLayout(chunk_shape=[2] * values.ndim)
    spec = {"driver": driver, "kvstore": {"driver": "file", "path": f"{path}/"}}
    ts.open(spec, create=True, dtype=values.dtype, shape=values.shape, chunk_layout=layout).result().write(
        values
    ).result()


def write_group(path: Path, version: int = 3, names: tuple[str, ...] = ("x", "y"), consolidated: bool = False) -> Path:
    path.mkdir()
    for number, name in enumerate(names):
        write_array(path / name, version, VALUES + 100 * number)
    group: dict[str, Any] = {"zarr_format": version}
    if version == 3:
        group |= {"node_type": "group", "attributes": {}}
        if consolidated:
            nodes = {name: json.loads((path / name / "zarr.json").read_text()) for name in names}
            nodes["subgroup"] = {"zarr_format": 3, "node_type": "group"}
            group["consolidated_metadata"] = {"kind": "inline", "must_understand": False, "metadata": nodes}
        (path / "zarr.json").write_text(json.dumps(group))
    else:
        (path / ".zgroup").write_text(json.dumps(group))
        if consolidated:
            arrays = {f"{name}/.zarray": json.loads((path / name / ".zarray").read_text()) for name in names}
            metadata = {".zgroup": group, "x/.zattrs": {}, **arrays}
            (path / ".zmetadata").write_text(json.dumps({"zarr_consolidated_format": 1, "metadata": metadata}))
    return path


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["plain", "a b#c%20d?ü"])
def test_an_array(version: int, name: str, tmp_path: Path) -> None:
    write_array(tmp_path / name, version)
    for path in (tmp_path / name, f"{tmp_path / name}", f"{tmp_path / name}/"):
        np.testing.assert_array_equal(open_zarr(path, None).read(np.array([9, 0])), VALUES[[9, 0]])


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("consolidated", [False, True])
def test_a_group_is_a_dict_of_its_arrays(version: int, consolidated: bool, tmp_path: Path) -> None:
    group = write_group(tmp_path / "g", version, consolidated=consolidated)
    batch = open_zarr(group, None).read(np.array([3, 9]))
    assert sorted(batch) == ["x", "y"]
    np.testing.assert_array_equal(batch["x"], VALUES[[3, 9]])
    np.testing.assert_array_equal(batch["y"], VALUES[[3, 9]] + 100)


def test_a_folder_of_arrays_is_a_group(tmp_path: Path) -> None:
    """TensorStore itself writes no groups."""
    write_array(tmp_path / "x")
    write_array(tmp_path / "y", version=2)
    assert sorted(open_zarr(tmp_path, None).read(np.array([0]))) == ["x", "y"]


@pytest.mark.parametrize("version", VERSIONS)
def test_variables_may_be_chosen(version: int, tmp_path: Path) -> None:
    names = ("x", "a b", "c%20d", "e#f", "below/deep")
    group = write_group(tmp_path / "g", version, names)
    assert sorted(open_zarr(group, None).read(np.array([0]))) == sorted(names)
    for number, name in enumerate(names):
        for variables in (name, [name], (name,)):
            batch = open_zarr(group, variables).read(np.array([3]))
            assert list(batch) == [name]
            np.testing.assert_array_equal(batch[name], VALUES[[3]] + 100 * number)


def test_a_group_given_as_a_tensorstore_spec_lists_its_arrays(tmp_path: Path) -> None:
    group = write_group(tmp_path / "g")
    for spec in ({"driver": "zarr3", "kvstore": group.as_uri()}, f"{group.as_uri()}/|zarr3:"):
        with pytest.raises(SourceError, match=r"leaf \['a'\] at file://.*g/ is a group of zarr arrays; open it with"):
            TensorStoreSource({"a": spec})


def test_what_was_not_chosen_need_not_fit(tmp_path: Path) -> None:
    group = write_group(tmp_path / "g")
    write_array(group / "longitude", 3, np.arange(4))
    assert list(open_zarr(group, "x").read(np.array([0]))) == ["x"]
    with pytest.raises(
        SourceError, match=r"different numbers of rows \(\['longitude'\]: 4, \['x'\]: 10, \['y'\]: 10\)"
    ) as caught:
        open_zarr(group, None)
    assert "pass variables=[…]" in caught.value.__notes__[-1]
    assert list(open_zarr(group, ["x", "y"]).read(np.array([0]))) == ["x", "y"]
    with pytest.raises(SourceError, match="different numbers of rows") as caught:
        open_zarr(group, ["x", "longitude"])
    assert "pass variables=[…]" in caught.value.__notes__[-1]


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("values", [np.array(["a", "bb"]), np.array(["2020-01-01", "1999-01-01"], "M8[s]")])
def test_an_array_of_texts_or_times_is_opened_as_advised(values: Any, version: Literal[2, 3], tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of zarr-python, about data types without a specification
        zarr.create_array(tmp_path / "x", data=values, zarr_format=version)
        with pytest.raises(SourceError) as caught:
            from_zarr(tmp_path / "x")
        note = " ".join(caught.value.__notes__)
        assert "variables=" not in note
        (line,) = lines(note)
        data = eval(line, {"loadax": loadax, "zarr": zarr})
        assert [data[row] for row in range(2)] == list(values)


@pytest.mark.parametrize("version", [2, 3])
def test_an_array_of_strings_is_left_out_as_advised(version: Literal[2, 3], tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "g", zarr_format=version)
    group.create_array("x", data=np.arange(4))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zarr 3 has no specification of strings yet
        group.create_array("name", data=np.array(["a", "b", "c", "d"]), filters=None if version == 3 else "auto")
    with pytest.raises(SourceError) as caught:
        open_zarr(tmp_path / "g", None)
    assert "pass variables=[…] with the arrays of numbers" in caught.value.__notes__[-1]
    assert caught.value.argument == "variables"
    assert len(open_zarr(tmp_path / "g", ["x"])) == 4


@pytest.mark.parametrize("version", VERSIONS)
def test_a_missing_chunk_is_an_error(version: int, tmp_path: Path) -> None:
    group = write_group(tmp_path / "g", version)
    (group / "x" / ("c/1/0" if version == 3 else "1.0")).unlink()
    source = open_zarr(group, None)
    source.read(np.array([0, 9]))
    with pytest.raises(SourceError, match=r"leaf \['x'\] at file://.*g/x/: NOT_FOUND: chunk.*copy it again"):
        source.read(np.array([0, 3]))


@pytest.mark.parametrize("version", VERSIONS)
def test_over_http_a_group_needs_no_listing(version: int, range_server: RangeServer, tmp_path: Path) -> None:
    url = range_server.url
    write_group(tmp_path / "plain", version)
    write_group(tmp_path / "listed", version, consolidated=True)
    np.testing.assert_array_equal(open_zarr(f"{url}/plain/x", None).read(np.array([3])), VALUES[[3]])
    np.testing.assert_array_equal(open_zarr(f"{url}/plain", ["y"]).read(np.array([3]))["y"], VALUES[[3]] + 100)
    assert sorted(open_zarr(f"{url}/listed/", None).read(np.array([3]))) == ["x", "y"]
    with pytest.raises(
        SourceError,
        match=r"plain can't be listed, and has no consolidated metadata; "
        r"check the URL, and if it is a group name its arrays in",
    ):
        open_zarr(f"{url}/plain", None)
    with pytest.raises(SourceError, match=r"plain has no zarr array 'z'; its arrays are not listed"):
        open_zarr(f"{url}/plain", ["z"])
    with pytest.raises(SourceError, match=r"listed has no zarr array 'z'; its arrays are \['x', 'y'\]"):
        open_zarr(f"{url}/listed", ["z"])


def test_nothing_there(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere", write_group(tmp_path / "g", names=())):
        with pytest.raises(
            SourceError, match=rf"{path.name} contains no zarr array or group of arrays; check the path"
        ):
            open_zarr(path, None)
    with pytest.raises(SourceError, match="check the path"):
        open_zarr(write_group(tmp_path / "h"), [])


@pytest.mark.parametrize("version", VERSIONS)
def test_a_missing_variable_shows_those_that_are_there(version: int, tmp_path: Path) -> None:
    group = write_group(tmp_path / "g", version)
    with pytest.raises(SourceError, match=r"g has no zarr array 'z'; its arrays are \['x', 'y'\]"):
        open_zarr(group, ["x", "z"])


@pytest.mark.parametrize("version", VERSIONS)
def test_an_array_has_no_variables(version: int, tmp_path: Path) -> None:
    write_array(tmp_path / "x", version)
    with pytest.raises(
        SourceError, match=r"x is an array, not a group, so variables=\['a'\] does not apply; leave it out"
    ):
        open_zarr(tmp_path / "x", ["a"])


@pytest.mark.parametrize("name", ["zarr.json", ".zarray"])
def test_metadata_that_is_no_object(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("[1]")
    with pytest.raises(SourceError, match=rf"/{name} contains a list, not an object; copy it again"):
        open_zarr(tmp_path, None)


def test_metadata_that_was_cut_short(tmp_path: Path) -> None:
    (tmp_path / "zarr.json").write_text("{")
    with pytest.raises(SourceError, match=r"/zarr\.json is not valid JSON \(.*\); was it cut short\? Copy it again"):
        open_zarr(tmp_path, None)


def test_a_url_of_another_kind() -> None:
    with pytest.raises(
        SourceError, match=r"foo://x/: .*unsupported URL scheme.*; pass a local path, or a file://, s3://, gs://"
    ):
        open_zarr("foo://x", None)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(
        SourceError, match=r"file is a file; pass the folder of a zarr array or group, or a \.zip file of one"
    ):
        open_zarr(tmp_path / "file", None)
    with pytest.raises(SourceError, match=r"file/x can't be read: .*[Nn]ot a directory"):
        open_zarr(tmp_path / "file" / "x", None)


class TestContainers:
    """A store within one file, or in the few files of a database."""

    @pytest.fixture
    def zipped(self, tmp_path: Path) -> Path:
        """What zarr-python writes: a group of two arrays."""
        path = tmp_path / "a b.zip"
        with zarr.storage.ZipStore(path, mode="w") as store:
            group = zarr.create_group(store)
            for number, name in enumerate(("x", "y")):
                group.create_array(name, data=VALUES + 100 * number, chunks=(2, 2))
        return path

    def test_a_zip_file_that_zarr_python_wrote(self, zipped: Path) -> None:
        rows = np.array([9, 0, 3])
        for path in (zipped, f"{zipped}", f"{zipped}/", zipped.as_uri(), f"{zipped}|zip:", f"{zipped.as_uri()}|zip:"):
            batch = open_zarr(path, None).read(rows)
            assert sorted(batch) == ["x", "y"]
            np.testing.assert_array_equal(batch["x"], VALUES[rows])
            np.testing.assert_array_equal(batch["y"], VALUES[rows] + 100)
        np.testing.assert_array_equal(open_zarr(zipped, ["y"]).read(rows)["y"], VALUES[rows] + 100)
        np.testing.assert_array_equal(open_zarr(f"{zipped}|zip:y", None).read(rows), VALUES[rows] + 100)
        with pytest.raises(SourceError, match=r"a b\.zip has no zarr array 'z'; its arrays are \['x', 'y'\]"):
            open_zarr(zipped, ["z"])

    @pytest.mark.parametrize("driver", ["zarr", "zarr3"])
    def test_a_zip_file_that_tensorstore_wrote(self, driver: str, tmp_path: Path) -> None:
        spec = {"driver": driver, "kvstore": f"{(tmp_path / 'x.zip').as_uri()}|zip:"}
        ts.open(spec, create=True, dtype=ts.int32, shape=VALUES.shape).result().write(VALUES).result()
        np.testing.assert_array_equal(open_zarr(tmp_path / "x.zip", None).read(np.array([9, 0])), VALUES[[9, 0]])

    def test_a_zip_file_pickles(self, zipped: Path) -> None:
        source = pickle.loads(pickle.dumps(open_zarr(zipped, "x")))
        np.testing.assert_array_equal(source.read(np.array([9]))["x"], VALUES[[9]])

    @pytest.mark.parametrize("left", [0, 100, -30])
    def test_a_zip_file_that_was_cut_short(self, left: int, zipped: Path) -> None:
        zipped.write_bytes(zipped.read_bytes()[:left])
        with pytest.raises(
            SourceError, match=r"a b\.zip can't be read: .*the file is not a zip file, or was cut short: copy it again"
        ):
            open_zarr(zipped, None)

    def test_a_zip_file_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(SourceError, match=r"none\.zip contains no zarr array or group of arrays; check the path"):
            open_zarr(tmp_path / "none.zip", None)

    def test_a_database(self, tmp_path: Path) -> None:
        for number, name in enumerate(("x", "y")):
            kvstore = {"driver": "ocdbt", "base": tmp_path.as_uri() + "/", "path": f"{name}/"}
            spec = {"driver": "zarr3" if number else "zarr", "kvstore": kvstore}
            store = ts.open(spec, create=True, dtype=ts.int32, shape=VALUES.shape).result()
            store.write(VALUES + 100 * number).result()
        rows = np.array([9, 0, 3])
        for path in (tmp_path, f"{tmp_path}/", tmp_path.as_uri(), f"{tmp_path}/|ocdbt:"):
            batch = open_zarr(path, None).read(rows)
            assert sorted(batch) == ["x", "y"]
            np.testing.assert_array_equal(batch["x"], VALUES[rows])
            np.testing.assert_array_equal(batch["y"], VALUES[rows] + 100)
        np.testing.assert_array_equal(open_zarr(f"{tmp_path}/|ocdbt:y", None).read(rows), VALUES[rows] + 100)
        with pytest.raises(SourceError, match=r"has no zarr array 'z'; its arrays are \['x', 'y'\]"):
            open_zarr(tmp_path, "z")


class TestChunksThatAreNotThere:
    @pytest.mark.parametrize("version", VERSIONS)
    def test_are_the_fill_value_when_that_is_asked_for(self, version: int, tmp_path: Path) -> None:
        group = write_group(tmp_path / "g", version)
        (group / "x" / ("c/1/0" if version == 3 else "1.0")).unlink()
        expected = VALUES[[0, 2, 3]].copy()
        expected[1:, :2] = 0
        driver = "zarr3" if version == 3 else "zarr"
        spec = {"driver": driver, "kvstore": {"driver": "file", "path": f"{group}/x/"}}
        strict = ts.open({**spec, "fill_missing_data_reads": False}, read=True).result()
        rows = [0, 2, 3]
        np.testing.assert_array_equal(from_zarr(group, missing="fill").read(rows)["x"], expected)
        for given in (spec, ts.Spec(spec), {**spec, "fill_missing_data_reads": False}, strict):
            np.testing.assert_array_equal(from_tensorstore(given, missing="fill").read(rows), expected)
        for given in (
            spec,
            ts.Spec(spec),
            {**spec, "fill_missing_data_reads": True},
            ts.open(spec, read=True).result(),
        ):
            with pytest.raises(SourceError, match=r"NOT_FOUND: chunk.*or pass missing='fill' if those are right"):
                from_tensorstore(given).read(rows)
        with pytest.raises(SourceError, match="or pass missing='fill' if those are right"):
            from_zarr(group).read(rows)

    def test_are_an_arrays_own_fill_value(self, tmp_path: Path) -> None:
        zarr.create_array(tmp_path / "x", shape=(4, 2), chunks=(2, 2), dtype="f4", fill_value=np.nan)[:2] = 1
        read = from_zarr(tmp_path / "x", missing="fill").read(range(4))
        np.testing.assert_array_equal(read, [[1, 1], [1, 1], [np.nan, np.nan], [np.nan, np.nan]])

    @pytest.mark.parametrize("door", [from_zarr, from_tensorstore])
    def test_are_nothing_else(self, door: Any, tmp_path: Path) -> None:
        write_array(tmp_path / "x")
        given = {"driver": "zarr3", "kvstore": f"file://{tmp_path}/x/"} if door is from_tensorstore else tmp_path / "x"
        with pytest.raises(
            ArgumentError,
            match=r"missing='zeros': pass 'error', or 'fill' to read missing chunks as the fill value",
        ):
            door(given, missing="zeros")


class TestStoresThatLoadaxWrote:
    def written(self, path: Path) -> Path:
        write_zarr({"x": VALUES, "y": VALUES + 100}, path, progress=False)
        return path

    def test_to_the_end(self, tmp_path: Path) -> None:
        batch = open_zarr(self.written(tmp_path / "g"), None).read(np.array([9]))
        np.testing.assert_array_equal(batch["y"], VALUES[[9]] + 100)
        np.testing.assert_array_equal(open_zarr(tmp_path / "g" / "y", None).read(np.array([9])), VALUES[[9]] + 100)

    def test_half(self, tmp_path: Path) -> None:
        """The group is refused, and so is each array inside it, which looks whole."""
        group = self.written(tmp_path / "g")
        (group / "loadax.json").rename(group / "loadax.partial.json")
        message = r"the store is unfinished \(loadax\.json is missing\); resume with `loadax convert … --resume` or"
        for variables in (None, "x", ["x", "y"]):
            with pytest.raises(SourceError, match=rf"^{group}: {message}"):
                open_zarr(group, variables)
        for path in (group / "x", f"{group}/y/", (group / "x").as_uri()):
            with pytest.raises(SourceError, match=rf"^the group above \S*g/(x|y/): {message}"):
                open_zarr(path, None)

    def test_half_an_array_by_itself(self, tmp_path: Path) -> None:
        write_zarr(VALUES, tmp_path / "x", progress=False)
        np.testing.assert_array_equal(open_zarr(tmp_path / "x", None).read(np.array([9])), VALUES[[9]])
        (tmp_path / "x" / "loadax.json").rename(tmp_path / "x" / "loadax.partial.json")
        with pytest.raises(SourceError, match="the store is unfinished"):
            open_zarr(tmp_path / "x", None)

    def test_to_the_end_with_a_marker_left_over(self, tmp_path: Path) -> None:
        """Who finished it was stopped before he had tidied up."""
        group = self.written(tmp_path / "g")
        (group / "loadax.partial.json").write_text("{}")
        assert sorted(open_zarr(group, None).read(np.array([0]))) == ["x", "y"]

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("{", r"loadax\.json is not valid JSON \(.*\); was it cut short\? Copy it again"),
            ("\xff", r"loadax\.json is not valid JSON"),
            ("[]", "contains a list, not an object; copy it"),
            ("{}", r"loadax\.json has version None, and this loadax reads 1 and 2"),
            (
                '{"version": 99}',
                r"loadax\.json has version 99, and this loadax reads 1 and 2; read the store with the loadax version",
            ),
            ('{"version": 2}', r"loadax\.json is damaged, it describes no ragged rows; copy it again"),
            ('{"version": 2, "arrays": {"a": 0}, "ragged": ["a"], "shard_rows": 1}', r"loadax\.json is damaged"),
        ],
    )
    def test_marker_damaged_or_of_newer_version(self, content: str, message: str, tmp_path: Path) -> None:
        group = self.written(tmp_path / "g")
        (group / "loadax.json").write_bytes(content.encode("latin-1"))
        with pytest.raises(SourceError, match=message):
            open_zarr(group, None)
