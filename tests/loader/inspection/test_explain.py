"""Every figure of `explain` equals a simulation of each host, row by row, and is fast for thousands of hosts."""

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from loadax import Dataloader, Dataset, from_arrays, from_source, from_tokens, mix
from loadax.core.buffers import aligned_bytes
from loadax.errors import ArgumentError, ConformanceError, RowIndexError
from loadax.loader.assembly.assembler import Assembler, FillOptions, Piece
from loadax.loader.assembly.buffer_layout import BatchBuffers
from loadax.loader.assembly.host_shard import buffer_layout
from loadax.loader.inspection.all_hosts import AllHosts
from loadax.loader.inspection.check_plan import shares_of
from loadax.loader.inspection.chunk_reads import chunk_reads
from loadax.loader.inspection.explanation import Explanation, Spread
from loadax.plan.sequential import Sequential
from loadax.protocols import Integers, Visits
from loadax.sharding import plan_mesh
from loadax.sharding.holdings import HeldRows
from tests.limits import HANG
from tests.loader.oracle import ColumnSource, ReadSource, mesh_of
from tests.meshes import ZOO, MeshCase
from tests.sources.chunked import ChunkedSource
from tests.work_counts import lines_of

ROOT = Path(__file__).parents[3]
ROWS, BATCH = 96, 16
TREE = {"x": np.arange(ROWS * 16, dtype=np.float32).reshape(ROWS, 16), "y": np.arange(ROWS, dtype=np.int32)}


def explained(data: Any, batch_size: int, axes: dict[str, int], hosts: int, **options: Any) -> Explanation:
    return Dataloader(data, batch_size, mesh=plan_mesh(axes, hosts=hosts), **options).explain()


def spread(values: Any) -> Spread:
    return Spread(min(values), float(np.median(values)), max(values))


def loaders(case: MeshCase, data: Any, partition: Any, **options: Any) -> list[Dataloader]:
    """One for each host."""
    meshes = map(case.planned, range(case.processes))
    return [Dataloader(data, BATCH, mesh=mesh, partition=partition, **options) for mesh in meshes]


def partitions(case: MeshCase) -> list[Any]:
    first, last = case.axes[0], case.axes[-1]
    both = P(first, last) if len(case.axes) > 1 else P(None, first)
    return [P(case.axes), {"x": both, "y": P(first)}, {"x": P(None, case.axes), "y": P()}, {"x": P(last), "y": P()}]


@pytest.mark.parametrize("case", ZOO, ids=lambda case: case.name)
def test_figures_equal_a_simulation_of_each_host(case: MeshCase) -> None:
    for partition in partitions(case):
        sources = [ColumnSource(TREE) for _ in range(case.processes)]
        hosts = [loaders(case, from_source(source), partition)[host] for host, source in enumerate(sources)]
        found = hosts[0].explain()
        positions = [loader.phases[0].shard().positions for loader in hosts]
        for loader, source in zip(hosts, sources, strict=True):
            read_step(loader, 0)
            assert source.whole_reads == 0
        read = [sum(int(counts.sum()) * 4 for counts in source.counts) for source in sources]
        assert found.reading.rows == spread([len(each) for each in positions])
        assert found.reading.nbytes == spread(read)
        assert found.reading.times == sum(read) / (BATCH * 17 * 4)
        assert found.reading.copies == spread(np.bincount(np.concatenate(positions), minlength=BATCH))
        assert found.memory.step == spread([buffer_layout(loader.phases[0].shard()).bytes_per_step for loader in hosts])
        box = [math.prod(stop - start for start, stop in each.boxes[0]) for each in hosts[0].phases[0].shard().layouts]
        assert found.memory.batch == 4 * sum(box)
        assert (found.hosts, found.devices) == (case.processes, 8)


