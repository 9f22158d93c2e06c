"""Files that are no regular files, have become shorter, or say what can't be.

Refused by name, never waited for, never fatal.
"""

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import loadax
from loadax.errors import LeafError, LoadaxError, SourceError
from loadax.reader import Reader
from loadax.work.payload import pack
from tests.servers.child import run_python


@pytest.fixture(params=["pipe", "device", "folder"])
def special(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], Path]:
    """Makes something that is no regular file, under any name."""

    def make(name: str) -> Path:
        path = tmp_path / name
        path.unlink(missing_ok=True)
        match request.param:
            case "pipe":
                os.mkfifo(path)
            case "device":
                path.symlink_to("/dev/zero")
            case "folder":
                path.mkdir()
        return path

    return make


REFUSED = r"it is a pipe \(FIFO\)|it is a device|it is a folder"


class TestNoRegularFile:
    """Files that datasets open are in `tests/formats/test_damage.py`."""

    def test_image_and_tokens_that_became_one(self, special: Callable[[str], Path], tmp_path: Path) -> None:
        (tmp_path / "images").mkdir()
        for name in ("a.png", "b.png"):
            Image.new("RGB", (4, 4)).save(tmp_path / "images" / name)
        images = loadax.from_images(tmp_path / "images")
        special("images/b.png")
        with pytest.raises(SourceError, match=rf"row 1, .*b\.png: it can't be read: .*({REFUSED})"):
            images.read([1])
        assert images.read([0])["image"].shape == (1, 4, 4, 3)
        np.arange(100, dtype=np.uint16).tofile(tmp_path / "a.bin")
        tokens = loadax.from_tokens(tmp_path / "a.bin", 4, dtype="uint16")
        special("a.bin")
        with pytest.raises(SourceError, match=r"a\.bin: the file can't be memory-mapped"):
            tokens.read([0])

    def test_offsets_and_indices(self, special: Callable[[str], Path]) -> None:
        rows = loadax.from_arrays(np.arange(4))
        index = special("index")
        if not index.is_dir():
            with pytest.raises(LoadaxError, match="is a file; pass the path of a folder"):
                rows.filter(bool, index=index, progress=False)
        with pytest.raises(SourceError, match=r"index .*filter\.json can't be read: "):
            rows.filter(bool, index=special("filter.json").parent, progress=False)
        with pytest.raises(LoadaxError):
            loadax.from_documents(np.arange(4), special("offsets.npy"))

    def test_metadata_of_zarr(self, tmp_path: Path) -> None:
        loadax.write_zarr({"x": np.arange(4)}, tmp_path / "s", progress=False)
        (tmp_path / "s" / "x" / "zarr.json").unlink()
        os.mkfifo(tmp_path / "s" / "x" / "zarr.json")
        with pytest.raises(SourceError):
            loadax.from_zarr(tmp_path / "s", variables="x")


READ_CUT = """
import os
import numpy as np
import loadax
import zarr
os.chdir({folder!r})
for name in "abc":
    np.save(name + ".npy", np.arange(1000000).reshape(1000, 1000))
zarr.create_array("r", data=np.ones((1000, 1000)), compressors=None, chunks=(1000, 1000))
opened = {{
    "a.npy": loadax.from_npy({{"x": "a.npy"}}),
    "b.npy": loadax.from_arrays(np.load("b.npy", mmap_mode="r")[5:]),
    "r/c/0/0": loadax.from_zarr("r"),
    "c.npy": loadax.from_documents(np.load("c.npy", mmap_mode="r").reshape(-1), [0, 5, 1000000]).pack(1000),
}}
for file, dataset in opened.items():
    dataset.read([0])
    os.truncate(file, 9000)
    reads = (
        lambda: dataset.read([900]),
        lambda: dataset[900],
        lambda: next(iter(loadax.Dataloader(dataset, batch_size=896))),
    )
    for read in reads:
        try:
            read()
        except loadax.errors.SourceError as error:
            print(file, error)
"""
CUT = "was opened; data must not change while it is read: restore the file, or open the dataset again"


