"""Packs of sparse rows are those of `toarray()` when the devices have made them dense, on every mesh and host."""

import pickle
from typing import Any

import jax
import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings, strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

import loadax
from loadax import Dataloader, from_sparse, pack_sparse
from loadax.errors import ArgumentError, LeafError, StateError
from loadax.packing.sparse_plan import plan_packs
from loadax.sharding import plan_mesh
from loadax.testing import check_source
from tests.limits import examples as count_of
from tests.sources.sparse.matrices import COLUMNS, FORMS, ROWS, matrix
from tests.worker_types import WORKER_TYPES


def dense_by_hand(pack: Any, columns: int) -> Any:
    """Rows of a pack on the host, entry by entry."""
    rows = np.zeros((len(pack["lengths"]), columns), pack["values"].dtype)
    begin = 0
    for row, length in zip(rows, pack["lengths"].tolist(), strict=True):
        for entry in range(begin, begin + length):
            row[pack["indices"][entry]] += pack["values"][entry]
        begin += length
    assert not pack["values"][begin:].any()
    return rows[pack["row_mask"]]


def toarray(examples: list[Any]) -> Any:
    """Dense rows of sparse examples."""
    dense = np.zeros((len(examples), COLUMNS), np.float32)
    for row, example in zip(dense, examples, strict=True):
        np.add.at(row, example["indices"], example["values"])
    return dense


def slow_plan(lengths: list[int], rows: int, budget: int) -> list[int]:
    """The bounds of packs, row by row."""
    bounds, count, total = [0], 0, 0
    for row, length in enumerate(lengths):
        if count == rows or total + length > budget:
            bounds.append(row)
            count, total = 0, 0
        count, total = count + 1, total + length
    return [*bounds, len(lengths)]


@settings(max_examples=count_of(200))
@given(st.lists(st.integers(0, 30), min_size=1, max_size=40), st.integers(1, 9), st.integers(0, 60))
def test_plan_equals_a_slow_one(lengths: list[int], rows: int, more: int) -> None:
    given_lengths = np.array(lengths)
    budget = max(1, *lengths, more)
    bounds, found = plan_packs(given_lengths, rows, budget, given_lengths)
    assert (bounds.tolist(), found) == (slow_plan(lengths, rows, budget), budget)
    bounds, found = plan_packs(given_lengths, rows, None, given_lengths)
    assert bounds.tolist() == slow_plan(lengths, rows, found)
    assert found % 128 == 0
    sums = np.add.reduceat(given_lengths, np.arange(0, len(lengths), rows))
    assert max(1, *lengths) <= found < max(1, *lengths, min(sums.max(), 1.5 * rows * given_lengths.mean() + 1)) + 128


@settings(max_examples=count_of(100))
@given(st.integers(0, 999), st.integers(1, 9), st.booleans(), st.sampled_from(["float32", "int32", "uint8"]))
def test_packs_of_random_matrices_equal_toarray(seed: int, rows: int, shuffled: bool, dtype: str) -> None:
    wanted = matrix(seed, rows=30, columns=11, dtype=dtype, density=0.4)
    data = from_sparse(wanted, obs={"row": np.arange(30, dtype=np.int32)})
    if shuffled:
        data = data.shuffle(seed)
    packs, _ = pack_sparse(data, rows, entries=max(1, int(np.diff(wanted.indptr).max())) + 5)
    found = [packs[number] for number in range(len(packs))]
    order = np.concatenate([pack["row"][pack["row_mask"]] for pack in found])
    assert sorted(order.tolist()) == list(range(30))
    assert order.tolist() == [int(data[position]["row"]) for position in range(30)]
    np.testing.assert_array_equal(np.concatenate([dense_by_hand(pack, 11) for pack in found]), wanted.toarray()[order])


