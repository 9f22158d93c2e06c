"""Shuffled datasets are written from one pass over their source: same bytes, each chunk decoded once."""

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorstore as ts
from hypothesis import given, settings, strategies as st

from loadax import concat, seeds
from loadax.dataset import Dataset
from loadax.errors import SourceError
from loadax.io import from_arrays, from_parquet, from_source, from_zarr, write_zarr
from loadax.protocols import ArraySpec, Integers, Tree
from loadax.writing import source_order
from loadax.writing.rows import Written
from tests.limits import examples
from tests.writing.rows import files
from tests.writing.shuffled import CHUNK, SEED, Chunks, shuffled

ROWS = 640

pytestmark = pytest.mark.filterwarnings("ignore:shuffle.seed. of data whose chunks")


@pytest.fixture
def in_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory for rows is that of 100 of `Chunks`, so that they go through a file."""
    monkeypatch.setattr(source_order, "_MEMORY_BYTES", 100 << 10)
    monkeypatch.setattr(source_order, "_RUN_BYTES", 20 << 10)
    monkeypatch.setattr(source_order, "_FEWER_CHUNKS", 2)


def plainly(dataset: Dataset, path: Path, **arguments: Any) -> dict[str, bytes]:
    """The files of a store whose rows are read in the order in which they are written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source_order, "_pays", lambda *_: False)
        write_zarr(dataset, path, **arguments)
    return files(path)


class Drawn:
    """Rows of several dtypes, in chunks that begin at `chunks`."""

    def __init__(self, rows: int, chunks: Any):
        self.tree = {
            "a": np.arange(rows) * 3,
            "b": np.random.default_rng(0).integers(0, 99, (rows, 3)).astype(ml_dtypes.bfloat16),
            "c": np.arange(rows) % 2 == 0,
            "d": np.zeros((rows, 0, 2), np.int8),
        }
        self.spec = {name: ArraySpec(leaf.shape[1:], leaf.dtype) for name, leaf in self.tree.items()}
        self.chunks = chunks

    def __len__(self) -> int:
        return len(self.tree["a"])

    def read(self, rows: Integers) -> Tree:
        return {name: leaf[rows] for name, leaf in self.tree.items()}


def noisy(example: Any, rng: np.random.Generator) -> Any:
    return {**example, "a": example["a"] + rng.integers(1 << 40)}


@st.composite
def datasets(draw: st.DrawFn) -> Dataset:
    def source() -> Dataset:
        rows = draw(st.integers(2, 60))
        begins = draw(st.sets(st.integers(1, rows - 1), max_size=9))
        return from_source(Drawn(rows, draw(st.sampled_from([range(0, rows, 4), np.array([0, *sorted(begins)])]))))

    verbs: list[Callable[[Dataset], Dataset]] = [
        lambda data: data.shuffle(draw(st.integers(0, 9))),
        lambda data: data[draw(st.integers(0, len(data) - 1)) :],
        lambda data: data[::-1],
        lambda data: data.repeat(2),
        lambda data: data.select(draw(st.lists(st.integers(0, len(data) - 1), min_size=1, max_size=30))),
        lambda data: data.map(noisy, rng=True),
        lambda data: data.shuffle(draw(st.integers(0, 9)), block=3, window=2, lanes=2),
    ]
    data = source() if draw(st.booleans()) else concat([source(), source().shuffle(1)])
    for verb in draw(st.lists(st.sampled_from(verbs), max_size=3)):
        data = verb(data)
    return data


