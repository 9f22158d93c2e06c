"""What the real processes of `test_jax_runs.py` do.

Every process works out every whole batch by itself, the slow way.
"""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import jax
import numpy as np
import pytest
import tensorstore as ts
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

from loadax import Dataloader, from_arrays, from_source, from_tensorstore
from loadax.core.tree import flatten
from loadax.errors import LeafError, PartitionError
from loadax.loader.watch import record
from loadax.sharding import data_parallel
from tests.loader.oracle import CHAIN, ELEMENTWISE, NONE, ColumnSource, Oracle, ReadSource, arrays, assert_placed
from tests.meshes import MeshCase, zoo
from tests.processes.lateness import first_process_last

ROWS, BATCH, STEP = 90, 16, 8
TREE = arrays(ROWS)


def partitions(case: MeshCase) -> Iterator[Any]:
    first, *rest = case.axes
    yield from (P(first), P(), {"image": P(None, None, first), "label": P(first), "tokens": P(None, first)})
    for second in rest:
        yield from (P((first, second)), P((second, first)), P(second), P(first, second), P(second, first))
        yield {"image": P(None, second, first), "label": P(), "tokens": P((second, first))}


def held(mesh: Mesh, batch: Any) -> list[np.ndarray[Any, Any]]:
    """Which elements of each leaf of a batch this process's devices hold, by JAX's own index map."""
    masks = []
    for leaf in flatten(batch)[0]:
        mask = np.zeros(leaf.shape, np.int64)
        for shard in leaf.addressable_shards:
            mask[shard.index] = 1
        masks.append(mask)
    return masks


class Remembered:
    """An oracle, each of whose batches is worked out once."""

    def __init__(self, oracle: Oracle):
        self.rows = cache(oracle.rows)
        self.batch = cache(oracle.batch)


@patch.object(record, "sampled_rows", lambda *_: [])  # read for the comparison of hosts
def every_mesh() -> None:
    """Bit-equal batches, and each element that is held is read once and no other.

    Partitions take turns at columns and whole rows: `test_every_host_holds_its_boxes_and_reads_each_element_once` has
    both for each, on the same meshes as plans.
    """
    shuffled = from_arrays(TREE).shuffle(seed=5).order
    shifted, padded = Oracle(TREE, shuffled, ELEMENTWISE, BATCH), Oracle(TREE, shuffled, NONE, BATCH, "pad")
    expected = Remembered(shifted), Remembered(padded)
    for turn, case in enumerate(zoo(jax.process_count())):
        for number, partition in enumerate(partitions(case)):
            mesh = case.real(AxisType.Explicit if number % 2 else AxisType.Auto)
            if (turn + number) % 2:
                columns_only(mesh, partition, number % 3, expected[0])
                continue
            mask = rows_only(mesh, partition, number % 3, expected[1])
            if number < 2:  # once on each mesh: for each program, the processes connect anew
                total = jax.jit(lambda mask: mask.sum(), out_shardings=NamedSharding(mesh, P()))(mask)
                assert int(total) == ROWS % BATCH


def columns_only(mesh: Mesh, partition: Any, workers: int, oracle: Remembered) -> None:
    source = ColumnSource(TREE)
    data = ELEMENTWISE.build(from_source(source).shuffle(seed=5))
    loader = Dataloader(data, BATCH, mesh=mesh, partition=partition, num_workers=workers)
    for counts in source.counts:
        counts[:] = 0  # of looking at the first row
    planned = [np.zeros_like(counts) for counts in source.counts]
    for step, batch in enumerate(loader):
        assert_placed(batch, oracle.batch(step), mesh)
        for total, mask in zip(planned, held(mesh, batch), strict=True):
            np.add.at(total, oracle.rows(step), mask)
    assert step + 1 == len(loader) == 5
    for total, counts in zip(planned, source.counts, strict=True):
        np.testing.assert_array_equal(counts, total)


