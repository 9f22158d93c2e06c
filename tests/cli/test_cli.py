"""The command line as its users meet it: arguments, output, exit codes."""

import argparse
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import zarr
from PIL import Image

from loadax.cli.command import error_text
from loadax.core import arguments
from loadax.core.formatting import size_text
from loadax.errors import ArgumentError
from loadax.io import from_zarr
from loadax.writing.write import write_zarr
from tests.cli.conftest import Command
from tests.writing.rows import TreeRows, made_up, tree_of


@pytest.fixture
def fields(tmp_path: Path) -> Path:
    """A group as another program writes it: 100 rows of two arrays in chunks of 20, and coordinates."""
    path = tmp_path / "fields.zarr"
    group = zarr.open_group(path, mode="w", zarr_format=2)
    for number, name in enumerate(("t2m", "u10")):
        array = group.create_array(name, shape=(100, 32, 16), chunks=(20, 32, 16), dtype="f4")
        array[:] = made_up(np.float32, (100, 32, 16), number) + 1
    group.create_array("lat", shape=(32,), chunks=(32,), dtype="f4")[:] = np.arange(1, 33)
    return path


def member(path: Path, name: str) -> Any:
    """An array of a group, as zarr-python reads it."""
    return zarr.open_group(path, mode="r")[name]


# convert


def test_convert_a_zarr_group(fields: Path, tmp_path: Path, command: Command) -> None:
    done = command(
        "convert", fields, tmp_path / "out", "--variables", "t2m,u10", "--shard-rows", 16, "--compression", "blosc"
    )
    assert (done.code, done.out, done.err) == (0, f"{tmp_path}/out: written, 100 rows in all\n", "")
    for name in ("t2m", "u10"):
        found, source = member(tmp_path / "out", name), member(fields, name)
        np.testing.assert_array_equal(found[:], source[:])
        assert (found.shards, found.chunks) == ((16, 32, 16), (2, 32, 16))
        assert "BloscCodec" in str(found.compressors)


def test_convert_shuffled_has_the_order_of_the_dataset(fields: Path, tmp_path: Path, command: Command) -> None:
    done = command("convert", fields, tmp_path / "out", "--variables", "t2m", "--shuffle", 5, "--workers", 1)
    assert (done.code, done.err) == (0, "")
    with pytest.warns(UserWarning, match="decodes up to 20 rows"):
        expected = from_zarr(fields, "t2m").shuffle(5).read(np.arange(100))["t2m"]
    np.testing.assert_array_equal(member(tmp_path / "out", "t2m")[:], expected)


def test_convert_by_an_executor_writes_the_same_store(tmp_path: Path, command: Command) -> None:
    np.save(tmp_path / "x.npy", np.arange(100))
    for name, options in {"a": [], "b": ["--executor", "threads:2"]}.items():
        assert command("convert", tmp_path / "x.npy", tmp_path / name, "--shard-rows", 32, *options).code == 0
    written = [
        {str(path.relative_to(tmp_path / name)): path.read_bytes() for path in (tmp_path / name).rglob("c/*")}
        for name in "ab"
    ]
    assert written[0] == written[1]
    assert len(written[0]) == 4
    done = command("convert", tmp_path / "x.npy", tmp_path / "c", "--shards", "0/2", "--executor", "threads:2")
    assert done.code == 2
    assert "executor= with shard=(0, 2): its workers keep parts in a folder that they share" in done.err


def test_convert_npy(tmp_path: Path, command: Command) -> None:
    values = made_up(np.int16, (30, 4))
    np.save(tmp_path / "x.npy", values)
    assert (
        command("convert", tmp_path / "x.npy", tmp_path / "out", "--chunk-rows", 3, "--compression", "none").code == 0
    )
    array = zarr.open_array(tmp_path / "out", mode="r")
    np.testing.assert_array_equal(array[:], values)
    assert array.chunks == (3, 4)
    assert "Zstd" not in str(array.compressors)


