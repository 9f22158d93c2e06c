"""Caches and indices of other data are refused or made anew: also where it differs in a row that no sample meets."""

import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import loadax
from loadax.core.distributed import Process
from loadax.dataset import Dataset
from loadax.errors import ArgumentError, SourceError
from loadax.sources.base import walk
from loadax.writing import data_fingerprint
from loadax.writing.data_fingerprint import identify

ROWS = 1000
OLD = np.arange(ROWS)
NEW = OLD.copy()
NEW[1], NEW[200:400] = 998, -7
ONE = OLD.copy()
ONE[997] = -7


def double(example: Any) -> Any:
    return {"x": example["x"] * 2}


def positive(example: Any) -> bool:
    return bool(example["x"] >= 0)


def arrays(values: Any) -> Dataset:
    return loadax.from_arrays({"x": values})


def examples(values: Any) -> Dataset:
    return loadax.from_source([{"x": value} for value in values])


def joined(values: Any) -> Dataset:
    return loadax.concat([arrays(values), arrays(values)])


def windows(values: Any) -> Dataset:
    return arrays(values).windows(3)


def also_double(example: Any) -> Any:
    return {"x": example["x"] + example["x"]}


FEW = OLD[:20]
INNER: dict[str, Callable[[Any], Dataset]] = {
    "pack": lambda fn: loadax.from_source([{"x": np.arange(row % 7)} for row in FEW]).map(fn).pack(16),
    "map behind pack": lambda fn: INNER["pack"](fn).map(lambda row: row),
    "concat": lambda fn: loadax.concat([arrays(FEW), arrays(FEW).map(fn)]),
    "zip": lambda fn: arrays(FEW).map(fn).zip(arrays(FEW)),
    "flat_map": lambda fn: arrays(FEW).flat_map(lambda example: [fn(example), example], 2),
    "flat_map with counts": lambda fn: arrays(FEW).flat_map(lambda example: [fn(example)], counts=np.ones(20, int)),
    "group": lambda fn: arrays(FEW).map(fn).group(1, np.ones(20, int)).map(lambda group: group[0]),
}


@pytest.mark.parametrize("make", INNER.values(), ids=INNER.keys())
def test_cache_of_other_inner_functions_is_refused(make: Callable[[Any], Dataset], tmp_path: Path) -> None:
    make(double).cache(tmp_path / "c")
    make(double).cache(tmp_path / "c")
    make(double).cache(tmp_path / "key", key="v1")
    make(also_double).cache(tmp_path / "key", key="v1")
    with pytest.raises(ArgumentError, match=r"data\.inner functions = .*\(functions are compared by their code"):
        make(also_double).cache(tmp_path / "c")
    make(also_double).cache(tmp_path / "c", overwrite=True)
    manifest = json.loads((tmp_path / "c/loadax.json").read_text())
    del manifest["data"]["inner functions"]  # as earlier versions wrote it
    (tmp_path / "c/loadax.json").write_text(json.dumps(manifest))
    make(also_double).cache(tmp_path / "c")


@pytest.mark.parametrize("made", [arrays, examples, joined, windows])
@pytest.mark.parametrize("other", [NEW, ONE], ids=["201 rows", "one row"])
def test_a_cache_of_other_data_in_memory_is_refused(made: Callable[[Any], Dataset], other: Any, tmp_path: Path) -> None:
    made(OLD).map(double).cache(tmp_path / "c", progress=False)
    with pytest.raises(
        ArgumentError, match=r"c was started with data\.(sample|memory) = .*pass overwrite=True to start over"
    ):
        made(other).map(double).cache(tmp_path / "c", progress=False)
    with pytest.raises(ArgumentError, match=r"c was started with data\."):
        loadax.write_zarr(made(other).map(double), tmp_path / "c", resume=True, progress=False)
    assert len(made(OLD).map(double).cache(tmp_path / "c", progress=False)) == len(made(OLD))


@pytest.mark.parametrize("other", [NEW, ONE], ids=["201 rows", "one row"])
def test_an_index_of_other_data_in_memory_is_built_anew(other: Any, tmp_path: Path) -> None:
    for made in (arrays, examples, joined):
        made(OLD).filter(positive, index=tmp_path / "f", progress=False)
        kept = made(other).filter(positive, index=tmp_path / "f", progress=False)
        assert len(kept) == len(made(other).filter(positive, progress=False))


def test_a_pack_of_other_documents_is_made_anew(tmp_path: Path) -> None:
    documents = [np.full(5, number) for number in range(200)]
    loadax.from_source(documents).pack(16, index=tmp_path, progress=False)
    documents[101] = np.full(9, 101)
    again, fresh = (
        loadax.from_source(documents).pack(16, index=tmp_path, progress=False),
        loadax.from_source(documents).pack(16),
    )
    assert again.read(range(len(again)))["tokens"].tolist() == fresh.read(range(len(fresh)))["tokens"].tolist()
    flat, offsets = np.arange(1000), np.arange(0, 1001, 5)
    loadax.from_documents(flat, offsets).pack(16, index=tmp_path, method="best_fit", progress=False)
    offsets[101] += 2
    again = loadax.from_documents(flat, offsets).pack(16, index=tmp_path, method="best_fit", progress=False)
    assert again.order_facts == loadax.from_documents(flat, offsets).pack(16, method="best_fit").order_facts