def rows_only(mesh: Mesh, partition: Any, workers: int, oracle: Remembered) -> jax.Array:
    """Returns the mask of the last batch."""
    source = ReadSource(TREE)
    loader = Dataloader(
        from_source(source).shuffle(seed=5), BATCH, mesh=mesh, partition=partition, remainder="pad", num_workers=workers
    )
    planned = np.zeros(ROWS, np.int64)
    for step, batch in enumerate(loader):
        assert_placed(batch, oracle.batch(step), mesh)
        wanted = np.zeros(BATCH, bool)
        for leaf in flatten(batch)[0]:
            for shard in leaf.addressable_shards:
                wanted[shard.index[0]] = True
        rows = np.array(oracle.rows(step))[wanted]
        np.testing.assert_array_equal(loader.local_rows(step), rows)
        np.add.at(planned, rows[rows >= 0], 1)
    np.testing.assert_array_equal(source.counts, planned)
    return batch["mask"]


@patch.object(record, "sampled_rows", lambda *_: [])
def columns_of_a_store(folder: str) -> None:
    """TensorStore's own count of bytes: a host reads its columns of its rows, and nothing else."""
    count, whole = jax.process_count(), np.arange(64 * 4096, dtype=np.float32).reshape(64, 4096)
    path = str(Path(folder, "store"))
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": path}}
    if jax.process_index() == 0:
        grid = {"name": "regular", "configuration": {"chunk_shape": [1, 512]}}
        codecs = [{"name": "bytes", "configuration": {"endian": "little"}}]
        metadata = {"shape": [64, 4096], "data_type": "float32", "chunk_grid": grid, "codecs": codecs}
        ts.open({**spec, "metadata": metadata, "create": True}).result().write(whole).result()
    multihost_utils.sync_global_devices("written")
    # each host has its own columns of all rows
    mesh = Mesh(np.array(jax.devices()).reshape(count, -1).T, ("data", "seq"))
    for mapped in (False, True):
        data = from_tensorstore({"field": spec})
        if mapped:
            data = data.map_batch(lambda batch: {"field": batch["field"] * 2}, elementwise=True)
        loader = Dataloader(data.shuffle(seed=0), 16, mesh=mesh, partition=P("data", "seq"))
        before = bytes_read()
        for step, batch in enumerate(loader):
            expected = whole[loader.rows(step)] * (2 if mapped else 1)
            assert_placed(batch, {"field": expected}, mesh)
        # A row that was looked at for the map's spec is in the cache already.
        mine = whole.nbytes // count
        assert bytes_read() - before in (mine, mine - mapped * whole[0].nbytes // count)


def bytes_read() -> int:
    metrics = ts.experimental_collect_matching_metrics("/tensorstore/kvstore/file/bytes_read")
    return sum(int(value["value"]) for metric in metrics for value in metric["values"])


def late_host(folder: str) -> None:
    """The first process is late; the others place all their batches meanwhile."""
    loaders = [
        Dataloader(TREE, BATCH, mesh=case.real(), partition=P(case.axes[0]), num_epochs=4)
        for case in zoo(jax.process_count())
    ]
    multihost_utils.sync_global_devices("together")
    with first_process_last(folder):
        for loader in loaders:
            for batch in loader:
                jax.block_until_ready(batch)
            jax.block_until_ready(loader[3])
    multihost_utils.sync_global_devices("done")


def epochs_loader() -> tuple[Dataloader, Oracle]:
    data = CHAIN.build(from_arrays(TREE).shuffle(seed=9))
    return Dataloader(data, BATCH, num_epochs=3, remainder="pad"), Oracle(TREE, data.order, CHAIN, BATCH, "pad")


def save(folder: str) -> None:
    """Runs up to `STEP`, and saves where it is: the same bytes on every host."""
    loader, oracle = epochs_loader()
    with iter(loader) as batches:
        for number in range(STEP):
            assert_placed(next(batches), oracle.batch(number))
        state = json.dumps(batches.get_state())
    Path(folder, f"{jax.process_index()}.json").write_text(state)


def restore(folder: str) -> None:
    """Goes on from a state of any process, to the end, whatever the processes are now."""
    loader, oracle = epochs_loader()
    found = {path.read_text() for path in Path(folder).glob("*.json")}
    assert len(found) == 1
    with loader.iterate(json.loads(found.pop())) as batches:
        assert batches.step == STEP
        for number, batch in enumerate(batches, STEP):
            assert_placed(batch, oracle.batch(number))
        assert number + 1 == len(loader) == 18


def errors_alike() -> None:
    """What can be known before the first step is said on every host, and no host is left waiting."""
    mesh = data_parallel()
    with pytest.raises(
        PartitionError,
        match=r"dim 0 has 12 rows, .* splits it into 8 equal parts. Use a batch_size that is a multiple of 8",
    ):
        Dataloader(TREE, 12, mesh=mesh)
    with pytest.raises(PartitionError, match="leave shard_index and shard_count out, so that the mesh decides"):
        Dataloader(
            TREE,
            BATCH,
            mesh=mesh,
            shard_index=jax.process_count() - 1 - jax.process_index(),
            shard_count=jax.process_count(),
        )
    fits = Dataloader(TREE, BATCH, mesh=mesh, shard_index=jax.process_index(), shard_count=jax.process_count())
    assert_placed(fits[2], Oracle(TREE, fits.dataset.order, NONE, BATCH).batch(2), mesh)
    broken = [{"x": np.zeros(4 if row == 88 else 2)} for row in range(ROWS)]
    loader = Dataloader(from_source(broken), BATCH, mesh=mesh, partition=P(), remainder="pad")
    with pytest.raises(LeafError, match=r"row 88: leaf \['x'\] is float64\[4\], expected float64\[2\]"):
        list(loader)


def holds_nothing() -> None:
    """A mesh of the first process's devices: the others go through the same steps, and read nothing."""
    mesh = data_parallel([device for device in jax.devices() if device.process_index == 0])
    source = ReadSource(TREE)
    loader = Dataloader(from_source(source), BATCH, mesh=mesh, num_epochs=2)
    oracle = Oracle(TREE, loader.dataset.order, NONE, BATCH)
    for step, batch in enumerate(loader):
        assert_placed(batch, oracle.batch(step), mesh)
    assert step + 1 == 10
    assert source.counts.sum() == (160 if jax.process_index() == 0 else 0)
    assert len(loader.local_rows(3)) == (16 if jax.process_index() == 0 else 0)
    assert loader.host_batch(3)["tokens"].shape == ((16 if jax.process_index() == 0 else 0), 16)


def own_mesh() -> None:
    """Shares by constructor on a mesh of this process's own devices: each yields its part of the batch."""
    own = data_parallel(jax.local_devices())
    part, count = jax.process_index(), jax.process_count()
    loader = Dataloader(TREE, BATCH, mesh=own, shard_index=part, shard_count=count)
    oracle = Oracle(TREE, loader.dataset.order, NONE, BATCH)
    size = BATCH // count
    for step, batch in enumerate(loader):
        assert_placed(batch, jax.tree.map(lambda leaf: leaf[part * size : (part + 1) * size], oracle.batch(step)), own)


def all_stop_together() -> None:
    """Lengths that divide by nothing: every host has as many steps, and one collective a step comes to an end."""
    total = jax.jit(lambda x: x.sum())  # once: for each program, the processes connect anew
    for rows in (16, 17, 31, 90):
        for remainder in ("drop", "pad"):
            loader = Dataloader(arrays(rows), BATCH, mesh=data_parallel(), num_epochs=2, remainder=remainder)
            sums = [jax.block_until_ready(total(batch["label"])) for batch in loader]
            steps = multihost_utils.process_allgather(np.array(len(sums))).ravel()
            assert set(steps.tolist()) == {len(loader)}


def moves() -> None:
    """One iterator goes through the meshes of the zoo, and back to some of the devices."""
    shuffled = from_arrays(TREE).shuffle(seed=5)
    oracle = Oracle(TREE, shuffled.order, NONE, BATCH, "pad")
    some = [device for device in jax.devices() if device.id % 2 == 0]
    meshes = [*(case.real() for case in zoo(jax.process_count())), data_parallel(some)]
    loader = Dataloader(shuffled, BATCH, num_epochs=2, remainder="pad", mesh=data_parallel())
    with loader.iterate() as batches:
        for step, mesh in enumerate(meshes):
            batches.move_to(mesh, P(mesh.axis_names[-1]))
            assert_placed(next(batches), oracle.batch(step), mesh)


def small_cases() -> None:
    """One launch costs seconds, so all of this is done in one."""
    errors_alike()
    holds_nothing()
    own_mesh()
    moves()
    all_stop_together()