def test_convert_tokens(tmp_path: Path, command: Command) -> None:
    tokens = np.arange(1000, dtype=np.uint16)
    tokens.tofile(tmp_path / "corpus.bin")
    assert command("convert", tmp_path / "corpus.bin", tmp_path / "out", "--seq-len", 9, "--dtype", "uint16").code == 0
    rows = member(tmp_path / "out", "tokens")[:]
    np.testing.assert_array_equal(rows, tokens[np.arange(len(rows))[:, None] * 9 + np.arange(10)])


def test_convert_in_shares_and_resume(fields: Path, tmp_path: Path, command: Command) -> None:
    arguments = ("convert", fields, tmp_path / "out", "--variables", "t2m", "--shard-rows", 8)
    done = command(*arguments, "--shards", "1/2")
    assert (done.code, done.out) == (0, f"{tmp_path}/out: written (share 1 of 2), 100 rows in all\n")
    assert "process 1 of 2 is done; the store is complete when all are" in done.err
    refused = command(*arguments)
    assert refused.code == 2
    assert refused.err == (
        f"loadax: error: {tmp_path}/out is an unfinished store; "
        "pass resume=True to resume it, or pass overwrite=True to start over (--resume)\n"
    )
    done = command(*arguments, "--resume")
    assert done.code == 0
    assert "kept 6 of 13 parts" in done.err
    other = command(
        "convert", fields, tmp_path / "out", "--variables", "t2m", "--shard-rows", 8, "--resume", "--shuffle", 1
    )
    assert other.code == 2
    assert " was started with data.order" in other.err
    assert command(*arguments).code == 2
    assert command(*arguments, "--overwrite").code == 0


# verify


def test_verify(tmp_path: Path, command: Command) -> None:
    path = tmp_path / "s"
    write_zarr(TreeRows(tree_of(50)), path, chunk_rows=2, shard_rows=10)
    good = command("verify", path)
    assert (good.code, good.out, good.err) == (0, f"{path}: 50 rows of 3 arrays, 68 KiB raw: all can be read\n", "")
    (path / "image/c/2/0/0/0").unlink()
    shard = path / "more.label/c/4"
    shard.write_bytes(shard.read_bytes()[:-1])
    bad = command("verify", path)
    lines = bad.out.splitlines()
    assert (bad.code, bad.err, len(lines)) == (1, "", 3)
    assert re.match(r"image: rows 20 to 29: NOT_FOUND: chunk .* is missing", lines[0])
    assert lines[1].startswith("more.label: rows 40 to 49: DATA_LOSS: ")
    assert lines[2] == f"{path}: 50 rows of 3 arrays, 68 KiB raw: 2 damaged places; copy or write those files again"


def test_verify_by_an_executor(fields: Path, tmp_path: Path, command: Command) -> None:
    plain = command("verify", fields)
    for _ in range(2):
        kept = command("verify", fields, "--index", tmp_path / "checked", "--executor", "threads:2")
        assert (kept.code, kept.out) == (plain.code, plain.out)
    assert (tmp_path / "checked" / "verify.json").exists()
    refused = command("verify", fields, "--executor", "threads:2")
    assert "executor= needs index=, a folder that all its workers share" in refused.err


def test_verify_a_store_of_others(fields: Path, command: Command) -> None:
    good = command("verify", fields)
    assert good.code == 0
    assert "lat has no checksums: flipped bits in it go unnoticed\n" in good.out
    (fields / "t2m/1.0.0").unlink()
    bad = command("verify", fields)
    assert bad.code == 1
    assert bad.out.startswith("t2m: rows 20 to 39: NOT_FOUND: chunk {1, 0, 0}")
    assert "1 damaged place;" in bad.out
    assert bad.out.endswith("missing chunks may contain only the fill value: some writers leave such chunks out\n")


# inspect


