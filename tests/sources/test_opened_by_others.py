"""Files, folders and objects that other libraries open: each error has the line to write, and the line works.

Lines of libraries that are not installed are skipped; the extra `others` has all of them.
"""

import gc
import importlib
import json
import pickle
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.io
import xarray
from pyarrow import orc

import loadax
from loadax.errors import ArgumentError, LeafError, LeafTypeError, SourceError
from loadax.sources.other_files import table
from tests.sources.advice import follow

X = np.arange(12.0).reshape(4, 3)


def library(name: str) -> Any:
    return pytest.importorskip(name)


def bag(path: Path) -> None:
    with library("rosbags.rosbag1").Writer(path) as writer:
        connection = writer.add_connection("/x", "std_msgs/msg/Int8", msgdef="int8 data", md5sum="0")
        for time in range(4):
            writer.write(connection, time, bytes([time]))


def mcap(path: Path) -> None:
    writer = library("mcap.writer").Writer(path.open("wb"))
    writer.start()
    channel = writer.register_channel("/x", "raw", writer.register_schema("raw", "", b""))
    for time in range(4):
        writer.add_message(channel, time, bytes([time]), time)
    writer.finish()


def dicom(path: Path) -> None:
    pydicom = library("pydicom")
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import ExplicitVRLittleEndian

    meta = FileMetaDataset()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    image = FileDataset(str(path), {}, file_meta=meta, preamble=b"\0" * 128)
    image.Rows, image.Columns, image.BitsAllocated, image.BitsStored, image.HighBit = 4, 3, 8, 8, 7
    image.SamplesPerPixel, image.PhotometricInterpretation, image.PixelRepresentation = 1, "MONOCHROME2", 0
    image.PixelData = X.astype(np.uint8).tobytes()
    pydicom.dcmwrite(path, image, enforce_file_format=False)


def root(path: Path) -> None:
    with library("uproot").recreate(path) as file:
        file["tree"] = {"x": X[:, 0]}


