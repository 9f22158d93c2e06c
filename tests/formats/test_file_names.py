"""Names of files that are not UTF-8, or hold control characters: read, or refused in text that can be printed."""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import loadax
from loadax.errors import LoadaxError, SourceError
from loadax.redaction import redact
from tests.formats.samples import Sample, every

NAMES = {"not UTF-8": b"caf\xe9\xff", "control characters": b"a\x1bb\r\x07", "turned text": "a\u202eb".encode()}


def named(folder: Path, name: bytes, ending: str = "") -> Path:
    return folder / os.fsdecode(name + ending.encode())


def check_printable(text: str) -> None:
    text.encode()
    assert not set(text) & {"\x1b", "\r", "\x07", "\u202e"}, ascii(text)


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
@every(together=True)
def test_every_function_reads_or_names_it(
    sample: Sample, name: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "loadax")
    folder = named(tmp_path, name)
    sample.file(named(folder, name, sample.ending), [7])
    named(folder, name, f"{sample.ending}~").write_bytes(b"9")
    for path in (named(folder, name, sample.ending), folder, folder / "*"):
        assert sample.numbers(path) == [7]
    damaged, missing = named(folder, name + b"x", sample.ending), named(folder, name + b"y", sample.ending)
    damaged.write_bytes(b"\x01rubbis")
    for path in (damaged, missing, folder / "zzz*"):
        with pytest.raises(LoadaxError) as caught:
            sample.numbers(path)
        check_printable(" ".join([str(caught.value), *getattr(caught.value, "__notes__", ())]))
    check_printable(caplog.text)


def test_images_in_such_folders(tmp_path: Path) -> None:
    folder = named(tmp_path, b"caf\xe9")
    folder.mkdir()
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    (tmp_path / "a.png").rename(named(folder, b"\xff", ".png"))
    for path in (tmp_path, folder):
        data = loadax.from_images(path)
        assert data[0]["image"].shape == (4, 4, 3)
        check_printable(repr(data))
    with pytest.raises(SourceError) as caught:
        loadax.from_images(named(tmp_path, b"\xff"))
    check_printable(str(caught.value))


OPEN_STORE: dict[str, Callable[[Path], Any]] = {
    "from_zarr": loadax.from_zarr,
    "from_tensorstore": lambda path: loadax.from_tensorstore(
        {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path / "x")}}
    ),
    "write_zarr": lambda path: loadax.write_zarr({"x": np.arange(3)}, path, overwrite=True, progress=False),
    "cache": lambda path: loadax.from_arrays({"x": np.arange(3)}).cache(path),
}


@pytest.mark.parametrize("open_store", OPEN_STORE.values(), ids=OPEN_STORE)
def test_stores_are_refused_and_open_by_a_link(open_store: Callable[[Path], Any], tmp_path: Path) -> None:
    store = named(tmp_path, b"caf\xe9")
    loadax.write_zarr({"x": np.arange(3)}, tmp_path / "plain", progress=False)
    (tmp_path / "plain").rename(store)
    with pytest.raises(LoadaxError, match=r"caf.*(xe9|udce9)") as caught:
        open_store(store)
    check_printable(str(caught.value))
    assert "UTF-8" in str(caught.value) or "from_tensorstore" in str(open_store) or "spec" in str(caught.value)
    (tmp_path / "link").symlink_to(store)
    assert loadax.from_zarr(tmp_path / "link").read(range(3))["x"].tolist() == [0, 1, 2]


def test_redact_keeps_what_can_be_printed() -> None:
    text = "café 日本 😀 a\tb\nc"
    assert redact(text) == text
    assert redact("\udcff\ud800\x9b\x00") == r"\xff\ud800\x9b\x00"
