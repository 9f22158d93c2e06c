"""`.npy` files, memory-mapped, and files of other formats."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadax.errors import SourceError
from loadax.sources.npy.source import open_npy

VALUES = np.arange(60, dtype=np.float32).reshape(12, 5)


@pytest.mark.parametrize(
    "stored", [VALUES, np.asfortranarray(VALUES), VALUES.astype(">f4")], ids=["C", "fortran", "big-endian"]
)
@pytest.mark.parametrize("kind", [str, Path])
def test_a_file_is_read_as_it_was_written(stored: Any, kind: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", stored)
    source = open_npy(kind(tmp_path / "x.npy"))
    batch = source.read(np.array([11, 0, 0]))
    np.testing.assert_array_equal(batch, VALUES[[11, 0, 0]])
    assert batch.dtype.isnative
    assert repr(source) == "arrays memory-mapped"


def test_a_tree_of_files(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", VALUES)
    np.save(tmp_path / "y.npy", np.arange(12))
    batch = open_npy({"x": tmp_path / "x.npy", "y": (str(tmp_path / "y.npy"),)}).read(np.array([3]))
    assert batch["x"].tolist() == [VALUES[3].tolist()]
    assert batch["y"][0].tolist() == [3]


def test_files_are_mapped_not_read(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", VALUES)
    source = open_npy(tmp_path / "x.npy")
    file = np.lib.format.open_memmap(tmp_path / "x.npy", "r+")
    file[4] = 77
    file.flush()
    assert (source.read(np.array([4])) == 77).all()


def test_a_file_without_rows_is_a_dataset_without_rows(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", VALUES[:0])
    assert len(open_npy(tmp_path / "x.npy")) == 0


def test_files_that_are_no_npy(tmp_path: Path) -> None:
    np.save(tmp_path / "good.npy", VALUES)
    np.save(tmp_path / "objects.npy", np.array([{}, 1], object), allow_pickle=True)
    np.savez(tmp_path / "both.npz", a=VALUES, b=VALUES)
    good = (tmp_path / "good.npy").read_bytes()
    for name, content in {"empty": b"", "text": b"hello", "header": good[:40], "cut": good[:-8]}.items():
        (tmp_path / f"{name}.npy").write_bytes(content)
    remedy = r"write it with numpy\.save; if it is a flat file of tokens, open it with from_tokens and dtype="
    for name, message in {
        "nowhere.npy": ": there is no such file",
        "empty.npy": f" is not a .npy file: it begins with b''; {remedy}",
        "text.npy": f" is not a .npy file: it begins with b'hello'; {remedy}",
        "header.npy": ": bytes 10 to 127 are missing: the file is cut short",
        "cut.npy": r": the file is cut short: float32\[12, 5\] of its header needs 368 bytes; copy it again",
        "objects.npy": r" contains Python objects; save an array of numbers with numpy\.save",
        "both.npz": r" is not a .npy file: it begins with b'PK.*; an archive \(\.npz\): save each of its arrays",
    }.items():
        with pytest.raises(SourceError, match=re.escape(str(tmp_path / name)) + message):
            open_npy({"x": tmp_path / name})


def npy_of(version: int, header: str, content: bytes = bytes(32)) -> bytes:
    text = header.ljust(117).encode("latin1" if version < 3 else "utf-8") + b"\n"
    return b"\x93NUMPY" + bytes([version, 0]) + len(text).to_bytes(2 if version == 1 else 4, "little") + text + content


@pytest.mark.parametrize("version", [1, 2, 3])
def test_headers_are_those_that_numpy_reads(version: int, tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    path.write_bytes(npy_of(version, "{'descr': [('é', '<i4')], 'fortran_order': False, 'shape': (8,), }"))
    assert open_npy(path).spec.dtype.names == np.load(path).dtype.names
    path.write_bytes(npy_of(version, "{'descr': '<i4', 'fortran_order': False, 'shape': (8L,), }"))  # by Python 2
    if version < 3:
        with pytest.warns(UserWarning, match="Python 2"):
            assert len(open_npy(path)) == 8
    for header in (
        "{'descr': '<i4', 'fortran_order': False, 'shape': (True,), }",
        "{'descr': '<i4', 'fortran_order': False, 'shape': (2.9,), }",
        "{'descr': '<i4', 'fortran_order': False, 'shape': '8', }",
        "{'descr': '<i4', 'fortran_order': False, 'shape': (8,), 'more': 1}",
        "{'descr': '<i4', 'fortran_order': False, 'shape': (4611686018427387904, 0), }",
        "{'descr': '<i4', 'fortran_order': 2, 'shape': (8,), }",
    ):
        path.write_bytes(npy_of(version, header))
        with pytest.raises(SourceError, match=r"x\.npy: the header of this .npy file can't be read: "):
            open_npy(path)
    path.write_bytes(npy_of(9, "{'descr': '<i4', 'fortran_order': False, 'shape': (8,), }"))
    with pytest.raises(SourceError, match=r"x\.npy is a .npy file of version 9\.0, which NumPy never wrote; copy it"):
        open_npy(path)


def test_a_single_value_and_unequal_lengths_name_the_leaf(tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", np.float32(1))
    np.save(tmp_path / "x.npy", VALUES)
    np.save(tmp_path / "y.npy", VALUES[:4])
    with pytest.raises(SourceError, match=r"one\.npy is a scalar without rows"):
        open_npy({"one": tmp_path / "one.npy"})
    with pytest.raises(SourceError, match=r"\(\['x'\]: 12, \['y'\]: 4\)"):
        open_npy({"x": tmp_path / "x.npy", "y": tmp_path / "y.npy"})