@pytest.mark.processes
def test_mapped_file_that_is_cut_short_ends_no_process(tmp_path: Path) -> None:
    """By SIGBUS, which a read after the end of a mapped file is."""
    told = run_python(READ_CUT.format(folder=str(tmp_path)), {"JAX_PLATFORMS": "cpu"}).splitlines()
    named, messages = zip(*(line.split(" ", maxsplit=1) for line in told), strict=True)
    assert named == ("a.npy",) * 3 + ("b.npy",) * 3 + ("r/c/0/0",) * 3 + ("c.npy",) * 3
    for name, message in zip(named, messages, strict=True):
        assert CUT in message
        assert f"/{name.partition('/')[0]}" in message


@pytest.mark.processes
def test_worker_processes_name_file_that_is_cut_short(tmp_path: Path) -> None:
    """Of a file that is cut short while a worker reads it, and of one that is when it is sent to a worker."""
    path = tmp_path / "a.npy"
    np.save(path, np.zeros((640, 1000)))
    dataset = loadax.from_npy({"x": path})
    settings: Any = {"batch_size": 8, "num_workers": 1, "worker_type": "process"}
    loader = loadax.Dataloader(dataset, prefetch=1, **settings)
    with iter(loader) as batches:
        next(batches)
        os.truncate(path, 9000)
        with pytest.raises(SourceError, match=CUT):
            list(batches)
    with pytest.raises(SourceError, match=CUT), iter(loadax.Dataloader(dataset, **settings)) as batches:
        next(batches)


def test_worker_that_maps_a_cut_file_names_it(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((64, 1000)))
    parcel = pack(Reader(loadax.from_npy(tmp_path / "a.npy").source, (), None))
    os.truncate(tmp_path / "a.npy", 9000)
    with pytest.raises(SourceError, match=CUT):
        pickle.loads(parcel.message)
    (tmp_path / "a.npy").unlink()
    with pytest.raises(
        SourceError, match=r"a\.npy: a worker process can't open this file .*; restore the file, or open the dataset"
    ):
        pickle.loads(parcel.message)


BROKEN_HEADERS = [
    b"{'descr': '<i8', 'fortran_order': False, 'shape': (10,), ",
    b"{'descr': '<i8', 'fortran_order': False, 'shape': (10,), }}",
    b"{'descr': '<i8', 'fortran_order': False, 'shape': (-10,), }",
    b"{'descr': '<i8', 'fortran_order': False, 'shape': (99999999999999999999,), }",
    b"{'descr': '<q9', 'fortran_order': False, 'shape': (10,), }",
    b"{'descr': ('<i8',), 'fortran_order': False, 'shape': (10,), }",
    b"{'descr': '<i8', 'fortran_order': 3, 'shape': 10, }",
    b"{'descr': 'O', 'fortran_order': False, 'shape': (10,), }",
    b"'''",
    b"\xff\xfe",
    b"(" * 200,
    b"[" * 9000,
    b"1" * 5000,
    b"\\",
    b"",
]


@pytest.mark.parametrize("header", BROKEN_HEADERS, ids=range(len(BROKEN_HEADERS)))
def test_damaged_headers_of_npy_files(header: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(header + b"\n").to_bytes(2, "little") + header + b"\n" + bytes(80))
    with pytest.raises(SourceError, match=r"a\.npy"):
        loadax.from_npy(path)
    with pytest.raises(SourceError, match=r"a\.npy"):
        loadax.from_tokens(path, 4)


@pytest.mark.filterwarnings("ignore:Reading `.npy`")
def test_every_flipped_bit_of_a_header(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.arange(10))
    whole = path.read_bytes()
    for bit in range(0, 8 * 128, 3):
        content = bytearray(whole)
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        openers: list[Any] = [loadax.from_npy, lambda path: loadax.from_tokens(path, 4)]
        for opened in openers:
            try:
                opened(path)
            except LoadaxError as error:
                assert "a.npy" in str(error)  # noqa: PT017 - most open, with other numbers