def sqlite(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        pd.DataFrame({"x": X[:, 0]}).to_sql("name", connection, index=False)


def avro(path: Path) -> None:
    fields = [{"name": "x", "type": "double"}]
    schema = {"type": "record", "name": "row", "fields": fields}
    with path.open("wb") as file:
        library("fastavro").writer(file, schema, [{"x": x} for x in X[:, 0]])


def atoms(path: Path) -> None:
    ase = library("ase")
    library("ase.io").write(path, [ase.Atoms("H3", positions=X[:3])] * 4, format="extxyz")


def grib(path: Path) -> None:
    """One message by eccodes, since cfgrib writes no files: a grid of 4 latitudes and 3 longitudes."""
    eccodes = library("eccodes")
    message = eccodes.codes_grib_new_from_samples("regular_ll_sfc_grib2")
    degrees = "InDegrees"
    grid = {"Nj": 4, "Ni": 3, "bitsPerValue": 16}
    corners = {"latitudeOfFirst": 3, "latitudeOfLast": 0, "longitudeOfFirst": 0, "longitudeOfLast": 2}
    grid |= {f"{corner}GridPoint{degrees}": value for corner, value in corners.items()}
    grid |= {f"{axis}DirectionIncrement{degrees}": 1 for axis in "ij"}
    for name, value in grid.items():
        eccodes.codes_set(message, name, value)
    eccodes.codes_set_values(message, X.ravel())
    with path.open("wb") as file:
        eccodes.codes_write(message, file)


# What makes a file, the module of the line, and the values of its rows; None: not looked at.
FILES: dict[str, tuple[Callable[[Path], object], str, Any]] = {
    ".safetensors": (lambda path: library("safetensors.numpy").save_file({"x": X}, path), "safetensors.numpy", X),
    ".pt": (lambda path: library("torch").save({"x": library("torch").tensor(X)}, path), "torch", X),
    ".mat": (lambda path: scipy.io.savemat(path, {"x": X}), "scipy.io", X),
    ".pkl": (lambda path: path.write_bytes(pickle.dumps([{"x": row} for row in X])), "pickle", X),
    ".json": (lambda path: path.write_text(json.dumps([{"x": row} for row in X.tolist()])), "json", X),
    ".txt": (lambda path: path.write_text("a\nb\nc\nd\n"), "pathlib", None),
    ".xlsx": (lambda path: library("openpyxl") and pd.DataFrame({"x": X[:, 0]}).to_excel(path), "pandas", X[:, 0]),
    ".orc": (lambda path: orc.write_table(pa.table({"x": X[:, 0]}), path), "pyarrow.orc", X[:, 0]),
    ".avro": (avro, "fastavro", X[:, 0]),
    ".grib": (grib, "cfgrib", X),
    ".nii": (lambda path: library("nibabel").Nifti1Image(X, np.eye(4)).to_filename(path), "nibabel", X[None]),
    ".dcm": (dicom, "pydicom", X[None]),
    ".tif": (lambda path: library("tifffile").imwrite(path, X), "tifffile", X[None]),
    ".fits": (lambda path: library("astropy.io.fits").writeto(path, X), "astropy.io.fits", X),
    ".root": (root, "uproot", X[:, 0]),
    ".fasta": (lambda path: path.write_text(">a\nAC\n>b\nGT\n>c\nA\n>d\nC\n"), "Bio.SeqIO", None),
    ".mcap": (mcap, "mcap.reader", None),
    ".bag": (bag, "rosbags.rosbag1", None),
    ".xyz": (atoms, "ase.io", None),
    ".db": (sqlite, "sqlite3", X[:, 0]),
    ".zst": (
        lambda path: path.write_bytes(library("zstandard").compress(b'{"x": 1}\n{"x": 2}\n{"x": 3}\n{"x": 4}\n')),
        "zstandard",
        np.arange(1, 5),
    ),
}
NAMES = {"np": np, "pandas": pd, "json": json, "xarray": xarray}
ELSEWHERE = {".h5ad", ".beton"}  # tests/sources/sparse; read by FFCV alone


def test_every_kind_of_file_has_a_line_that_is_run() -> None:
    assert {endings.split()[0] for endings in table()["files"]} == {*FILES, *ELSEWHERE}


def test_page_has_every_line() -> None:
    page = (Path(loadax.__file__).parents[1] / "docs/start/which-function.md").read_text("utf-8")
    for kind, path in (("files", "path"), ("folders", "folder")):
        for names, (_, line) in table()[kind].items():
            listed = ", ".join(f"`{name}`" for name in names.split())
            assert f"| {listed} | `{line.replace('{0}', path)}` |" in page


@pytest.mark.parametrize("ending", FILES)
@pytest.mark.filterwarnings("ignore")  # of the other libraries
def test_line_of_a_file_opens_it(ending: str, tmp_path: Path) -> None:
    make, module, expected = FILES[ending]
    path = tmp_path / f"data{ending}"
    importlib.import_module(module) if ending in (".txt", ".db", ".pkl") else library(module)
    make(path)
    with pytest.raises(ArgumentError, match=rf"data\{ending}' is a path; open it: loadax\.") as caught:
        loadax.as_dataset(str(path))
    package = module.partition(".")[0]
    (data,) = follow(caught.value, **({package: importlib.import_module(package)} | NAMES))
    assert len(data) == (4 if expected is None else len(expected))
    if expected is not None:
        found = data.read(range(len(data)))
        if isinstance(found, dict):
            found = found["t" if ending == ".grib" else "x"]  # the sample of eccodes is a temperature
        np.testing.assert_array_equal(found, expected)
    del caught, data
    gc.collect()  # what such a line leaves open, as that of SQLite does, warns here and in no other test


def test_functions_name_the_line_too(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(b"\0" * 64)
    for open_ in (loadax.from_parquet, loadax.from_array_record):
        with pytest.raises(SourceError, match=r"open it with loadax\.from_arrays\(safetensors\.numpy\.load_file\('.*'"):
            open_(path)


@pytest.mark.parametrize("names", table()["folders"])
def test_folder_of_another_library_is_recognised(names: str, tmp_path: Path) -> None:
    for name in names.split():
        path = tmp_path / name.replace("*", "0")
        path.parent.mkdir(exist_ok=True)
        path.touch()
    line = table()["folders"][names][1].replace("{0}", repr(str(tmp_path)))
    with pytest.raises(ArgumentError) as caught:
        loadax.as_dataset(tmp_path)
    assert str(caught.value).endswith(f"is a path; open it: {line}")


def test_lance_by_its_folder(tmp_path: Path) -> None:
    lance = library("lance")
    rows = {"x": np.arange(100), "y": [np.arange(2.0)] * 100}
    lance.write_dataset(pa.table(rows), tmp_path / "data")
    with pytest.raises(ArgumentError, match=r"lance\.dataset\(") as caught:
        loadax.as_dataset(tmp_path / "data")
    (data,) = follow(caught.value, lance=lance)
    again = pickle.loads(pickle.dumps(data))
    for each in (data, again):
        assert each.read([7, 3, 3])["x"].tolist() == [7, 3, 3]
    batches = loadax.Dataloader(data.keep("x").shuffle(0), 8)
    assert len(set(np.concatenate([batch["x"] for batch in batches]).tolist())) == 96


def test_arrays_with_fields_have_a_leaf_a_field() -> None:
    kind = np.dtype([("a", "i4"), ("b", [("c", "f4", 2)])])
    array = np.zeros(8, kind)
    array["a"] = np.arange(8)
    for data in (array, array.view(np.recarray)):
        for open_ in (loadax.as_dataset, loadax.from_arrays):
            found = open_(data).read([2])
            assert found["a"].tolist() == [2]
            assert found["b"]["c"].shape == (1, 2)
    assert loadax.Dataloader(array, 8)[0]["a"].tolist() == list(range(8))


def test_fields_further_down_and_in_files_are_split_in_a_map(tmp_path: Path) -> None:
    array = np.array([(row, row / 2) for row in range(8)], np.dtype([("a", "i1"), ("b", "f4")], align=True))
    np.save(tmp_path / "x.npy", array)
    data = loadax.from_npy(tmp_path / "x.npy")
    advice = "{name: value[name] for name in value.dtype.names}"
    for refused in (data, {"x": array}):
        with pytest.raises(LeafTypeError, match=r"Drop it or encode it in a map, one leaf a field") as caught:
            loadax.Dataloader(refused, 8)
        assert advice in str(caught.value)
    split = data.map(lambda value: eval(advice, {"value": value}))
    assert loadax.Dataloader(split, 8)[0]["b"].tolist() == array["b"].tolist()


def test_masked_entries_of_fields_are_refused() -> None:
    kind = np.dtype([("a", "f4"), ("b", [("c", "f4", 2)])])
    array = np.ma.masked_array(np.zeros(3, kind))
    assert loadax.as_dataset(array).read([1])["b"]["c"].tolist() == [[0, 0]]
    array["b"]["c"][1] = np.ma.masked
    with pytest.raises(LeafError, match=r"leaf \['b'\]\['c'\] has 2 masked entries, which would become data") as found:
        loadax.as_dataset(array)
    assert "array.filled(0)" in str(found.value)
    assert loadax.as_dataset(array.filled(0)).read([1])["b"]["c"].tolist() == [[0, 0]]


def test_tables_of_astropy(tmp_path: Path) -> None:
    tables = library("astropy.table")
    data = tables.Table({"a": np.arange(3), "b": np.ones((3, 2))})
    assert loadax.as_dataset(data).read([1])["a"].tolist() == [1]
    data.write(tmp_path / "x.fits")
    with pytest.raises(ArgumentError) as caught:
        loadax.as_dataset(tmp_path / "x.fits")
    (rows,) = follow(caught.value, astropy=library("astropy.io.fits") and library("astropy"))
    assert rows.read([1])["b"].tolist() == [[1, 1]]
    masked = tables.Table({"a": np.ma.masked_array([1, 2, 3], [False, True, False])}, masked=True)
    with pytest.raises(SourceError, match="column 'a' of the Table has 1 masked entry;") as found:
        loadax.as_dataset(masked)
    (filled,) = follow(found.value, data=masked)
    assert filled.read(range(3))["a"].tolist() == [1, 0, 3]


def test_arrays_of_awkward() -> None:
    awkward = library("awkward")
    lists = loadax.as_dataset(awkward.Array([[1.0, 2.0], [], [3.0]]))
    assert [row["values"].tolist() for row in lists] == [[1, 2], [], [3]]
    records = loadax.as_dataset(awkward.Array([{"x": 1, "y": [1.0]}, {"x": 2, "y": []}]))
    assert [int(row["x"]) for row in records] == [1, 2]
    assert records[1]["y"].tolist() == []


def test_trees_of_uproot(tmp_path: Path) -> None:
    uproot = library("uproot")
    root(tmp_path / "x.root")
    tree = uproot.open(tmp_path / "x.root")["tree"]
    for data in (tree, tree["x"]):
        for open_ in (loadax.as_dataset, loadax.from_source):
            with pytest.raises(ArgumentError, match="can't be read by rows") as caught:
                open_(data)
            (rows,) = follow(caught.value, data=data)
            assert len(rows) == 4


def test_lists_of_atoms() -> None:
    ase = library("ase")
    molecule = ase.Atoms("H3", positions=X[:3])
    for data in (molecule, [molecule] * 2):
        with pytest.raises(ArgumentError, match="make arrays of") as caught:
            loadax.as_dataset(data)
        (rows,) = follow(caught.value, data=data)
        assert rows[0]["numbers"].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("module", "name", "members", "rows"),
    [
        ("mne.io", "BaseRaw", {"get_data": lambda _: X.T}, 4),
        ("mne", "BaseEpochs", {"get_data": lambda _: X}, 4),
        ("jraph", "GraphsTuple", {}, 2),
        (
            "minari",
            "MinariDataset",
            {"iterate_episodes": lambda _: [type("Episode", (), {"observations": X, "actions": X[:-1]})] * 3},
            3,
        ),
    ],
)
def test_objects_of_libraries_that_are_not_installed_here(
    module: str, name: str, members: dict[str, Any], rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Classes that stand in, with the members that the lines use."""
    kind = type(name, (), members)
    stand_in = type("Module", (), {name: kind, "unbatch": staticmethod(lambda _: [{"n": 1}, {"n": 2}])})
    monkeypatch.setitem(sys.modules, module, stand_in)
    data = kind()
    with pytest.raises(ArgumentError, match=f"the data is an? {name}, which can't be read by rows") as caught:
        loadax.as_dataset(data)
    (made,) = follow(caught.value, data=data, jraph=stand_in)
    assert len(made) == rows


def test_open_file_with_a_length_is_no_source() -> None:
    class File:
        def __len__(self) -> int:
            return 8

        def read(self, size: int = -1) -> Any:
            return np.zeros(size)

    for open_ in (loadax.as_dataset, loadax.from_source):
        with pytest.raises(ArgumentError, match=r"pass a Source \(with read, __len__ and spec\)"):
            open_(File())


def test_class_whose_module_is_no_text() -> None:
    class Rows:
        def __len__(self) -> int:
            return 8

        def __getitem__(self, row: int) -> Any:
            return {"x": np.int32(row)}

    Rows.__module__ = 3  # type: ignore[assignment]
    with loadax.Dataloader(Rows(), 8).iterate() as batches:
        assert next(batches)["x"].tolist() == list(range(8))


def test_names_that_are_guessed_are_answered() -> None:
    for name in ("from_netcdf", "from_xarray", "from_anndata", "from_h5ad", "from_fits"):
        with pytest.raises(AttributeError, match=f"no attribute '{name}': "):
            getattr(loadax, name)
    data = loadax.from_arrays(np.arange(4))
    for name in ("normalize", "mean", "stratify", "kfold", "head", "to_pandas", "plot", "batches"):
        with pytest.raises(AttributeError, match=f"no attribute '{name}': "):
            getattr(data, name)
