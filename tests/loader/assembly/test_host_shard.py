"""Rows of a batch that a process reads, from the mesh or from shard_index."""

import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from loadax.errors import PartitionError
from loadax.loader.assembly.host_shard import ShardSpec, batch_specs, resolve_shard
from loadax.protocols import ArraySpec
from loadax.sharding import plan_mesh
from tests.meshes import ZOO, MeshCase

BATCH = batch_specs({"x": ArraySpec((8,), np.dtype("f4")), "y": ArraySpec((), np.dtype("i8"))}, [])[0]


@pytest.mark.parametrize("case", ZOO, ids=lambda case: case.name)
def test_positions_are_the_rows_of_ones_own_devices(case: MeshCase) -> None:
    seen = np.zeros(16, np.int64)
    for process in range(case.processes):
        shard = resolve_shard(BATCH, 16, case.planned(process), P(case.axes), None)
        own = np.flatnonzero(case.owners.ravel() == process)
        np.testing.assert_array_equal(shard.positions, np.sort(np.concatenate([2 * own, 2 * own + 1])))
        np.add.at(seen, shard.positions, 1)
        everything = resolve_shard(BATCH, 16, case.planned(process), {"x": P(case.axes), "y": P()}, None)
        np.testing.assert_array_equal(everything.positions, np.arange(16))
    assert seen.tolist() == [1] * 16


def test_a_part_on_ones_own_mesh_is_cut_again_by_it() -> None:
    shard = resolve_shard(BATCH, 32, plan_mesh({"data": 4}, hosts=1), P("data"), ShardSpec(2, 4))
    assert (shard.first, shard.batch_size) == (16, 8)
    assert shard.positions.tolist() == list(range(16, 24))
    assert [layout.shape for layout in shard.layouts] == [(8, 8), (8,)]


def test_a_part_that_the_mesh_agrees_with_is_no_error() -> None:
    mesh = plan_mesh({"data": 8}, hosts=4, process=2)
    assert resolve_shard(BATCH, 16, mesh, P("data"), ShardSpec(2, 4)).positions.tolist() == [8, 9, 10, 11]


def test_a_process_without_a_device_reads_nothing() -> None:
    shard = resolve_shard(BATCH, 16, plan_mesh({"data": 8}, hosts=2, process=7), P("data"), None)
    assert shard.positions.tolist() == []
    with pytest.raises(PartitionError, match="on this mesh this process holds no rows"):
        resolve_shard(BATCH, 16, plan_mesh({"data": 8}, hosts=2, process=7), P("data"), ShardSpec(0, 4))


def test_a_batch_has_its_leaves_in_jaxs_order_and_jaxs_dtypes() -> None:
    batch = batch_specs({"z": ArraySpec((2,), np.dtype("f8")), "a": {"n": ArraySpec((), np.dtype("i8"))}}, ["mask"])[0]
    assert [(leaf.path, leaf.source, str(leaf.dtype)) for leaf in batch.leaves] == [
        ("['a']['n']", 0, "int32"),
        ("['mask']", None, "bool"),
        ("['z']", 1, "float32"),
    ]