@pytest.mark.parametrize(
    "value", ["3", '"x"', "[]", "{}", "null", '{"metadata": 3}', '{"metadata": [1]}', '{"metadata": {"x": null}}']
)
def test_consolidated_metadata_of_any_type(value: str, tmp_path: Path) -> None:
    loadax.write_zarr({"x": np.arange(4)}, tmp_path / "s", progress=False)
    (tmp_path / "s" / "zarr.json").write_text(
        '{"zarr_format": 3, "node_type": "group", "attributes": {}, "consolidated_metadata": ' + value + "}"
    )
    try:
        assert loadax.from_zarr(tmp_path / "s")[3] == {"x": 3}
    except SourceError as error:
        assert "s: its consolidated metadata is damaged: it must be an object of objects" in str(error)  # noqa: PT017
    assert loadax.from_zarr(tmp_path / "s", variables="x")[3] == {"x": 3}
    (tmp_path / ".zmetadata").write_text('{"zarr_consolidated_format": 1, "metadata": ' + value + "}")
    with pytest.raises(SourceError, match=r"its consolidated metadata is damaged|contains no zarr array"):
        loadax.from_zarr(tmp_path)


@pytest.mark.parametrize("name", ["zarr.json", ".zarray", "loadax.json"])
def test_brackets_without_end(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("[" * 100_000)
    with pytest.raises(SourceError, match=rf"{name} is not valid JSON"):
        loadax.from_zarr(tmp_path)


def test_rows_larger_than_memory_name_their_leaf(tmp_path: Path) -> None:
    import zarr

    zarr.create_group(tmp_path / "s").create_array("wide", shape=(8, 1 << 57), chunks=(1, 1 << 20), dtype="u1")
    dataset = loadax.from_zarr(tmp_path / "s", missing="fill")
    with pytest.raises(LoadaxError, match=r"leaf \['wide'\].* not enough memory"):
        dataset.read([0])
    with pytest.raises(
        LeafError,
        match=r"leaf \['wide'\] is uint8\[144115188075855872\], .* there is not enough memory for .* choose a smaller",
    ):
        next(iter(loadax.Dataloader(dataset, batch_size=8)))


class Tensor:
    """As torch's of bfloat16, or with requires_grad: NumPy can't take it."""

    shape, ndim = (2,), 1

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise TypeError("Got unsupported ScalarType BFloat16")


@pytest.mark.parametrize("verb", ["map", "map_batch"])
def test_what_numpy_cannot_take_names_the_map(verb: str) -> None:
    def gives(example: Any) -> Any:
        return {"x": example["x"], "y": Tensor()}

    dataset = getattr(loadax.from_arrays({"x": np.arange(8)}), verb)(gives)
    reads: list[Any] = [
        lambda: dataset.spec,
        lambda: dataset[0],
        lambda: next(iter(loadax.Dataloader(dataset, batch_size=8))),
    ]
    for read in reads:
        with pytest.raises(
            LeafError, match=r"leaf \['y'\].* that NumPy can't convert to an array \(Got unsupported"
        ) as caught:
            read()
        assert "tensor.detach().float().numpy()" in str(caught.value)
        assert "gives" in str(caught.value) + "".join(getattr(caught.value, "__notes__", ()))


def test_what_numpy_cannot_take_in_a_later_row() -> None:
    def gives(example: Any) -> Any:
        return {"y": np.zeros(2) if example["x"] < 5 else Tensor()}

    dataset = loadax.from_arrays({"x": np.arange(8)}).map(gives)
    with pytest.raises(
        LeafError, match=r"row 5: leaf \['y'\] is a .*Tensor that NumPy can't convert to an array"
    ) as caught:
        dataset.read(range(8))
    assert "gives" in "".join(getattr(caught.value, "__notes__", ()))