def read_step(loader: Dataloader, step: int) -> None:
    """Reads this host's part of a step, without placing it."""
    shard = loader.phases[0].shard()
    layout = buffer_layout(shard)
    buffers = BatchBuffers(layout, aligned_bytes(layout.bytes_per_step), 1)
    visits = loader.phases[0].plan.visits(step, shard.positions)
    Assembler(loader.dataset.reader, FillOptions(layout)).fill(Piece(visits, 0, buffers))


def test_whole_rows_are_counted_with_a_warning() -> None:
    axes, partition = {"data": 2, "seq": 4}, {"x": P("data", "seq"), "y": P("data")}
    mapped = from_arrays(TREE).map_batch(_same)
    for data, why in (
        (mapped, "the map _same .* may need all columns"),
        (from_source(ReadSource(TREE)), "ReadSource has no read_into"),
    ):
        found = explained(data, BATCH, axes, 8, partition=partition)
        assert (found.reading.nbytes, found.reading.times) == (Spread(8 * 68, 8.0 * 68, 8 * 68), 4)
        (warning,) = found.warnings
        assert re.match(f"hosts read 544 B of whole rows a step, though their devices hold 29% of that: {why}", warning)
    by_columns = from_arrays(TREE).map_batch(_same, elementwise=True)
    assert explained(by_columns, BATCH, axes, 8, partition=partition).warnings == ()
    assert explained(mapped, BATCH, axes, 8, partition=P("data")).reading.nbytes.most == 8 * 68


def _same(batch: Any) -> Any:
    return batch


CHUNKS: tuple[Any, ...] = (8, np.array([0, 1, 5, 30, 31, 90]))
VERBS: dict[str, Callable[[Dataset], Dataset]] = {
    "in order": lambda ds: ds,
    "backwards": lambda ds: ds[::-1],
    "repeated": lambda ds: ds[:50].repeat(3),
}


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS.keys())
@pytest.mark.parametrize("chunks", CHUNKS, ids=["equal", "irregular"])
def test_chunks_of_rows(chunks: Any, verb: Any) -> None:
    starts = np.arange(0, ROWS, chunks) if isinstance(chunks, int) else chunks
    sizes = np.diff(starts, append=ROWS)
    data = verb(from_source(ChunkedSource(TREE["x"], chunks)))
    for case in ZOO[:6]:
        hosts = loaders(case, data, P(case.axes))
        steps = len(hosts[0])
        met, decoded = [], []
        for loader in hosts:
            lists = [loader.local_rows(step) for step in range(steps)]
            found = [np.unique(np.searchsorted(starts, rows, side="right") - 1) for rows in lists]
            met.append(sum(map(len, found)) / steps)
            decoded.append(sum(int(sizes[each].sum()) for each in found) / sum(map(len, lists)))
        reading = hosts[0].explain(steps).reading
        assert reading.chunks is not None
        assert reading.decoded is not None
        np.testing.assert_allclose(astuple(reading.chunks), astuple(spread(met)))
        np.testing.assert_allclose(astuple(reading.decoded), astuple(spread(decoded)))
        assert (reading.steps, reading.hosts, reading.kept_open) == (steps, case.processes, False)


def test_padding_is_in_no_chunk() -> None:
    data = from_source(ChunkedSource({"x": TREE["x"][:20]}, 4))
    loader = Dataloader(data, BATCH, mesh=plan_mesh({"data": 4}, hosts=4), remainder="pad")
    found = loader.explain(2)
    # Step 0: one chunk each. Step 1: only the first host has rows.
    assert found.reading.chunks == Spread(0.5, 0.5, 1)
    assert found.reading.decoded == Spread(1, 1.0, 1)
    assert (found.batches.padded, found.batches.dropped) == (12, 0)
    assert "20 rows, 2 steps, 12 rows of padding" in str(found)


def test_chunk_reads_samples_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = Dataloader(from_source(ChunkedSource(TREE["x"], 4)), BATCH, mesh=plan_mesh({"data": 16}, hosts=16))
    held = AllHosts(loader.phases[0].shard(), BATCH).rows
    for most, sampled in ((4, 4), (0, 1), (100, 16)):
        monkeypatch.setattr("loadax.loader.inspection.chunk_reads.MOST_ENTRIES", most)
        found = chunk_reads(loader.phases[0].plan, [0], held, loader.dataset.source)
        assert found is not None
        assert [len(figures) for figures in found] == [sampled] * 2


