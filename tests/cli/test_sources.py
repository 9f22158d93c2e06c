"""Commands open every kind of data."""

import io
import re
from pathlib import Path

import numpy as np
import pytest
import zarr
from array_record.python.array_record_module import ArrayRecordWriter
from PIL import Image

import loadax
from tests.cli.conftest import Command
from tests.sources.shards.corpora import encoded, write_tar, write_tfrecord


@pytest.mark.parametrize("below", ["", "2020/May"])
def test_a_folder_of_images(below: str, tmp_path: Path, command: Command) -> None:
    folder = tmp_path / "pictures"
    for name in (f"cat/{below}", f"dog/{below}"):
        (folder / name).mkdir(parents=True)
        for number in range(8):
            Image.new("RGB", (12, 10), "teal").save(folder / name / f"{number}.png")
    assert command("convert", folder, tmp_path / "out.zarr", "--size", "5").code == 0
    assert zarr.open_array(tmp_path / "out.zarr" / "image").shape == (16, 5, 5, 3)


@pytest.mark.parametrize("ending", ["array_record", "arrayrecord"])
@pytest.mark.parametrize("given", ["file", "folder", "pattern"])
def test_array_record_files(given: str, ending: str, tmp_path: Path, command: Command) -> None:
    writer = ArrayRecordWriter(str(tmp_path / f"train.{ending}"), "group_size:1")
    for number in range(32):
        writer.write(np.arange(number, dtype=np.uint16).tobytes())
    writer.close()
    path = {"file": tmp_path / f"train.{ending}", "folder": tmp_path, "pattern": tmp_path / f"*.{ending}"}[given]
    assert command("convert", path, tmp_path / "out.zarr", "--dtype", "uint16", "--pad-to", 40).code == 0
    rows = loadax.from_zarr(tmp_path / "out.zarr").read(range(32))
    assert rows["length"].tolist() == [*range(32)]
    assert np.count_nonzero(rows["data"], axis=1).tolist() == [0, *range(31)]


@pytest.mark.parametrize("given", ["file", "folder", "pattern"])
def test_tar_files(given: str, tmp_path: Path, command: Command) -> None:
    image = io.BytesIO()
    Image.new("RGB", (9, 7), "teal").save(image, "PNG")
    shards = tmp_path / "shards"
    files = {f"{row}.{end}": part for row in range(16) for end, part in (("png", image.getvalue()), ("cls", b"3"))}
    write_tar(shards / "0.tar", files)
    path = {"file": shards / "0.tar", "folder": shards, "pattern": shards / "*.tar"}[given]
    out = command("inspect", path).out
    assert "16 examples (cls, png) in 1 tar file\n" in out
    assert re.search(r"png\S*\s+7 x 9 x 3\s+uint8", out)
    assert command("convert", path, tmp_path / "out.zarr", "--size", "4x6", "--variables", "png").code == 0
    assert zarr.open_array(tmp_path / "out.zarr" / "png").shape == (16, 4, 6, 3)


def test_tfrecord_files(tmp_path: Path, command: Command) -> None:
    path = write_tfrecord(tmp_path / "train.tfrecord-00000-of-00001", [b"one", b"two"])
    assert "2 records" in command("inspect", path).out
    assert "convert it to numbers in a map" in command("convert", path, tmp_path / "out.zarr").err
    message = "has no feature 'x', since it is not a tf.train.Example; leave --columns out"
    assert message in command("inspect", path, "--columns", "x").err


def test_tfrecord_files_of_examples(tmp_path: Path, command: Command) -> None:
    """Features are those of the first record, but for lists of several byte strings, and of nothing."""
    some = {"name": [b"n"], "words": [b"a", b"b"], "none": []}
    records = [encoded({"x": np.array([row]), "v": np.arange(2) / 4 + row, **some}) for row in range(3)]
    write_tfrecord(tmp_path / "0.tfrecord", [])
    write_tfrecord(tmp_path / "1.tfrecord", records)
    shown = command("inspect", tmp_path).out
    (line,) = (line.strip() for line in shown.splitlines() if "loadax.from_tfrecord" in line)
    assert "features={'name': bytes, 'v': ('float32', 2), 'x': 'int64'}" in line
    opened = eval(line.replace("(seed)", "(0)"), {"loadax": loadax})
    assert sorted(int(example["x"]) for example in opened) == [0, 1, 2]
    assert command("convert", tmp_path, tmp_path / "out.zarr", "--columns", "x,v").code == 0
    assert loadax.from_zarr(tmp_path / "out.zarr").read([2])["v"].tolist() == [[2.0, 2.25]]
    assert "has no feature 'y', but name, v, x; pass these" in command("inspect", tmp_path, "--columns", "y").err
