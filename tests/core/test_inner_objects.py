"""Handles that objects of users hold, wherever they hold them."""

import ctypes
import functools
import io
import itertools
import logging
import os
import socket
import sqlite3
import sys
import tarfile
import threading
import types
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import netCDF4
import numpy as np
import pandas as pd
import pytest
import tensorstore
from PIL import Image
from sentencepiece import SentencePieceProcessor
from tokenizers import Tokenizer
from tokenizers.models import BPE

from loadax import from_npy
from loadax.core.inner_objects import handles, reason_for_turns

opened: Any = None  # an open file in some tests
here = sys.modules[__name__]


class Attribute:
    def __init__(self, f: Any):
        self.f = f


class Slot:
    __slots__ = ("f",)

    def __init__(self, f: Any):
        self.f = f


class ClassAttribute:
    f: Any = None


class Method:
    def __getitem__(self, row: int) -> Any:
        return helper(row)


def helper(row: int) -> Any:
    return (opened, row)


def through_module(row: int) -> Any:
    return (here.opened, row)


def of_class(f: Any) -> Any:
    return type("Holder", (ClassAttribute,), {"f": f, "__module__": __name__})()


HOLDERS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "itself": (lambda f: f, "x"),
    "attribute": (Attribute, "Attribute.f"),
    "slot": (Slot, "Slot.f"),
    "attribute of the class": (of_class, "Holder.f"),
    "object in an object": (lambda f: Attribute(Attribute(Slot(f))), "Slot.f"),
    "object in a list in a dict": (lambda f: {"a": [Attribute(f)]}, "Attribute.f"),
    "closure": (lambda f: lambda row: (f, row), "<lambda>.f"),
    "default of an argument": (lambda f: lambda row, f=f: (f, row), "x"),
    "partial": (lambda f: functools.partial(lambda f, row: (f, row), f), "partial"),
    "bound method": (lambda f: f.read, "x"),
    "method of an object": (lambda f: Attribute(f).__init__, "Attribute.f"),  # type: ignore[misc]
    "cached function": (lambda f: functools.cache(lambda row: (f, row)), "<lambda>.f"),
    "property": (lambda f: type("P", (), {"x": property(lambda _: f), "__module__": __name__})(), "<lambda>.f"),
    "global": (lambda _: helper, "helper.opened"),
    "global of a function that it calls": (lambda _: Method(), "helper.opened"),
    "global of a module": (lambda _: through_module, "through_module.opened"),
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_open_file_is_found_in(holder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make, name = HOLDERS[holder]
    (tmp_path / "a").write_bytes(b"abc")
    with (tmp_path / "a").open("rb") as file:
        assert not handles(make(None) if "method" not in holder else None, "x")
        monkeypatch.setattr(here, "opened", file)
        assert handles(make(file), "x")[0] == (name, file)
    assert not handles(make(file), "x"), "a closed file has no position"


@pytest.fixture
def kinds(tmp_path: Path) -> Iterator[dict[str, Any]]:
    np.savez(tmp_path / "a.npz", a=np.arange(3))
    Image.new("RGB", (2, 2)).save(tmp_path / "a.png")
    (tmp_path / "a.txt").write_text("text")
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.add(tmp_path / "a.txt")
    with netCDF4.Dataset(tmp_path / "a.nc", "w"):
        pass
    made: dict[str, Any] = {
        "text file": (tmp_path / "a.txt").open(),
        "bytes in memory": io.BytesIO(b"abc"),
        "zip file": zipfile.ZipFile(tmp_path / "a.npz"),
        "npz file": np.load(tmp_path / "a.npz"),
        "tar file": tarfile.open(tmp_path / "a.tar"),  # noqa: SIM115
        "lazy image": Image.open(tmp_path / "a.png"),
        "netCDF4": netCDF4.Dataset(tmp_path / "a.nc"),
        "connection": sqlite3.connect(tmp_path / "a.db"),
        "socket": socket.socket(),
    }
    yield made | {
        "descriptor": lambda descriptor, row: os.read(descriptor, os.lseek(descriptor, row, 0)),
        "cursor": made["connection"].cursor(),
        "generator": (row for row in range(3)),
    }
    for handle in made.values():
        handle.close()


def test_every_kind_of_handle_is_found(kinds: dict[str, Any]) -> None:
    assert [kind for kind, handle in kinds.items() if not handles(Attribute([handle]), "x")] == []


def test_what_threads_can_share_is_no_handle(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(3))
    per_thread = threading.local()
    with (tmp_path / "a.npy").open("rb") as per_thread.f, h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(3)
        log = (tmp_path / "log").open("w")
        shared = {
            "own per thread": per_thread,
            "h5py, which has a lock": file["x"],
            "loaded image": Image.new("RGB", (2, 2)),
            "arrays": [np.arange(3), np.load(tmp_path / "a.npy", mmap_mode="r")],
            "log": (log, logging.getLogger("mine"), sys.stdin, sys.stdout),
            "counter": itertools.count(),
            "dataset": from_npy(tmp_path / "a.npy"),
            "library": lambda: (np, types, pytest, Path),
        }
        found = {name: handles(Attribute(value), "x") for name, value in shared.items()}
        log.close()
    assert not any(found.values()), found


class SwigPyObject:
    """Stands for SWIG's own class of pointers."""


class Proxy:
    """As a class of GDAL's."""

    def __init__(self) -> None:
        self.this = SwigPyObject()


def of_swig(module: str) -> Any:
    return type("Dataset", (Proxy,), {"__module__": module})()


def test_resources_of_c_libraries_are_found_on_suspicion() -> None:
    number = ctypes.c_int(1)
    cffi = pytest.importorskip("cffi").FFI()
    made = {
        "class of Cython, which closes": pd.read_csv(io.StringIO("a\n1\n"), chunksize=1)._engine._reader,
        "GDAL": of_swig("osgeo.gdal"),
        "address": ctypes.c_void_p(1),
        "pointer": ctypes.pointer(number),
        "pointer of cffi": cffi.new("int *"),
    }
    found = {name: handles(Attribute(value), "x") for name, value in made.items()}
    assert [name for name, handle in found.items() if len(handle) != 1] == []
    assert found["address"] == [("Attribute.f", made["address"])]
    assert {reason_for_turns(value) for value in made.values()} == {
        "an object of a C library that may not allow several threads to use it at the same time"
    }
    assert reason_for_turns(io.BytesIO()) == "which threads can't use at the same time"


def test_objects_of_c_libraries_that_threads_share_are_no_handles() -> None:
    cffi = pytest.importorskip("cffi").FFI()
    shared = {
        "generator": np.random.default_rng(0),
        "lock": threading.Lock(),
        "memory": memoryview(b"abc"),
        "tokenizer": Tokenizer(BPE()),
        "SWIG, but safe": SentencePieceProcessor(),
        "store": tensorstore.array(np.arange(3)),
        "library": ctypes.CDLL(None),
        "array of C": (ctypes.c_int * 3)(),
        "array of cffi": cffi.new("int[3]"),
        "class of Python, which closes": Attribute,
        "FAISS": of_swig("faiss.swigfaiss"),
    }
    assert {name: found for name, value in shared.items() if (found := handles(Attribute(value), "x"))} == {}


class Hostile:
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


class Describes:
    """As classes of AnnData: its module is no text."""

    __module__ = property(len)


def test_objects_that_raise_when_looked_at_are_passed_over() -> None:
    with io.BytesIO() as file:
        assert [handle for _, handle in handles([Hostile(), Describes(), file], "x")] == [file]


def test_cycles_and_large_objects_end() -> None:
    cycle: list[Any] = [list(range(100_000)), {key: object() for key in range(100_000)}]
    cycle.append(cycle)
    assert not handles(cycle, "x")