@pytest.mark.parametrize("dtype", ["float32", "int32", "int8", "bool"])
def test_devices_make_packs_equal_to_toarray(dtype: str) -> None:
    wanted = matrix(dtype=dtype)
    packs, dense = pack_sparse(from_sparse(wanted, obs={"row": np.arange(ROWS)}), rows=7)
    loader = Dataloader(packs, 8, device_map=dense, num_epochs=1, remainder="pad")
    seen = []
    for placed in loader:
        batch = jax.tree.map(np.asarray, placed)
        assert batch["x"].shape == (8, 7, COLUMNS)
        assert batch["x"].dtype == dtype
        rows = batch["row"][batch["row_mask"]]
        np.testing.assert_array_equal(batch["x"][batch["row_mask"]], wanted.toarray()[rows])
        assert not batch["x"][~batch["row_mask"]].any()
        seen += rows.tolist()
    assert seen == list(range(ROWS))


def test_entries_of_one_column_are_added_on_the_devices() -> None:
    values = np.array([1, 2, 4, 8], np.float32)
    wanted = scipy.sparse.csr_array((values, np.array([2, 0, 2, 1]), np.array([0, 3, 3, 4])), shape=(3, 3))
    packs, dense = pack_sparse(wanted, rows=3)
    batch = Dataloader(packs, 1, device_map=dense, mesh=Mesh(np.array(jax.devices()[:1]), ("data",)))[0]
    assert batch["x"][0].tolist() == wanted.toarray().tolist() == [[2, 0, 5], [0, 0, 0], [0, 8, 0]]


def test_each_device_has_its_own_packs_and_one_program() -> None:
    wanted = matrix(rows=256, columns=70_000, density=0.001)
    packs, dense = pack_sparse(from_sparse(wanted, obs={"row": np.arange(256)}), rows=4)
    mesh = Mesh(np.array(jax.devices()), ("data",))
    traced = []

    def counted(example: Any) -> Any:
        traced.append(1)
        return dense(example)

    loader = Dataloader(packs.shuffle(3), 16, device_map=counted, mesh=mesh, num_epochs=2)
    counts = []
    for batch in loader:
        counts.append(len(traced))
        assert batch["x"].sharding == batch["row"].sharding == NamedSharding(mesh, P("data"))
        for shard, rows, mask in zip(
            *(batch[name].addressable_shards for name in ("x", "row", "row_mask")), strict=True
        ):
            own = np.asarray(rows.data)[np.asarray(mask.data)]
            assert len(own)
            np.testing.assert_array_equal(np.asarray(shard.data)[np.asarray(mask.data)], wanted[own].toarray())
    assert len(counts) == len(loader) >= 8
    # Traced before the first batch, and never again: all batches have one shape.
    assert len({*counts}) == 1