def chunked(rows: int, columns: int = 2) -> Dataset:
    return from_source(ChunkedSource(np.zeros((rows, columns), np.float32), 64))


def test_warnings_about_coarse_chunks() -> None:
    full = explained(chunked(4096).shuffle(0), 64, {"data": 8}, 8)
    assert "rows are shuffled individually; shuffle(seed, block='chunks')" in full.warnings[0]
    stored = explained(chunked(4096), 64, {"data": 8}, 8)
    assert stored.reading.decoded == Spread(8, 8.0, 8)
    assert "hosts decode 8 rows for each one they use: a host's part of a batch is smaller" in stored.warnings[0]


def test_open_chunks_of_a_block_shuffle() -> None:
    found = explained(chunked(4096).shuffle(0, block="chunks", window=2, lanes=8), 32, {"data": 8}, 8)
    assert found.reading.kept_open
    assert found.reading.decoded == Spread(1, 1.0, 1)
    assert found.memory.open_chunks == Spread(2 * 64 * 8, 2.0 * 64 * 8, 2 * 64 * 8)
    assert found.warnings == ()
    assert "open chunks: 1.0 KiB" in str(found)
    assert "8 steps of 8 hosts; kept open until used up" in str(found)


@pytest.mark.parametrize(("pinned", "most"), [(False, 377), (True, 64)])
def test_blocks_of_a_host_over_the_run(pinned: bool, most: int) -> None:
    """The expected number, which the chunks that a host really reads come close to."""
    data = from_arrays(np.arange(512 * 4)).shuffle(0, block=4, lanes=64, pinned=pinned)
    found = explained(data, 64, {"data": 8}, 8, num_epochs=10).reading.blocks
    assert found is not None
    assert found.epoch == Spread(64, 64, 64)
    assert round(found.run.most) == most
    one = Dataloader(data, 64, num_epochs=10, shard_index=3, shard_count=8)
    read = np.unique(np.concatenate([one.local_rows(step) for step in range(len(one))]) // 4)
    assert len(read) == pytest.approx(most, rel=0.05)
    if pinned:
        assert len(read) == most
        assert str(found) == "a host reads 64 of 512 blocks, the same ones in every epoch (pinned lanes)"
    else:
        assert str(found) == "a host reads 64 of 512 blocks in an epoch, and about 377 over the run"


def test_blocks_are_told_of_block_shuffles_on_several_hosts() -> None:
    data = from_arrays(np.arange(2048))
    assert explained(data.shuffle(0), 64, {"data": 8}, 8).reading.blocks is None
    assert explained(data.shuffle(0, block=4), 64, {"data": 8}, 1).reading.blocks is None


@pytest.mark.parametrize(
    ("verb", "warning"),
    [
        (lambda ds: ds.shuffle(0, block="chunks", lanes=4), "each of the 4 lanes .* shared by 4.0 .* pass lanes=16"),
        (lambda ds: ds.shuffle(0, block="chunks", lanes=64)[::-1], "shared by 16.0 hosts .* shuffle last, since the"),
        (
            lambda ds: ds[:256].shuffle(0, block="chunks", lanes=16),
            "shared by 4.0 hosts .* smaller chunks, of which .* 4$",
        ),
    ],
    ids=["few lanes", "reordered", "few blocks"],
)
def test_warning_about_lanes_that_hosts_share(verb: Any, warning: str) -> None:
    found = explained(verb(chunked(4096)), 64, {"data": 16}, 16)
    assert any(re.search(warning, text) for text in found.warnings), found.warnings
    assert found.reading.decoded is not None
    assert found.reading.decoded.most >= 4


def test_warning_about_a_block_shuffle_that_mixes_few_blocks() -> None:
    data = chunked(65_536)

    def warnings(dataset: Dataset, batch_size: int = 512) -> list[str]:
        found = explained(dataset, batch_size, {"data": 8}, 8)
        return [warning for warning in found.warnings if "neighbouring rows" in warning]

    few = data.shuffle(0, block="chunks", lanes=8)
    (warning,) = warnings(few)
    assert warning.startswith(
        "batches of 512 rows draw on 32 blocks at a time: where neighbouring rows are alike, their"
    )
    assert "vary 16.6 times as much as those of random rows (as in batches of 31); pass lanes=512 to shuffle" in warning
    assert warnings(few.repeat(2).subset_per_epoch(range(64, 2 * len(few)))) == [warning]
    assert not warnings(data.shuffle(0, block="chunks", lanes=512))  # the advice
    (warning,) = warnings(few, 2048)
    assert "; pass a smaller block= to shuffle, write the data in smaller chunks by `loadax convert`, or" in warning
    assert not warnings(data.shuffle(0, block=1, lanes=8), 2048)  # the advice
    assert not warnings(data.shuffle(0, block="chunks", lanes=256), 512)
    # The blocks of a batch are unknown here, or it is not a block shuffle.
    assert not warnings(few.subset_per_epoch(range(0, len(few), 2)))
    assert not warnings(data[:4096].shuffle(0))


def test_no_warning_about_lanes_of_hosts_that_hold_the_same_rows() -> None:
    data = chunked(4096, 8).shuffle(0, block="chunks", lanes=8)
    found = explained(data, 64, {"data": 8, "seq": 4}, 32, partition=P("data", "seq"))
    assert found.warnings == ()
    assert found.reading.copies == Spread(4, 4.0, 4)


def test_files(tmp_path: Path) -> None:
    for number in range(4):
        np.arange(101, dtype=np.uint16).tofile(tmp_path / f"{number}.bin")
    data = from_tokens(sorted(map(str, tmp_path.glob("*.bin"))), seq_len=10, dtype="uint16")
    loader = Dataloader(data, 20, mesh=plan_mesh({"data": 2}, hosts=2))
    rows, where = loader.rows(1), data.source.locate
    expected = [len({part[0] for row in half for part in where(int(row))}) for half in (rows[:10], rows[10:])]
    assert loader.explain(1).reading.files == spread(expected)
    assert "files read" in str(loader.explain())
    assert explained(TREE, 20, {"data": 2}, 2).reading.files is None
    np.zeros(5001, np.uint16).tofile(tmp_path / "large.bin")
    rows_in_one_file = from_tokens(tmp_path / "large.bin", seq_len=1, dtype="uint16")
    assert explained(rows_in_one_file, 5000, {"data": 1}, 1).reading.files is None  # too many rows to look up


def test_warnings_about_copies_memory_dropped_rows_and_stragglers() -> None:
    big = from_arrays({"x": np.zeros((100, 1024), np.float32)})
    mesh = plan_mesh({"data": 8}, hosts=4)
    text = "\n".join(Dataloader(big, 64, mesh=mesh, partition=P(), prefetch_bytes=1000).explain().warnings)
    assert "all hosts together read the batch 4.0 times, since several hold the same parts of ['x']; partition" in text
    assert "a step takes 256 KiB on a host, but reading ahead is limited to 256 KiB: no two steps" in text
    assert "an epoch of 100 rows drops 36 of them" in text
    uneven = plan_mesh({"data": 8}, owners=[0, 0, 0, 0, 0, 1, 1, 1])
    (straggler, *_) = Dataloader(TREE, 16, mesh=uneven).explain().warnings
    assert "hosts read from 6 to 10 rows a step, and all wait" in straggler


def test_processes_with_their_own_meshes() -> None:
    """Its batch is a part of the global one, and the others have meshes like it."""
    mesh = mesh_of({"data": 4, "model": 2})
    partition = {"x": P("data", "model"), "y": P()}
    parts = [Dataloader(TREE, 32, mesh=mesh, partition=partition, shard_index=part, shard_count=4) for part in range(4)]
    found = parts[0].explain()
    assert (found.hosts, found.devices, found.batches.batch_size) == (4, 32, 32)
    assert found.reading.rows == Spread(8, 8.0, 8)
    assert found.reading.copies == Spread(1, 1.0, 1)
    hosts = AllHosts(parts[0].phases[0].shard(), 32)
    for number, loader in enumerate(parts):
        np.testing.assert_array_equal(hosts.rows.positions(number), loader.phases[0].shard().positions)
        np.testing.assert_array_equal(hosts.shard(number).positions, loader.phases[0].shard().positions)
        assert buffer_layout(loader.phases[0].shard()).bytes_per_step == found.memory.step.most
    assert parts[2].check_plan().hosts == 4


def test_schedules_microbatches_and_keys() -> None:
    mesh = plan_mesh({"data": 4}, hosts=4)
    loader = Dataloader(TREE, {0: 8, 6: 16}, mesh=mesh, microbatches=2, key_seed=3)
    first, second = loader.explain(), loader.explain(at=6)
    assert (first.batches.batch_size, first.batches.first, first.batches.last) == (8, 0, 5)
    assert (second.batches.batch_size, second.batches.first, second.batches.last) == (16, 6, 8)
    assert [leaf.path for leaf in second.leaves] == ["['key']", "['x']", "['y']"]
    assert second.leaves[1].shape == (2, 8, 16)
    assert second.reading.times == 1
    assert "these figures: steps 6 to 8" in str(second)
    assert "these figures" not in str(Dataloader(TREE, 8, mesh=mesh).explain())
    assert loader.check_plan().steps == 9
    with pytest.raises(RowIndexError, match="step 9 is out of range"):
        loader.explain(at=9)
    for ask in (loader.explain, loader.check_plan):
        with pytest.raises(ArgumentError, match="steps=0: pass 1 or more"):
            ask(0)


def example() -> Explanation:
    data = from_arrays({"tokens": np.zeros((70, 64), np.uint16), "label": np.zeros(70, np.int32)}).shuffle(7).map(_same)
    partition = {"tokens": P("data", "seq"), "label": P("data")}
    return explained(data, 16, {"data": 2, "seq": 4}, 4, partition=partition, num_epochs=2)


def test_explanation_as_text() -> None:
    text = str(example())
    assert text.startswith("data        arrays in memory\norder       70 rows\n            shuffle(7)\n")
    for line in (
        r" +map\(_same.*\nbatches     16 rows, 2 epochs: 8 steps",
        " +an epoch: 70 rows, 4 steps, 6 rows dropped",
        "mesh        data=2, seq=4: 8 devices on 4 hosts",
        r" +\['tokens'\] uint16\[16, 64\] by P\('data', 'seq'\)",
        "copies      each row is read by 2 hosts; 2.00 bytes are read for each byte of the batch",
        "per device  3 batches of 288 B: 864 B",
        "rows read +8 +8 +8",
        "bytes read +1.0 KiB +1.0 KiB +1.0 KiB",
        "warning: hosts read 1.0 KiB of whole rows.*",
    ):
        assert re.search(f"^{line}$", text, re.MULTILINE), line
    assert max(map(len, text.split("\n\nwarning", maxsplit=1)[0].splitlines())) < 100
    assert repr(example()) == "<Explanation of 16 rows on 4 hosts; print it, or draw it: .plot()>"


def test_infinite_runs() -> None:
    mixed = mix({"a": np.zeros(10), "b": np.zeros(5)}, [1, 2], stop="never")
    loader = Dataloader(mixed, 4, mesh=plan_mesh({"data": 2}, hosts=2), num_epochs=None)
    text = str(loader.explain())
    assert "4 rows, infinitely many epochs\n" in text
    assert "an epoch: endless\n" in text
    check = loader.check_plan(5)
    assert str(check).startswith("checked 5 of endless steps on 2 hosts")


PLANNED = """
from loadax import Dataloader, from_tokens
from loadax.sharding import plan_mesh

data = from_tokens("corpus.bin", seq_len=9, dtype="uint16")
loader = Dataloader(data, 512, mesh=plan_mesh({"data": 512}, hosts=64), num_epochs=8, remainder="pad")
print(loader.explain(), loader.check_plan())
"""


@pytest.mark.processes
def test_planning_touches_no_accelerator(tmp_path: Path) -> None:
    """JAX would fail to make any device on this platform."""
    np.arange(1001, dtype=np.uint16).tofile(tmp_path / "corpus.bin")
    child = subprocess.run(
        [sys.executable, "-W", "error", "-c", PLANNED],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "none_of_them"},
    )
    assert (child.returncode, child.stderr) == (0, "")
    assert "mesh        data=512: 512 devices on 64 hosts" in child.stdout
    assert "['mask'] bool[512] by P('data')" in child.stdout
    assert "checked all steps on 64 hosts" in child.stdout


