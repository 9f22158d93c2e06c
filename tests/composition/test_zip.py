"""Datasets side by side: what is read of each, and what is said of their rows."""

from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

import loadax
from loadax import Dataloader, Dataset, from_arrays, from_source
from loadax.errors import LeafError
from loadax.protocols import Integers
from loadax.testing import check_source
from tests.sources.chunked import ChunkedSource

ROWS, CHUNK = 512, 16
VALUES = np.arange(ROWS * 4, dtype=np.int32).reshape(ROWS, 4)


def two(chunks: int = CHUNK, other: int = CHUNK) -> tuple[ChunkedSource, ChunkedSource]:
    return ChunkedSource(VALUES, chunks), ChunkedSource(-VALUES, other)


@pytest.mark.parametrize(
    "make",
    [
        lambda one, other: loadax.zip({"a": one, "b": {"c": other}}),
        lambda one, other: loadax.zip((one[::-1], other.map(lambda row: row + 1))),
        lambda one, other: loadax.zip([one.shuffle(0), other.shuffle(1).repeat(2).subset_per_epoch(range(ROWS))]),
        lambda one, other: loadax.zip([one.map(lambda row, rng: row + rng.integers(9), rng=True), other, other]),
        lambda one, other: loadax.zip([one, from_source([{"text": str(row)} for row in range(ROWS)])]),
        lambda one, other: one.zip(other.map(lambda row: {"tokens": row}).pack(4)[:ROWS]).zip(other),
    ],
)
def test_it_keeps_the_contract(make: Any) -> None:
    one, other = map(from_source, two())
    check_source(make(one, other).source, loader=False, pickled=False, rows=8)


def test_chunks_are_those_that_all_parts_share() -> None:
    one, other = map(from_source, two())
    assert loadax.zip((one, other)).source.chunks == range(0, ROWS, CHUNK)
    assert loadax.zip((one[:40], from_arrays(np.arange(40)))).source.chunks == range(0, 40, CHUNK)
    assert loadax.zip((one, from_source(two(other=8)[1]))).source.chunks is None
    assert loadax.zip((one[::-1], other)).source.chunks is None
    assert loadax.zip((one[1:], other[1:])).source.chunks is None
    assert loadax.zip((from_arrays(VALUES), from_arrays(VALUES))).source.chunks is None


