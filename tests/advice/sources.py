"""Advice about files, stores and arrays."""

import io
import sys
import warnings
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import h5py
import jax
import numpy as np
from PIL import Image
from pyarrow import csv
from scipy.sparse import csr_matrix

import loadax
from loadax import from_arrays, from_source
from loadax.dataset import Dataset
from loadax.errors import ArgumentError, LeafError, SourceError
from tests.advice.registry import Case, follows
from tests.sources.array_record.test_records import write as write_array_records
from tests.sources.shards.corpora import write_tar, write_tfrecord
from tests.writing.shuffled import Chunks, shuffled
from tests.writing.test_source_order import ROWS, Lossy

UNTYPED: Any = loadax


class WithNone:
    """Rows of which one is None."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, row: int) -> Any:
        return None if row == 3 else {"x": np.int64(row)}


@follows("a generator as list(…)")
def generator_as_dataset(case: Case) -> None:
    class Rows:
        def __getitem__(self, row: int) -> Any:
            return row

    with case.refused(ArgumentError):
        from_source(Rows())
    assert len(from_source(list(number for number in range(4)))) == 4  # noqa: C400 - the advice


@follows("loadax.from_source([data[row] for row in range(len(data)) if data[row] is not None])")
def rows_of_none(case: Case) -> None:
    data = WithNone()
    with case.refused(LeafError):
        from_source(data).read(range(6))
    kept = loadax.from_source([data[row] for row in range(len(data)) if data[row] is not None])
    assert kept.read(range(5))["x"].tolist() == [0, 1, 2, 4, 5]


@follows("pad them with .pad(length), crop them in a map, or pack them with .pack(seq_len)")
def ragged_records(case: Case) -> None:
    lengths = [5, 5, 3]
    path = case.folder / "x.array_record"
    write_array_records(path, [np.arange(length, dtype=np.uint16).tobytes() for length in lengths])
    data = loadax.from_array_record(path, dtype="uint16")
    with case.refused(LeafError):
        data.source.read(np.arange(3))
    assert data.pad(5, add_lengths=False).read(range(3)).shape == (3, 5)
    assert data.map(lambda row: row[:3]).read(range(3)).shape == (3, 3)
    assert len(data.pack(13)) == 1


@follows("open it as a table: loadax.as_dataset(frame)")
def data_frame_as_arrays(case: Case) -> None:
    import pandas as pd

    frame = pd.DataFrame({"x": [1, 2], "name": ["a", "b"]})
    with case.refused(SourceError):
        from_arrays(frame)
    assert loadax.as_dataset(frame)[1]["name"] == "b"


@follows("a torch tensor by tensor.detach().cpu().float().numpy()")
def tensor_with_gradient(case: Case) -> None:
    class Tensor:  # torch's, with a gradient, on a device, or of bfloat16
        def __array__(self, *_: Any, **__: Any) -> Any:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad")

        def __len__(self) -> int:
            return 2

        def detach(self) -> "Tensor":
            return self

        cpu = float = detach

        def numpy(self) -> Any:
            return np.ones(2, np.float32)

    case.patch.setitem(sys.modules, "torch", SimpleNamespace(Tensor=Tensor))
    tensor = Tensor()
    with case.refused(SourceError):
        from_arrays({"x": tensor})
    assert len(from_arrays({"x": tensor.detach().cpu().float().numpy()})) == 2


@follows(": dataset.exclude([…]); dataset.source.damaged() finds all such rows")
def damaged_image(case: Case) -> None:
    for row in range(3):
        Image.fromarray(np.full((8, 8, 3), row, np.uint8)).save(case.folder / f"{row}.png")
    (case.folder / "1.png").write_bytes((case.folder / "1.png").read_bytes()[:40])
    dataset: Any = loadax.from_images(case.folder, 8)
    with case.refused(SourceError):
        dataset.read(range(3))
    assert list(dataset.source.damaged()) == [1]
    assert dataset.exclude([1]).read(range(2))["image"].max() == 2


@follows("leave the row out: dataset.exclude([…])")
def damaged_image_of_a_leaf(case: Case) -> None:
    Image.new("RGB", (8, 8), "teal").save(case.folder / "0.jpg")
    content = (case.folder / "0.jpg").read_bytes()
    dataset = loadax.from_source([content, content[:100], content]).decode_images(size=4)
    with case.refused(SourceError):
        dataset.read(range(3))
    assert dataset.exclude([1]).read(range(2)).shape == (2, 4, 4, 3)


@follows("save numpy.ascontiguousarray(array), or copy the file to this machine")
def remote_fortran_array(case: Case) -> None:
    # tests/files/test_remote.py makes the error, which needs a server.
    array = np.asfortranarray(np.arange(12.0).reshape(4, 3))
    np.save(case.folder / "x.npy", np.ascontiguousarray(array))
    np.save(case.folder / "copied.npy", array)
    for name in ("x", "copied"):
        np.testing.assert_array_equal(loadax.from_npy(case.folder / f"{name}.npy").read([3]), array[3:])


@follows(
    "the record is damaged: its checksum is wrong; copy the file again, or leave the record out: dataset.exclude([…])"
)
def damaged_record(case: Case) -> None:
    path = write_tfrecord(case.folder / "x.tfrecord", [b"one", b"two", b"three"])
    content = bytearray(path.read_bytes())
    content[19 + 12] ^= 1
    path.write_bytes(content)
    dataset = loadax.from_tfrecord(path)
    with case.refused(SourceError):
        dataset.read(range(3))
    assert dataset.exclude([1]).read(range(2)).tolist() == [b"one", b"three"]


@follows("write the example again, or leave it out: dataset.exclude([…])")
def undecodable_example(case: Case) -> None:
    path = write_tar(case.folder / "x.tar", {"0.cls": b"1", "1.cls": b"cat"})
    dataset = loadax.from_webdataset(path, decode=True)
    with case.refused(SourceError):
        dataset.read(range(2))
    assert dataset.exclude([1]).read([0])["cls"].tolist() == [1]


@follows(
    "if quotes are part of the texts of this file, pass quote=None; or, if it is one text, read it by "
    "loadax.from_arrow(pyarrow.csv.read_csv(path, "
    "pyarrow.csv.ReadOptions(**…), pyarrow.csv.ParseOptions(**…)))"
)
def text_whose_lines_look_like_rows(case: Case) -> None:
    path = case.folder / "x.csv"
    path.write_text('name,x\n"a,0\nb",1\n')
    with case.refused(SourceError):
        loadax.from_csv(path)
    options = csv.ParseOptions(delimiter=",", quote_char='"', newlines_in_values=True)
    table = csv.read_csv(path, csv.ReadOptions(), options)
    assert loadax.from_arrow(table)[0]["name"] == "a,0\nb"
    assert loadax.from_csv(path, quote=None)[1]["name"] == 'b"'


@follows("pass a flat array, such as array.reshape(-1)")
def documents_in_two_dimensions(case: Case) -> None:
    array = np.arange(12).reshape(3, 4)
    with case.refused(ArgumentError):
        loadax.from_documents(array, [0, 5, 12])
    assert loadax.from_documents(array.reshape(-1), [0, 5, 12])[0].tolist() == [0, 1, 2, 3, 4]


@follows(
    "pack them into rows of one length with .pack(seq_len), pad them with .pad(lengths), or look at one as dataset[i]"
)
def documents_of_several_lengths(case: Case) -> None:
    dataset = loadax.from_documents(np.arange(12), [0, 5, 12])
    with case.refused(SourceError):
        dataset.read([0, 1])
    assert dataset.pack(12)[0]["tokens"].shape == (12,)
    assert dataset.pad(8, add_lengths=False).read([0, 1]).shape == (2, 8)
    assert dataset[1].shape == (7,)


@follows(
    "pass offsets=, or the path of a Megatron .bin and .idx pair; for a list of arrays, one per document, use "
    "loadax.from_source(list)"
)
def documents_without_offsets(case: Case) -> None:
    arrays = [np.arange(5), np.arange(7)]
    with case.refused(ArgumentError):
        loadax.from_documents(np.concatenate(arrays))
    assert len(loadax.from_documents(np.concatenate(arrays), offsets=[0, 5, 12])) == 2
    assert len(loadax.from_source(arrays)) == 2


@follows("not one-dimensional; open it with loadax.from_npy, or save array.reshape(-1)")
def tokens_in_two_dimensions(case: Case) -> None:
    array = np.arange(12, dtype=np.uint16).reshape(3, 4)
    path = case.folder / "x.npy"
    np.save(path, array)
    with case.refused(SourceError):
        loadax.from_tokens(path, seq_len=4)
    assert loadax.from_npy(path)[1].tolist() == [4, 5, 6, 7]
    np.save(path, array.reshape(-1))
    assert len(loadax.from_tokens(path, seq_len=4)) > 0


@follows("resume with `loadax convert … --resume` or write_zarr(..., resume=True), or delete it")
def unfinished_store(case: Case) -> None:
    data, path = {"x": np.arange(9), "y": np.arange(9)}, case.folder / "s"
    loadax.write_zarr(data, path, progress=False)
    (path / "loadax.json").rename(path / "loadax.partial.json")
    with case.refused(SourceError):
        loadax.from_zarr(path)
    loadax.write_zarr(data, path, resume=True, progress=False)
    assert loadax.from_zarr(path).read(range(9))["y"].tolist() == list(range(9))


@follows("it must give all positions that visits() reads rows of")
def inverse_that_lacks_positions(case: Case) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        data = shuffled(Chunks(ROWS))
    with case.refused(SourceError):
        loadax.write_zarr(Dataset(data.source, Lossy(data.order)), case.folder / "s", shard_rows=40, progress=False)
    loadax.write_zarr(data, case.folder / "t", shard_rows=40, progress=False)
    assert len(loadax.from_zarr(case.folder / "t")) == ROWS


@follows("matrix.toarray(), of one row matrix.toarray().ravel()")
def sparse_leaf_as_array(case: Case) -> None:
    matrix = csr_matrix(np.eye(8, dtype=np.float32))
    data = from_arrays(np.arange(8))
    for wrong in (data.map(lambda row: {"x": matrix[[row]]}), data.map_batch(lambda rows: {"x": matrix[rows]})):
        with case.refused(LeafError):
            loadax.Dataloader(wrong, 8)
    rows = data.map(lambda row: {"x": matrix[[row]].toarray().ravel()})
    batches = data.map_batch(lambda rows: {"x": matrix[rows].toarray()})
    for right in (rows, batches):
        np.testing.assert_array_equal(loadax.Dataloader(right, 8)[0]["x"], np.eye(8))


@follows("open them by a path: h5py.File(path), or use worker_type='thread'")
def hdf5_of_a_file_object(case: Case) -> None:
    path = case.folder / "x.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(8)
    with h5py.File(io.BytesIO(path.read_bytes()), "r") as file:
        with case.refused(SourceError):
            iter(loadax.Dataloader(file["x"], 8, worker_type="process", num_workers=1))
        assert loadax.Dataloader(file["x"], 8, worker_type="thread")[0].tolist() == list(range(8))
    with h5py.File(path) as file:
        loader = loadax.Dataloader(file["x"], 8, worker_type="process", num_workers=1)
        assert [batch.tolist() for batch in loader] == [list(range(8))]


@follows("take them apart in memory: loadax.from_arrays(jax.tree.map(lambda *leaves: np.concatenate(leaves), …))")
def batches_of_keras(case: Case) -> None:
    class Batches(type("PyDataset", (), {"__module__": "keras.utils"})):  # type: ignore[misc]
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> Any:
            return np.arange(4 * index, 4 * index + 4), np.zeros(4)

    data = Batches()
    with case.refused(ArgumentError):
        loadax.as_dataset(data)
    batches = (data[i] for i in range(len(data)))
    rows = loadax.from_arrays(jax.tree.map(lambda *leaves: np.concatenate(leaves), *batches))
    assert rows.read(range(8))[0].tolist() == list(range(8))


@follows("fill them: loadax.as_dataset(data.filled(0))")
def masked_table_of_astropy(case: Case) -> None:
    """A class stands in, with the members that loadax uses."""

    class Table(dict[str, Any]):
        colnames = ("x",)

        def filled(self, value: int) -> "Table":
            return Table({name: column.filled(value) for name, column in self.items()})

    table = Table({"x": np.ma.masked_array([1, 2], [False, True])})
    with patch.dict(sys.modules, {"astropy.table": type("Module", (), {"Table": Table})}):
        with case.refused(SourceError):
            loadax.as_dataset(table)
        assert loadax.as_dataset(table.filled(0)).read(range(2))["x"].tolist() == [1, 0]