def test_as_json() -> None:
    found = example()
    shown = json.loads(json.dumps(found.to_dict()))
    assert shown["reading"]["rows"] == {"least": 8, "median": 8.0, "most": 8}
    assert shown["reading"]["chunks"] is None
    assert shown["batches"]["dropped"] == 6
    assert shown["leaves"][0] == {"path": "['label']", "dtype": "int32", "shape": [16], "partition": "P('data')"}
    assert shown["warnings"] == list(found.warnings)


@pytest.mark.parametrize("case", ZOO, ids=lambda case: case.name)
def test_check_plan_counts_reads_of_the_whole_run(case: MeshCase) -> None:
    for partition in partitions(case):
        hosts = loaders(case, from_arrays(TREE).shuffle(3).repeat(2), partition, remainder="pad")
        check = hosts[0].check_plan()
        reads = np.zeros((len(hosts[0]), ROWS), np.int64)
        for loader in hosts:
            for step in range(len(loader)):
                np.add.at(reads[step], loader.local_rows(step), 1)
        assert check.copies == (reads[reads > 0].min(), reads.max())
        assert (check.steps, check.all_steps, check.hosts) == (12, 12, case.processes)
        assert check.shares == len({loader.phases[0].shard().positions.tobytes() for loader in hosts})
        assert check.asked == check.shares
        assert check.visits == 2
        assert "at most 2 times, over all of their epochs" in str(check)