@pytest.mark.parametrize("density", [0.05, 0.3])
def test_bytes_placed_are_at_most_twice_those_of_the_entries(density: float) -> None:
    rng = np.random.default_rng(0)
    lengths = np.minimum(rng.lognormal(np.log(2000 * density), 0.5, 4096).astype(int), 2000)
    indptr = np.append(0, np.cumsum(lengths))
    columns = np.concatenate([np.arange(length) for length in lengths]).astype(np.int32)
    values = np.ones(indptr[-1], np.float32)
    wanted = scipy.sparse.csr_array((values, columns, indptr), shape=(4096, 2000))
    for rows in (16, 64):
        packs, _ = pack_sparse(from_sparse(wanted), rows)
        spec = Dataloader(packs, 8).spec
        placed = sum(int(np.prod(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(spec)) / 8
        entries = wanted.indices.nbytes + wanted.data.nbytes
        assert len(packs) * placed <= 2 * entries
        assert len(packs) * placed <= len(lengths) * 2000 * 4 * 2 * 2 * density


@pytest.mark.parametrize("hosts", [1, 2, 4])
def test_hosts_read_their_own_packs(hosts: int) -> None:
    packs, _ = pack_sparse(from_sparse(matrix(rows=160)), rows=5)
    data = packs.shuffle(1)
    whole = Dataloader(data, 16, mesh=plan_mesh({"data": 8}, hosts=1))
    for step in range(2):
        parts = []
        for host in range(hosts):
            loader = Dataloader(data, 16, mesh=plan_mesh({"data": 8}, hosts=hosts, process=host))
            assert len(loader.local_rows(step)) == 16 // hosts
            parts.append(loader.host_batch(step))
        joined = jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
        jax.tree.map(np.testing.assert_array_equal, joined, whole.host_batch(step))


@pytest.mark.parametrize("worker_type", WORKER_TYPES)
def test_worker_processes_and_resumes_give_the_same_batches(worker_type: Any, tmp_path: Any) -> None:
    wanted = matrix(rows=320)
    data = from_sparse(FORMS["HDF5 group"](wanted, tmp_path)).shuffle(0)
    packs, dense = pack_sparse(data, rows=5)
    plain = Dataloader(packs.shuffle(1), 8, device_map=dense, num_workers=0, num_epochs=1)
    batches = [np.asarray(batch["x"]) for batch in plain]
    assert len(batches) == 8
    again = Dataloader(packs.shuffle(1), 8, device_map=dense, num_workers=2, worker_type=worker_type, num_epochs=1)
    iterator = iter(again)
    with iterator:
        for batch in batches[:3]:
            np.testing.assert_array_equal(next(iterator)["x"], batch)
        state = iterator.get_state()
    for step, batch in enumerate(again.iterate(start=state)):
        np.testing.assert_array_equal(batch["x"], batches[3 + step])
    other = pack_sparse(data, rows=4)[0].shuffle(1)
    with pytest.raises(StateError, match=r"the parts .*`sparse packs\(1, \[4, 128, 23\]"):
        Dataloader(other, 8, num_epochs=1).iterate(start=state)


def test_packs_keep_the_contract_of_sources() -> None:
    packs, _ = pack_sparse(from_sparse(matrix(), obs={"row": np.arange(ROWS)}), rows=5)
    check_source(packs, rows=6, pickled=False)
    copied = pickle.loads(pickle.dumps(packs))
    jax.tree.map(np.testing.assert_array_equal, copied.read([3, 1]), packs.read([3, 1]))


def test_packs_tell_their_rows_and_chunks(tmp_path: Any) -> None:
    data = from_sparse(FORMS["HDF5 group"](matrix(rows=600), tmp_path))
    packs, _ = pack_sparse(data, rows=4)
    assert [entry.row for entry in packs.source.documents(3) or []] == [12, 13, 14, 15]
    starts = data.source.chunks
    assert starts is not None
    chunk = np.searchsorted(starts, np.arange(0, 600, 4), side="right")
    assert packs.source.chunks is not None
    assert np.array(packs.source.chunks).tolist() == [0, *(np.flatnonzero(np.diff(chunk)) + 1).tolist()]
    assert pack_sparse(data.shuffle(0), rows=4)[0].source.chunks is None
    blocks = packs.shuffle(0, block="chunks")
    rows = [blocks.source.documents(int(row)) for row in Dataloader(blocks, 8, num_epochs=1).rows(0)]
    assert len(rows) == 8
    assert ".map(Fill(rows=4, entries=128, columns=23))" in repr(packs)


def test_maps_before_packs_change_the_entries() -> None:
    wanted = matrix()

    def large(row: Any) -> Any:
        kept = row["values"] > 30
        return {"indices": row["indices"][kept], "values": np.log1p(row["values"][kept])}

    packs, dense = pack_sparse(from_sparse(wanted).map(large), rows=7)
    loader = Dataloader(packs, len(packs), device_map=dense, mesh=Mesh(np.array(jax.devices()[:1]), ("data",)))
    found = np.asarray(loader[0]["x"]).reshape(-1, COLUMNS)[:ROWS]
    np.testing.assert_array_equal(found, np.where(wanted.toarray() > 30, np.log1p(wanted.toarray()), 0))


def test_rows_that_do_not_fit_are_named() -> None:
    wanted = matrix()
    lengths = np.diff(wanted.indptr)
    row, longest = int(np.argmax(lengths)), int(lengths.max())
    with pytest.raises(ArgumentError, match=rf"^row {row} has {longest} entries, more than entries=5; pass entries="):
        pack_sparse(from_sparse(wanted), entries=5)
    assert pack_sparse(from_sparse(wanted), entries=longest)[0][0]["indices"].shape == (longest,)
    calls = []

    def growing(example: Any) -> Any:
        calls.append(1)
        times = 1 if len(calls) <= ROWS + 1 else 9
        return {name: np.tile(leaf, times) for name, leaf in example.items()}

    packs, _ = pack_sparse(from_sparse(wanted).map(growing), rows=7)
    with pytest.raises(LeafError, match=r"\d+ rows have \d+ entries, more than the \d+ that they were"):
        packs.read(range(len(packs)))


def test_rows_that_are_not_sparse_are_named() -> None:
    rows = from_sparse(matrix())
    with pytest.raises(ArgumentError, match=r"has sparse matrices of \[\] columns; open one with loadax.from_sparse"):
        pack_sparse(loadax.from_arrays(np.arange(4)))
    with pytest.raises(LeafError, match=r"a row is not a dict with 'indices' and 'values'"):
        pack_sparse(loadax.from_arrays(np.arange(4)), columns=3)
    with pytest.raises(LeafError, match=r"pack_sparse\(\) adds 'lengths', which rows have; rename it"):
        _ = pack_sparse(from_sparse(matrix(), obs={"lengths": np.arange(ROWS)}))[0][0]
    with pytest.raises(ArgumentError, match=r"pack_sparse\(\) of a stream"):
        pack_sparse(rows.to_stream(4))
    with pytest.raises(ArgumentError, match="pack_sparse\\(\\) of a dataset without rows"):
        pack_sparse(rows[:0])
    wide = rows.map(lambda row: {**row, "indices": row["indices"] + 1})
    with pytest.raises(LeafError, match=r"a row has an entry in column 23, but .* and below 23; correct the map"):
        pack_sparse(wide, rows=4)[0].read(range(15))
    assert pack_sparse(wide, rows=4, columns=COLUMNS + 1)[0].read(range(15))["indices"].max() == COLUMNS
    short = rows.map(lambda row: {**row, "values": row["values"][1:]})
    with pytest.raises(LeafError, match=r"a row has other numbers of 'indices' and 'values'; return as many"):
        pack_sparse(short, rows=4)[0].read(range(15))


def test_packs_that_are_too_large_when_dense_stay_sparse() -> None:
    wide = scipy.sparse.csr_array(([1.0], [1 << 28], [0, 1, 1]), shape=(2, 1 << 29))
    packs, dense = pack_sparse(from_sparse(wide), rows=8)
    mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    with pytest.raises(
        ArgumentError, match=r"a dense pack of 8 rows and 536,870,912 columns .*pack_sparse\(data, rows=2\)"
    ):
        _ = Dataloader(packs, 1, device_map=dense, mesh=mesh)[0]
    assert Dataloader(packs, 1, mesh=mesh)[0]["indices"][0, 0] == 1 << 28


def test_packs_of_several_matrices_and_of_selected_rows() -> None:
    first, second = matrix(1), matrix(2)
    both = loadax.concat([from_sparse(first), from_sparse(second)])
    filled = both.filter(lambda row: len(row["indices"]) > 0)
    wanted = scipy.sparse.vstack([first, second]).toarray()
    assert toarray([*filled]).tolist() == wanted[wanted.any(axis=1)].tolist()
    for data in (filled, filled.shuffle(0)[5:40], filled.split(0.5)[1]):
        packs, _ = pack_sparse(data, rows=6)
        found = np.concatenate([dense_by_hand(packs[number], COLUMNS) for number in range(len(packs))])
        np.testing.assert_array_equal(found, toarray([*data]))
    with pytest.raises(ArgumentError, match=r"sparse matrices of \[5, 23\] columns"):
        pack_sparse(loadax.concat([from_sparse(first), from_sparse(matrix(columns=5))]))