def test_inspect_store_of_loadax(tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_zarr(
        TreeRows({"image": np.zeros((5000, 64, 64, 3), np.uint8), "label": np.arange(5000)}), "s", shard_rows=2500
    )
    shown = command("inspect", "s")
    sizes = {
        name: sum(each.stat().st_size for each in Path("s", name).rglob("*") if each.is_file())
        for name in ("image", "label")
    }
    image = f"{size_text(sizes['image'])} ({5000 * 64 * 64 * 3 / sizes['image']:.1f}x)"
    label = f"{size_text(sizes['label'])} ({5000 * 8 / sizes['label']:.1f}x)"
    assert shown.out == (
        "s: zarr3 group, 2 arrays of 5,000 rows\n"
        "manifest: yes (loadax.json): complete, written by loadax\n"
        "\n"
        "array  shape               dtype  chunk               shard                codecs       checksum  raw     on "
        "disk\n"
        "image  5000 x 64 x 64 x 3  uint8  1 row (12 KiB)      2,500 rows (29 MiB)  zstd crc32c  yes       59 MiB  "
        f"{image}\n"
        "label  5000                int64  500 rows (3.9 KiB)  2,500 rows (20 KiB)  zstd crc32c  yes       39 KiB  "
        f"{label}\n"
        "\n"
        "loadax.from_zarr('s')\n"
    )


def test_inspect_store_of_zarr_python(fields: Path, command: Command) -> None:
    lines = command("inspect", fields).out.splitlines()
    assert lines[0] == f"{fields}: zarr group, 3 arrays of 32 or 100 rows"
    assert lines[1].startswith("manifest: none (no loadax.json): written by another program")
    assert re.match(r"t2m +100 x 32 x 16 +float32 +20 rows \(40 KiB\) +none +blosc +NO +200 KiB +\d", lines[5])
    assert lines[7:] == ["", f"loadax.from_zarr('{fields}')"]


def test_inspect_shows_chunks_and_shape_of_an_array(tmp_path: Path, command: Command) -> None:
    zarr.create_array(tmp_path / "a", shape=(1000, 10), chunks=(50, 5), dtype="f4", compressors=None)
    out = command("inspect", tmp_path / "a").out
    assert out.startswith(f"{tmp_path}/a: zarr3 array of 1,000 rows\n")
    assert "(itself)  1000 x 10  float32  50 x 5 (1000 B)  none   none" in out


def test_inspect_and_verify_unfinished_store(tmp_path: Path, command: Command) -> None:
    write_zarr(TreeRows({"x": np.zeros(9), "y": np.zeros(9)}), tmp_path / "s")
    (tmp_path / "s/loadax.json").rename(tmp_path / "s/loadax.partial.json")
    (tmp_path / "s/y/zarr.json").unlink()
    out = command("inspect", tmp_path / "s").out
    assert (
        "manifest: HALF-WRITTEN (no loadax.json): finish it with `loadax convert … --resume`, "
        "or delete it; it can't be opened\n" in out
    )
    assert "array 'y' is missing: " in out
    half = command("verify", tmp_path / "s")
    assert half.code == 2
    assert "the store is unfinished (loadax.json is missing); resume with `loadax convert … --resume`" in half.err


def test_inspect_single_values(tmp_path: Path, command: Command) -> None:
    zarr.open_group(tmp_path, mode="w").create_array("one", shape=(), dtype="i4")[...] = 3
    out = command("inspect", tmp_path).out
    assert out.startswith(f"{tmp_path}: zarr3 group, 1 array\n")
    assert re.search(r"one +a single value +int32", out)


def test_inspect_missing_store(tmp_path: Path, command: Command) -> None:
    for path, message in (
        (tmp_path, "contains no zarr array"),
        (tmp_path / "tran.zarr", "tran.zarr does not exist; pass"),
    ):
        failed = command("inspect", path)
        assert (failed.code, failed.out) == (2, "")
        assert message in failed.err


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        (["x.npy"], ["x.npy: 6 rows in 1 file", "(itself)  2      float64", "\nloadax.from_npy('x.npy')\n"]),
        (
            ["x.bin", "--seq-len", 3, "--dtype", "uint16"],
            ["8 rows in 1 file", "loadax.from_tokens('x.bin', seq_len=3, dtype='uint16')\n"],
        ),
        (["photos"], ["2 rows", "7 x 9 x 3", "uint8", "loadax.from_images('photos')\n"]),
        (["made:numbers"], ["made:numbers: 5 rows", "(itself)  a single value  int64", "\nmade.numbers()\n"]),
        (["x.parquet"], ["x.parquet: 25 rows in 1 file", "3 chunks of 5 to 10 rows, each decoded whole\n"]),
    ],
)
def test_inspect_what_is_not_a_store(
    arguments: list[Any], lines: list[str], tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.zeros((6, 2)))
    np.arange(25, dtype=np.uint16).tofile("x.bin")
    pyarrow.parquet.write_table(pyarrow.table({"x": np.arange(25)}), "x.parquet", row_group_size=10)
    Path("photos").mkdir()
    for name in ("a", "b"):
        Image.new("RGB", (9, 7), "teal").save(f"photos/{name}.png")
    Path("made.py").write_text("import loadax, numpy\ndef numbers(): return loadax.from_arrays(numpy.arange(5))\n")
    shown = command("inspect", *arguments)
    assert shown.code == 0, shown.err
    for line in lines:
        assert line in shown.out, shown.out