@pytest.mark.parametrize(
    "shuffled",
    [
        lambda one, other: loadax.zip((one, other)).shuffle(0, block="chunks", window=2, lanes=4),
        lambda one, other: loadax.zip(
            [part.shuffle(seed, block="chunks", window=2, lanes=4) for seed, part in enumerate((one, other))]
        ),
    ],
)
def test_a_block_shuffle_decodes_each_chunk_of_every_part_once(shuffled: Any) -> None:
    decoded: tuple[list[int], list[int]] = [], []

    def decode(chunks: list[int], rows: Integers) -> None:
        chunks += np.unique(rows // CHUNK).tolist()

    sources = [ChunkedSource(VALUES, CHUNK, before=partial(decode, chunks)) for chunks in decoded]
    data = shuffled(*map(from_source, sources))
    _ = data.spec
    with Dataloader(data, 32, num_workers=0).iterate() as batches:
        for _ in batches:
            pass
    for chunks in decoded:
        assert sorted(chunks) == list(range(ROWS // CHUNK))


def test_only_columns_that_devices_hold_are_read() -> None:
    sources = two()
    data = loadax.zip({"a": from_source(sources[0]), "b": from_source(sources[1])}).shuffle(0)
    mesh = loadax.sharding.plan_mesh({"model": 2}, owners=[0, 1], process=0)
    loader = Dataloader(data, 32, mesh=mesh, partition={"a": PartitionSpec(None, "model"), "b": PartitionSpec()})
    read = loader.host_batch(3)
    rows = loader.rows(3)
    np.testing.assert_array_equal(read["a"], VALUES[rows])
    for source in sources:
        source.elements[0][:] = 0
    reads = sources[1].reads
    data.source.read_into(rows, [((0, 2),), None], [np.empty((32, 2), np.int32), None])
    assert sources[0].elements[0][rows].tolist() == [[1, 1, 0, 0]] * 32
    assert sources[1].reads == reads


def test_rows_that_differ_are_read_one_by_one() -> None:
    words = from_source([np.arange(length) for length in (3, 1, 4)])
    pairs = words.zip(from_arrays(np.arange(3)))
    assert [len(pair[0]) for pair in pairs] == [3, 1, 4]
    assert pairs.map(lambda pair: pair[0].sum() + pair[1]).read([0, 1, 2]).tolist() == [3, 1, 8]
    with pytest.raises(LeafError, match="row 1"):
        pairs.read([0, 1])
    unlike = loadax.concat([words, from_source([{"x": np.arange(2)}] * 2)])
    beside = unlike.zip(from_arrays(np.arange(5)))
    assert beside.map(lambda pair: pair[1]).read(range(5)).tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(LeafError, match=r"part 1 has the leaves .* map them to one structure first"):
        beside.read([0, 3])


def test_rows_that_are_alike_are_read_together_though_the_first_row_differs() -> None:
    words, numbers = from_source([np.arange(5), np.arange(2), np.arange(2)]), from_arrays(np.arange(3))
    for data in (words, words.map(lambda word: word + 0)):
        pairs = data.zip(numbers)[1:]
        for rows in ([0, 1], [1], []):
            first, second = pairs.read(rows)
            assert first.tolist() == [[0, 1]] * len(rows)
            assert (first.shape, second.tolist()) == ((len(rows), 2), [row + 1 for row in rows])
    assert words[1:].read([]).shape == words.flat_map(lambda word: [word], 1)[1:].read([]).shape == (0, 2)


def test_no_rows_have_the_leaves_of_all() -> None:
    pairs = from_source([np.arange(3)] * 2).zip(from_arrays(np.zeros((2, 5), np.float32)))
    first, second = pairs.read([])
    assert (first.shape, second.shape, second.dtype) == ((0, 3), (0, 5), np.float32)


def stored(path: Path) -> Dataset:
    loadax.write_zarr(VALUES[:64], path, chunk_rows=4)
    return loadax.from_zarr(path)


def test_a_trace_names_the_files_of_every_part_in_its_epoch(tmp_path: Path) -> None:
    one, other = stored(tmp_path / "one"), stored(tmp_path / "other")
    pairs = one.shuffle(3).zip(other[::-1])
    loader = Dataloader(pairs.shuffle(1), 16, num_epochs=2)
    record = loader.trace(5)[2]
    assert record.epoch == 1
    inner = one.shuffle(3).order.visits(np.array([1]), np.array([record.row]))
    expected = [*one.source.locate(int(inner.rows[0])), *other.source.locate(63 - record.row)]
    assert record.where == tuple(expected)
    assert pairs.source.locate(7) == pairs.source.locate_visit(7, 0) != pairs.source.locate_visit(7, 1)
    joined = loadax.concat([pairs, pairs])
    assert joined.source.locate_visit(64 + 7, 1) == pairs.source.locate_visit(7, 1)
    assert Dataloader(joined, 16, num_epochs=2).trace(12)[3].where == tuple(pairs.source.locate_visit(3, 1))
    with pytest.raises(loadax.errors.ArgumentError, match="which this dataset reads"):
        loadax.write_zarr(pairs, tmp_path / "other", overwrite=True)


@pytest.mark.processes
def test_worker_processes_read_it() -> None:
    pairs = loadax.zip({"a": from_arrays(VALUES).shuffle(1), "b": from_arrays(VALUES).split(0.5)[0].repeat(3)[:ROWS]})
    mesh = Mesh(np.array(jax.devices()[:1], object), ("data",))
    expected = Dataloader(pairs, 128, mesh=mesh, num_workers=0)
    loader = Dataloader(pairs, 128, mesh=mesh, num_workers=1, worker_type="process")
    with loader.iterate() as batches:
        for step, batch in enumerate(batches):
            for name in ("a", "b"):
                np.testing.assert_array_equal(batch[name], expected[step][name])