def test_a_long_run_is_checked_in_part() -> None:
    data = from_arrays(np.broadcast_to(np.float32(0), (1_000_000_000,))).shuffle(0)
    loader = Dataloader(data, 1024, mesh=plan_mesh({"data": 1024}, hosts=1024))
    check = loader.check_plan()
    assert check.steps == 16
    assert check.all_steps == 976562
    assert (check.shares, check.asked) == (1024, 512)
    assert "(1,024 different shares, 512 in turn): each row is read by exactly the one host that holds it" in str(check)
    assert json.loads(json.dumps(check.to_dict()))["copies"] == [1, 1]
    assert loader.check_plan(2).asked == 1024


class Forgetful:
    """An order that breaks its contract: what it gives for a position depends on how many are asked for."""

    size = 64
    schedule = None

    def visits(self, epochs: Integers, positions: Integers) -> Visits:
        return Visits((positions + (len(positions) == 4)) % self.size, epochs)

    def __getattr__(self, name: str) -> Any:
        return getattr(Sequential(64), name)


def test_check_plan_finds_an_order_that_differs_between_hosts() -> None:
    forgetful: Any = Forgetful()
    data = Dataset(from_arrays(np.arange(64)).source, forgetful)
    loader = Dataloader(data, 16, mesh=plan_mesh({"data": 4}, hosts=4))
    message = r"step 0, position 0: host 0 would read row 1 \(epoch 0\), but row 0 \(epoch 0\) is at this position"
    with pytest.raises(ConformanceError, match=message):
        loader.check_plan()