# the whole


OPTIONS = argparse.Namespace(
    chunk_rows=8, dtype="int8", size=(224, 288), overwrite=True, resume=False, pad_to=None, key=None, path="x.npy"
)


@pytest.mark.parametrize(
    ("argument", "message", "expected"),
    [
        ("chunk_rows", "chunk_rows=8 but there are 3 rows", "--chunk-rows 8 but there are 3 rows"),
        ("dtype", "dtype='int8': pass 'int16'", "--dtype int8: pass 'int16'"),
        # Another value than the one that was typed: a part of it, or what follows from it.
        ("chunk_rows", "chunk_rows=80: pass 8", "--chunk-rows 8: chunk_rows=80: pass 8"),
        ("chunk_rows", "leaf: use 6 rows", "--chunk-rows 8: leaf: use 6 rows"),
        ("size", "a.png is 3x4; pass size=", "--size: a.png is 3x4; pass size="),
        ("overwrite", "overwrite=True with shard=(0, 2): no", "--overwrite with shard=(0, 2): no"),
        ("resume", "half a store; pass resume=True", "half a store; pass resume=True (--resume)"),
        ("pad_to", "ragged; pass pad_to=", "ragged; pass pad_to= (--pad-to)"),
        # No option, or one of another meaning.
        ("seed", "seed=3: pass 4", "seed=3: pass 4"),
        ("key", "key='user': no leaf", "key='user': no leaf"),
        ("path", "path=3: pass a path", "path=3: pass a path"),
        ("seq_len", "seq_len=3: pass 4", "seq_len=3: pass 4"),
        (None, "no data", "no data"),
    ],
)
def test_errors_name_the_option(argument: str | None, message: str, expected: str) -> None:
    assert error_text(ArgumentError(message, argument=argument), OPTIONS) == expected


def test_every_check_of_an_argument_says_which_one() -> None:
    checks: list[Callable[[], Any]] = [
        lambda: arguments.integer("size", "x"),
        lambda: arguments.integer("size", 0, 1),
        lambda: arguments.integer("size", 1 << 70),
        lambda: arguments.number("size", "x", "a number"),
        lambda: arguments.flag("size", 3),
        lambda: arguments.choice("size", "x", ("a", "b")),
        lambda: arguments.entries("size", 3, "numbers"),
        lambda: arguments.path("size", 3),
        lambda: arguments.path("size", ""),
    ]
    for check in checks:
        with pytest.raises(ArgumentError) as caught:
            check()
        assert caught.value.argument == "size"
        assert pickle.loads(pickle.dumps(caught.value)).argument == "size"
