"""Shuffled datasets are written from one pass over their source: same bytes, each chunk decoded once."""

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorstore as ts
from hypothesis import given, settings, strategies as st

from loadax import concat, seeds
from loadax.core import memory
from loadax.core.distributed import Process
from loadax.dataset import Dataset
from loadax.errors import SourceError
from loadax.io import from_arrays, from_parquet, from_source, from_zarr, write_zarr
from loadax.plan.order import VerbOrder
from loadax.protocols import ArraySpec, Hits, Integers, Tree, Visits
from loadax.writing import source_order
from loadax.writing.written_rows import Written
from tests.limits import examples
from tests.writing.rows import files
from tests.writing.shuffled import CHUNK, SEED, Chunks, shuffled

ROWS = 640

pytestmark = pytest.mark.filterwarnings("ignore:shuffle.seed. of data whose chunks")


@pytest.fixture
def small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_order, "SPAN_BYTES", 20 << 10)
    monkeypatch.setattr(source_order, "FEWER_CHUNKS", 2)


def plainly(dataset: Dataset, path: Path, **arguments: Any) -> dict[str, bytes]:
    """The files of a store whose rows are read in the order in which they are written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source_order, "_decodes", lambda *_: 0.0)
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
        lambda data: data.subset_per_epoch(range(draw(st.integers(0, len(data) - 1)), len(data))),
        lambda data: data[::-1],
        lambda data: data.repeat(2),
        lambda data: data.subset_per_epoch(draw(st.lists(st.integers(0, len(data) - 1), min_size=1, max_size=30))),
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
        patch.setattr(source_order, "FEWER_CHUNKS", 0)
        patch.setattr(source_order, "SPAN_BYTES", data.draw(st.sampled_from([1, 200, 1 << 20])))
        for index in range(count):
            write_zarr(dataset, folder / "one_pass", shard=(index, count) if count > 1 else None, **arguments)
    assert files(folder / "one_pass") == expected


@pytest.mark.usefixtures("small_runs")
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


@pytest.mark.usefixtures("small_runs")
@pytest.mark.parametrize("arguments", [{"resume": True}, {"overwrite": True}])
def test_interrupted_write_keeps_only_rows_of_missing_parts(
    arguments: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[int] = []

    class Ordered(source_order.SourceOrder):  # type: ignore[misc]
        def read(self, positions: Integers) -> Tree:
            held.append(len(self._is_read))
            if int(positions[0]) >= 3 * 40 and len(held) < 20:
                raise OSError("interrupted")
            return super().read(positions)

    monkeypatch.setattr(source_order, "SourceOrder", Ordered)
    with pytest.raises(OSError, match="interrupted"):
        write_zarr(shuffled(Chunks(ROWS)), tmp_path / "s", shard_rows=40)
    (tmp_path / "s/loadax.part-0-of-1.rows").touch()  # the temporary file of another version
    held += [0] * 20
    write_zarr(shuffled(Chunks(ROWS)), tmp_path / "s", shard_rows=40, **arguments)
    assert (held[0], held[-1] < ROWS) == (ROWS, "resume" in arguments)
    assert files(tmp_path / "s") == plainly(shuffled(Chunks(ROWS)), tmp_path / "plain", shard_rows=40)
    assert {each.name for each in tmp_path.iterdir()} == {"s", "plain"}


def test_rows_larger_than_half_of_memory_are_written_slowly_or_as_the_warning_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = plainly(shuffled(Chunks(ROWS)), tmp_path / "plain", shard_rows=40)
    monkeypatch.setattr(source_order, "machine_memory", lambda: 2 * 400 * 1008)
    monkeypatch.setattr(source_order, "this_process", lambda: Process(0, 2))  # they may be on one machine
    write_zarr(shuffled(Chunks(ROWS)), tmp_path / "s", shard_rows=40)
    assert files(tmp_path / "s") == expected
    (warning,) = caplog.messages
    assert re.search(
        r"writing .*/s: each chunk of the source is decoded about 1\d times, because the shuffled rows take 630 KiB, "
        r"more than the 197 KiB that they may take in memory; write the rows in their own order, and shuffle them when "
        r"they are read, or write (\d+) shares one after the other, by write_zarr\(..., shard=\(i, \1\)\)$",
        warning,
    )
    caplog.clear()
    count = int(warning.partition(" shares ")[0].rpartition(" ")[2])
    assert count == 4
    for index in range(count):
        write_zarr(shuffled(Chunks(ROWS)), tmp_path / "shares", shard_rows=40, shard=(index, count))
    assert files(tmp_path / "shares") == expected
    write_zarr(from_source(Chunks(ROWS)), tmp_path / "ordered", shard_rows=40)
    ordered = from_zarr(tmp_path / "ordered").shuffle(SEED)
    for one, other in zip(ordered, from_zarr(tmp_path / "s"), strict=True):
        np.testing.assert_array_equal(one["x"], other["x"])
    assert not caplog.messages


def test_shards_larger_than_half_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(source_order, "machine_memory", lambda: 400 * 1008)
    write_zarr(shuffled(Chunks(ROWS)), tmp_path / "s", shard_rows=ROWS)
    assert caplog.messages[0].endswith(", and shuffle them when they are read, or pass less than shard_rows=640")
    write_zarr(shuffled(Chunks(ROWS)), tmp_path / "smaller", shard_rows=160)
    assert "shares one after the other" in caplog.messages[1]


def test_memory_of_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = tmp_path / "memory.max", tmp_path / "memory.limit_in_bytes"
    monkeypatch.setattr(memory, "LIMITS", limits)
    whole = memory.machine_memory.__wrapped__
    of_machine = whole()
    for content, expected in (("max\n", of_machine), ("1048576\n", 1 << 20), (str(1 << 62), of_machine)):
        limits[0].write_text(content)
        assert whole() == expected
    limits[1].write_text("4096")
    assert whole() == 4096


class Lossy(VerbOrder):
    """An order whose inverse does not find the last position."""

    size = ROWS

    def visits(self, epochs: Integers, positions: Integers) -> Visits:
        return self.parent.visits(epochs, positions)

    def inverse(self, rows: Integers, epochs: Integers, window: tuple[int, int]) -> Hits:
        hits = self.parent.inverse(rows, epochs, window)
        found = hits.positions < ROWS - 1
        return Hits(hits.asked[found], hits.positions[found])

    def _described(self) -> tuple[list[Any], str]:
        return ["lossy"], "lossy"


def test_inverse_that_lacks_positions_loses_no_row(tmp_path: Path) -> None:
    data = shuffled(Chunks(ROWS))
    with pytest.raises(SourceError, match=r"^Lossy\.inverse\(\) lacks 1 of the positions to write; it must give all"):
        write_zarr(Dataset(data.source, Lossy(data.order)), tmp_path / "s", shard_rows=40)


@pytest.mark.usefixtures("small_runs")
def test_progress_of_both_passes(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # tqdm before 4.68 cuts the bar there
    write_zarr(shuffled(Chunks(ROWS)), tmp_path / "s", shard_rows=40, progress=True)
    shown = capfd.readouterr().err
    assert "reading rows in the order of the source: 100%" in shown
    assert f"writing {tmp_path / 's'}: 100%" in shown


@pytest.mark.usefixtures("small_runs")
def test_log_is_silent_by_default(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "loadax"):
        write_zarr(shuffled(Chunks(ROWS)), tmp_path / "s", shard_rows=40)
    assert caplog.text == ""