def test_beyond_64_mib_rows_are_compared_that_lie_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_fingerprint, "MOST_MEMORY", 8 * 100)
    before = identify(arrays(OLD).source)
    assert identify(arrays(ONE).source) in (before, {"files": None, "memory": identify(arrays(ONE).source)["memory"]})
    assert identify(arrays(NEW).source) != before
    for made in (arrays, examples, joined):
        bottom = [each for each in walk(made(OLD).source) if not each.children]
        held = [np.asarray(array).nbytes for each in bottom for array in each.held(800)]
        assert sum(held) <= 800 * len(bottom)


def npy(folder: Path) -> tuple[Dataset, Path]:
    np.save(folder / "a.npy", OLD)
    return loadax.from_npy({"x": folder / "a.npy"}), folder / "a.npy"


def tokens(folder: Path) -> tuple[Dataset, Path]:
    np.arange(5000, dtype=np.uint16).tofile(folder / "a.bin")
    return loadax.from_tokens(folder / "a.bin", 4, dtype="uint16").map(first_token), folder / "a.bin"


def first_token(example: Any) -> Any:
    return {"x": example["tokens"][0]}


def zarr(folder: Path) -> tuple[Dataset, Path]:
    if not (folder / "s").exists():
        loadax.write_zarr({"x": OLD}, folder / "s", chunk_rows=10, shard_rows=10, progress=False)
    return loadax.from_zarr(folder / "s"), folder / "s" / "x" / "c" / "37"


def images(folder: Path) -> tuple[Dataset, Path]:
    for number in range(100):
        if not (folder / f"{number}.png").exists():
            Image.new("RGB", (2, 2), (number, 0, 0)).save(folder / f"{number}.png")
    return loadax.from_images(folder).map(red), folder / "37.png"


def red(example: Any) -> Any:
    return {"x": example["image"][0, 0, 0].astype(np.int64)}


KINDS = [npy, tokens, zarr, images]


def change(path: Path) -> None:
    """Another byte, in place, of the same size, that no sample of rows meets."""
    content = bytearray(path.read_bytes())
    content[-20 if path.suffix == ".npy" else -1] ^= 1
    before = path.stat().st_mtime_ns
    path.write_bytes(content)
    os.utime(path, ns=(before + 1000, before + 1000))  # later, as any clock would say


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_was_changed_is_noticed(
    kind: Callable[[Path], tuple[Dataset, Path]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "data").mkdir()
    dataset, file = kind(tmp_path / "data")
    dataset.cache(tmp_path / "c", progress=False)
    dataset.filter(positive, index=tmp_path / "f", progress=False)
    assert len(dataset.cache(tmp_path / "c", progress=False)) == len(dataset)
    caplog.clear()
    dataset.filter(positive, index=tmp_path / "f", progress=False)
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    change(file)
    expected = r"started with data\.files = .* \(the locations, sizes and times of change of the files that are read\)"
    with pytest.raises(ArgumentError, match=expected):
        dataset.cache(tmp_path / "c", progress=False)
    caplog.clear()
    with suppress(SourceError):  # where the changed byte is of a checksum
        dataset.filter(positive, index=tmp_path / "f", progress=False)
    assert "does not match (files differs) and is not used" in caplog.text


@pytest.mark.parametrize("kind", KINDS)
def test_copy_in_another_folder_is_other_data(kind: Callable[[Path], tuple[Dataset, Path]], tmp_path: Path) -> None:
    """Files of one name, size and time in two folders may differ where no sample of rows looks."""

    def of(name: str) -> Any:
        dataset, _ = kind(tmp_path / name)
        for path in (tmp_path / name).rglob("*"):
            os.utime(path, (1, 1))
        return identify(dataset.source)["files"]

    (tmp_path / "data").mkdir()
    here = of("data")
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    (tmp_path / "link").symlink_to(tmp_path / "data")
    assert here is not None
    assert of("link") == here
    assert of("copy") != here


def test_what_lies_in_a_stores_folder_is_not_part_of_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    dataset, _ = zarr(tmp_path)
    for _ in range(3):
        dataset.filter(positive, index=tmp_path / "s" / "f.idx", progress=False)
    assert "is not used" not in caplog.text


def test_several_processes_may_have_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset, file = npy(tmp_path)
    dataset.cache(tmp_path / "c", progress=False)
    change(file)
    monkeypatch.setattr(data_fingerprint, "this_process", lambda: Process(1, 2))
    assert identify(dataset.source)["files"] is None
    assert len(dataset.cache(tmp_path / "c", progress=False)) == ROWS


def test_shares_of_the_work_may_be_done_from_copies(tmp_path: Path) -> None:
    for share in range(2):
        (tmp_path / str(share)).mkdir()
        dataset, file = npy(tmp_path / str(share))
        os.utime(file, ns=(share, share))
        loadax.write_zarr(dataset, tmp_path / "s", shard=(share, 2), shard_rows=100, chunk_rows=100, progress=False)
    assert loadax.from_zarr(tmp_path / "s").read(range(ROWS))["x"].tolist() == OLD.tolist()


def test_a_sample_decodes_little(tmp_path: Path) -> None:
    """Of chunks of 8 MiB eight rows are read, and not 64."""
    loadax.write_zarr(np.zeros((16, 1 << 20), np.float64), tmp_path / "s", chunk_rows=1, shard_rows=16, progress=False)
    rows = loadax.from_zarr(tmp_path / "s")
    assert data_fingerprint.sample_size(rows.source, 8 << 20, 64) == 8
    assert data_fingerprint.sample_size(arrays(OLD).source, 8, 64) == 64
    assert data_fingerprint.sample_size(arrays(OLD).source, 1 << 30, 64) == 3