def test_check_plan_finds_hosts_that_read_more_than_they_hold() -> None:
    hosts = AllHosts(Dataloader(TREE, 16, mesh=plan_mesh({"data": 4}, hosts=4)).phases[0].shard(), 16)
    held = hosts.rows
    wrong = HeldRows(16, 4, held.host, held.start, np.where(held.host == 3, 15, held.stop))
    vars(hosts)["rows"] = wrong
    with pytest.raises(ConformanceError, match="position 15 of the batch would be read by 1 host, but 0 hold it"):
        shares_of(hosts)


def test_thousands_of_hosts_cost_as_little_as_a_few() -> None:
    rows = np.broadcast_to(np.uint16(0), (10_000_000, 2048))
    data = from_arrays({"tokens": rows, "label": np.broadcast_to(np.int32(0), (10_000_000,))}).shuffle(0)

    def explained(hosts: int) -> tuple[Any, str]:
        mesh = plan_mesh({"data": 4096, "seq": 8}, hosts=hosts)
        loader = Dataloader(data, 32768, mesh=mesh, partition={"tokens": P("data", "seq"), "label": P("data")})
        found = loader.explain()
        return found, str(found)

    found, _ = explained(4096)
    assert lines_of(lambda: explained(4096)) < 2 * lines_of(lambda: explained(64))
    assert found.reading.rows == Spread(8, 8.0, 8)
    assert found.reading.nbytes == Spread(8 * 4100, 8.0 * 4100, 8 * 4100)