@settings(max_examples=examples(40), deadline=None)
@given(data=st.data())
def test_bytes_are_those_of_reads_in_shuffled_order(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    dataset, folder = data.draw(datasets()), tmp_path_factory.mktemp("stores")
    count = data.draw(st.integers(1, 3))
    arguments: dict[str, Any] = {"chunk_rows": 2, "shard_rows": data.draw(st.sampled_from([8, 20])), "workers": 2}
    expected = plainly(dataset, folder / "plain", **arguments)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)  # the disk of a test machine is slow
        patch.setattr(source_order, "_FEWER_CHUNKS", 0)
        patch.setattr(source_order, "_MEMORY_BYTES", data.draw(st.sampled_from([0, 64, 500, 1 << 20])))
        patch.setattr(source_order, "_RUN_BYTES", data.draw(st.sampled_from([1, 200, 1 << 20])))
        for index in range(count):
            write_zarr(dataset, folder / "one_pass", shard=(index, count) if count > 1 else None, **arguments)
    assert files(folder / "one_pass") == expected


@pytest.mark.usefixtures("in_file")
@pytest.mark.parametrize("count", [1, 3])
def test_each_chunk_is_decoded_once_by_each_process(count: int, tmp_path: Path) -> None:
    source, sampled = Chunks(ROWS), Chunks(ROWS)
    data = shuffled(sampled)
    Written(data.reader, data.order).describe()
    for index in range(count):
        source.reads.clear()
        write_zarr(shuffled(source), tmp_path / "s", shard_rows=40, shard=(index, count) if count > 1 else None)
        passes = source.decoded() - sampled.decoded()
        assert passes == dict.fromkeys(range(ROWS // CHUNK), 1)
    order = seeds.permute(np.arange(ROWS), ROWS, seeds.derive(SEED, "shuffle", 0))
    np.testing.assert_array_equal(from_zarr(tmp_path / "s").read(np.arange(ROWS))["id"], np.arange(ROWS)[order])


def test_zarr_and_parquet_are_read_once(tmp_path: Path) -> None:
    rows = 4000
    tree = {"x": np.random.default_rng(0).integers(0, 9, (rows, 128)), "id": np.arange(rows)}
    write_zarr(tree, tmp_path / "source", chunk_rows=100, shard_rows=1000)
    pq.write_table(pa.table({"id": tree["id"]}), tmp_path / "source.parquet", row_group_size=100)
    stored = sum(len(content) for content in files(tmp_path / "source").values())

    def bytes_read() -> int:
        metrics: Any = ts.experimental_collect_matching_metrics("/tensorstore/kvstore/file/bytes_read")
        return sum(value["value"] for metric in metrics for value in metric["values"])

    before = bytes_read()
    write_zarr(from_zarr(tmp_path / "source").shuffle(SEED), tmp_path / "zarr", shard_rows=1024)
    assert bytes_read() - before < 4 * stored  # the sample that identifies the data reads 64 chunks before and after
    write_zarr(from_parquet(tmp_path / "source.parquet", memory_bytes=0).shuffle(SEED), tmp_path / "parquet")
    for values, folder in ((tree, "zarr"), ({"id": tree["id"]}, "parquet")):
        order = seeds.permute(np.arange(rows), rows, seeds.derive(SEED, "shuffle", 0))
        written = from_zarr(tmp_path / folder).read(np.arange(rows))
        for name, leaf in values.items():
            np.testing.assert_array_equal(written[name], np.take(leaf, order, axis=0))


@pytest.mark.parametrize(
    "data",
    [
        lambda: from_arrays({"x": np.arange(ROWS)}).shuffle(SEED),
        lambda: from_source(Chunks(ROWS)),
        lambda: shuffled(Chunks(ROWS))[:8],
        lambda: from_source(Chunks(ROWS)).sample(np.ones(ROWS)),
    ],
    ids=["no chunks", "in order", "few rows", "sample"],
)
def test_other_datasets_are_read_in_the_order_of_their_positions(
    data: Callable[[], Dataset], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(source_order, "SourceOrder")
    write_zarr(data(), tmp_path / "s", shard_rows=40)
    assert len(from_zarr(tmp_path / "s")) == len(data())


# Interrupted, and damaged


def interrupted(path: Path, monkeypatch: pytest.MonkeyPatch, part: int = 3) -> None:
    """Leaves a store without the parts from `part` on, with a complete temporary file."""

    def fails(self: Any, positions: Integers) -> Tree:
        if int(positions[0]) >= part * 40:
            raise OSError("interrupted")
        return read(self, positions)

    read = source_order.SourceOrder.read
    monkeypatch.setattr(source_order.SourceOrder, "read", fails)
    with pytest.raises(OSError, match="interrupted"):
        write_zarr(shuffled(Chunks(ROWS)), path, shard_rows=40)
    monkeypatch.setattr(source_order.SourceOrder, "read", read)
    assert (path / "loadax.part-0-of-1.rows").exists()


@pytest.mark.usefixtures("in_file")
def test_resumed_write_reads_no_row_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(tmp_path / "s", monkeypatch)
    source = Chunks(ROWS)
    write_zarr(shuffled(source), tmp_path / "s", shard_rows=40, resume=True)
    assert max(map(len, source.reads)) <= 64  # samples that identify the data
    assert files(tmp_path / "s") == plainly(shuffled(source), tmp_path / "plain", shard_rows=40)


@pytest.mark.usefixtures("in_file")
def test_file_of_other_limits_is_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(tmp_path / "s", monkeypatch)
    monkeypatch.setattr(source_order, "_MEMORY_BYTES", 200 << 10)
    write_zarr(shuffled(Chunks(ROWS)), tmp_path / "s", shard_rows=40, resume=True)
    assert files(tmp_path / "s") == plainly(shuffled(Chunks(ROWS)), tmp_path / "plain", shard_rows=40)


@pytest.mark.usefixtures("in_file")
def test_damaged_file_is_an_error_whose_advice_helps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, rows = tmp_path / "s", tmp_path / "s/loadax.part-0-of-1.rows"
    interrupted(path, monkeypatch)
    os.truncate(rows, rows.stat().st_size - 2000)
    with pytest.raises(SourceError, match=r"s/loadax\.part-0-of-1\.rows: rows are missing; delete it"):
        write_zarr(shuffled(Chunks(ROWS)), path, shard_rows=40, resume=True)
    rows.unlink()
    write_zarr(shuffled(Chunks(ROWS)), path, shard_rows=40, resume=True)
    assert files(path) == plainly(shuffled(Chunks(ROWS)), tmp_path / "plain", shard_rows=40)


@pytest.mark.usefixtures("in_file")
def test_without_disk_space_for_a_file_chunks_are_decoded_for_each_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = plainly(shuffled(Chunks(ROWS)), tmp_path / "plain", shard_rows=40)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=600_000))
    write_zarr(shuffled(Chunks(ROWS)), tmp_path / "s", shard_rows=40)
    assert "loadax.part-0-of-1.rows would take 635 KiB, but only 586 KiB are free" in caplog.text
    assert files(tmp_path / "s") == expected
    write_zarr(shuffled(Chunks(ROWS)), "memory://s", shard_rows=40)
    assert "decoded once for each row: the destination is remote; write to a local folder, and upload it" in caplog.text


@pytest.mark.usefixtures("in_file")
def test_unfinished_store_with_a_file_is_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(tmp_path / "s", monkeypatch)
    write_zarr(shuffled(Chunks(ROWS)), tmp_path / "s", shard_rows=40, overwrite=True)
    assert files(tmp_path / "s") == plainly(shuffled(Chunks(ROWS)), tmp_path / "plain", shard_rows=40)
    assert {each.name for each in tmp_path.iterdir()} == {"s", "plain"}


@pytest.mark.usefixtures("in_file")
def test_progress_of_both_passes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_zarr(shuffled(Chunks(ROWS)), tmp_path / "s", shard_rows=40, progress=True)
    shown = capfd.readouterr().err
    assert "reading rows in the order of the source: 100%" in shown
    assert f"writing {tmp_path / 's'}: 100%" in shown


@pytest.mark.usefixtures("in_file")
def test_log_is_silent_by_default(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "loadax"):
        write_zarr(shuffled(Chunks(ROWS)), tmp_path / "s", shard_rows=40)
    assert caplog.text == ""