def test_batches_of_an_epoch_with_several_batch_sizes() -> None:
    loader = Dataloader({"x": np.arange(1000)}, batch_size={0: 8, 3: 16, 6: 32}, mesh=plan_mesh({"data": 8}, hosts=2))
    batches = loader.explain().batches
    assert (batches.steps, batches.steps_per_epoch, batches.first, batches.last) == (35, 35, 0, 2)
    assert batches.dropped == 1000 - sum(len(loader.rows(step)) for step in range(35))


@pytest.mark.parametrize(
    ("skipped", "first"), [(range(15), 0), (range(10, 27), 10), (range(5), 0), (range(30, 36), 20)]
)
def test_skipped_steps_are_not_counted(skipped: range, first: int) -> None:
    loader = Dataloader(np.arange(400), {0: 8, 10: 16, 20: 8}).skip(skipped)
    batches = loader.explain(at=first).batches
    assert (batches.first, batches.steps, batches.dropped) == (first, len(loader), 0)
    check = str(loader.check_plan())
    assert check.startswith("checked all steps")
    assert check.endswith("occurs in these steps at most once")


def test_a_skipped_end_of_an_epoch_is_not_dropped() -> None:
    for rows, skipped, remainder, expected in (
        (400, range(30, 50), "drop", (0, 0)),
        (405, range(30, 50), "drop", (5, 0)),
        (405, range(30, 51), "pad", (0, 3)),
    ):
        loader = Dataloader({"x": np.arange(rows)}, 8, remainder=remainder).skip(skipped)  # type: ignore[arg-type]
        batches = loader.explain().batches
        assert (batches.dropped, batches.padded) == expected


def test_notebook_shows_escaped_text() -> None:
    data = from_arrays({"<b>": np.zeros((64, 8))})
    explanation = explained(data, 16, {"data": 4, "model": 2}, 2, partition=P("data", "model"))
    text = ET.fromstring(explanation._repr_html_()).text
    assert text == str(explanation)
    assert "['<b>'] float32[16, 8] by P('data', 'model')" in text


def test_little_that_is_read_twice_is_not_called_nothing() -> None:
    found = Dataloader(np.zeros((32, 4), np.float32), 8).explain()
    assert "nothing is read twice" in str(found)
    found = replace(found, reading=replace(found.reading, times=1.004))
    assert "1.00 bytes are read for each byte of the batch" in str(found)
