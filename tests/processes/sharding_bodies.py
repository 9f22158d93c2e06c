"""What the real processes of `test_jax_runs.py` do.

Expectations come from JAX's own index maps, one device at a time.
"""

import re
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

from loadax.errors import MeshError, PartitionError
from loadax.sharding import (
    DataPartitionType,
    data_parallel,
    global_to_host_array,
    host_local_to_global,
    host_to_global_device_array,
    hybrid,
)
from loadax.sharding.layout import plan_leaf
from loadax.sharding.mesh import grid_of
from loadax.sharding.placer import Placer
from tests.meshes import MeshCase, zoo
from tests.processes.lateness import first_process_last

FULL, REPLICATED = DataPartitionType.FULL, DataPartitionType.REPLICATED
WHOLE = np.arange(16 * 24, dtype=np.int32).reshape(16, 24)


def check_shards(array: Any, whole: np.ndarray[Any, Any]) -> None:
    assert (array.shape, array.dtype, array.weak_type) == (whole.shape, whole.dtype, False)
    for shard in array.addressable_shards:
        np.testing.assert_array_equal(np.asarray(shard.data), whole[shard.index])


def seed_functions() -> None:
    """FULL and REPLICATED, there and back, on every mesh of this many processes."""
    for case in zoo(jax.process_count()):
        for axis_type in (AxisType.Auto, AxisType.Explicit):
            mesh = case.real(axis_type)
            mine = [
                place for place, device in enumerate(mesh.devices.flat) if device.process_index == jax.process_index()
            ]
            rows = np.concatenate([np.arange(2 * place, 2 * place + 2) for place in mine])
            tree = {"x": WHOLE[rows], "y": WHOLE[rows, 0].astype(np.float32)}
            with jax.set_mesh(mesh):
                placed = host_to_global_device_array(tree)
            assert placed["x"].sharding == NamedSharding(mesh, P(case.axes)), case
            check_shards(placed["x"], WHOLE)
            check_shards(placed["y"], WHOLE[:, 0].astype(np.float32))
            jax.tree.map(np.testing.assert_array_equal, global_to_host_array(placed), tree)
            copies = host_to_global_device_array({"w": WHOLE, "step": 3}, partition=REPLICATED, mesh=mesh)
            assert copies["w"].sharding == NamedSharding(mesh, P()), case
            check_shards(copies["w"], WHOLE)
            back = global_to_host_array(copies, partition=REPLICATED)
            np.testing.assert_array_equal(back["w"], WHOLE)
            assert back["step"] == 3
            np.testing.assert_array_equal(global_to_host_array(copies["w"]), WHOLE)
            if axis_type == AxisType.Explicit:  # once on each mesh: for each program, the processes connect anew
                total = jax.jit(lambda x: x.sum(), out_shardings=NamedSharding(mesh, P()))(placed["x"])
                assert int(total) == WHOLE.sum(), case


def specs_of(case: MeshCase) -> Iterator[P]:
    first, *rest = case.axes
    yield from (P(), P(first), P(None, first))
    for second in rest:
        yield from (
            P(second),
            P(first, second),
            P(second, first),
            P((first, second)),
            P((second, first)),
            P(None, (first, second)),
        )


def held_starts(mesh: Mesh, spec: P, process: int) -> list[list[int]]:
    """The starts of a process's boxes along every dim, each once, ascending."""
    indices: dict[Any, Any] = dict(NamedSharding(mesh, spec).devices_indices_map(WHOLE.shape))
    mine = [index for device, index in indices.items() if device.process_index == process]
    return [sorted({index[dim].indices(size)[0] for index in mine}) for dim, size in enumerate(WHOLE.shape)]


def local_part(mesh: Mesh, spec: P) -> np.ndarray[Any, Any]:
    """The data of this process's shards along every dim."""
    extents = NamedSharding(mesh, spec).shard_shape(WHOLE.shape)
    starts = held_starts(mesh, spec, jax.process_index())
    spans = [
        np.concatenate([np.arange(start, start + extent) for start in held])
        for held, extent in zip(starts, extents, strict=True)
    ]
    return WHOLE[np.ix_(*spans)]


def host_local() -> None:
    """Every mesh and spec: in global order, as JAX's own where that works, or an error on all hosts alike."""
    placed, refused, same = 0, 0, 0
    for case in zoo(jax.process_count()):
        mesh = case.real()
        for spec in specs_of(case):
            counts = {tuple(map(len, held_starts(mesh, spec, process))) for process in range(jax.process_count())}
            local = local_part(mesh, spec)
            if len(counts) > 1:
                with pytest.raises(PartitionError, match="unequal shares of dim"):
                    host_local_to_global(local, mesh, spec)
                refused += 1
                continue
            array = host_local_to_global(local, mesh, spec)
            assert array.sharding == NamedSharding(mesh, spec)
            check_shards(array, WHOLE)
            placed += 1
            try:
                theirs = multihost_utils.host_local_array_to_global_array(local, mesh, spec)
            except ValueError:
                continue  # not a contiguous subcube
            check_shards(theirs, WHOLE)
            assert theirs.sharding == array.sharding
            same += 1
    assert placed >= 10
    assert same >= 5
    assert refused >= (5 if jax.process_count() == 4 else 0)


def boxes_and_back() -> None:
    """A planned leaf, placed box by box, on every mesh and spec; fetched where this process has whole rows."""
    fetched, refused = 0, 0
    for case in zoo(jax.process_count()):
        mesh = case.real()
        for spec in specs_of(case):
            layout = plan_leaf(grid_of(mesh), spec, WHOLE.shape)
            buffers = [np.ascontiguousarray(WHOLE[tuple(slice(*side) for side in box)]) for box in layout.boxes]
            array = Placer(layout, NamedSharding(mesh, spec), np.int32)(buffers)
            check_shards(array, WHOLE)
            held = np.zeros(WHOLE.shape, bool)
            for shard in array.addressable_shards:
                held[shard.index] = True
            rows = held.any(axis=1)
            if held[rows].all():
                np.testing.assert_array_equal(global_to_host_array(array), WHOLE[rows])
                fetched += 1
            else:
                with pytest.raises(
                    PartitionError, match=re.escape("has rows whose columns are partly on other processes")
                ):
                    global_to_host_array({"x": array})
                refused += 1
    assert fetched >= 10
    assert refused >= 5


def holds_nothing() -> None:
    """A mesh of the first process's devices alone: the others still make the array, and hold none of it."""
    mesh = data_parallel([device for device in jax.devices() if device.process_index == 0])
    grid, sharding = grid_of(mesh), NamedSharding(mesh, P("data"))
    layout = plan_leaf(grid, P("data"), (16, 24))
    buffers = [WHOLE[slice(*box[0])].copy() for box in layout.boxes]
    array = Placer(layout, sharding, np.int32)(buffers)
    check_shards(array, WHOLE)
    mine = jax.process_index() == 0
    assert global_to_host_array(array).shape == ((16, 24) if mine else (0, 24))
    copies = host_to_global_device_array(WHOLE, partition=REPLICATED, mesh=mesh)
    assert copies.shape == WHOLE.shape
    if mine:
        np.testing.assert_array_equal(global_to_host_array(host_to_global_device_array(WHOLE, mesh=mesh)), WHOLE)
        return
    with pytest.raises(MeshError, match=r"leaf \['x'\]: process \d has no device on the mesh"):
        host_to_global_device_array({"x": WHOLE}, mesh=mesh)
    with pytest.raises(PartitionError, match="the only leaf is not fully replicated on this process"):
        global_to_host_array(copies, partition=REPLICATED)


def unequal_devices() -> None:
    """A mesh that leaves out a device: FULL is refused on every host alike, REPLICATED is not."""
    mesh = data_parallel(jax.devices()[1:])
    with pytest.raises(PartitionError, match="the hosts have unequal shares of dim 0"):
        host_to_global_device_array(WHOLE, mesh=mesh)
    check_shards(host_to_global_device_array(WHOLE, partition=REPLICATED, mesh=mesh), WHOLE)


def presets() -> None:
    """`hybrid` keeps its minor axes within processes, from any order of devices."""
    shuffled = list(np.random.default_rng(0).permutation(np.array(jax.devices(), object)))
    mesh = hybrid(devices=shuffled)
    assert dict(mesh.shape) == {"data": jax.process_count(), "fsdp": jax.local_device_count()}
    for process, row in enumerate(mesh.devices):
        assert {device.process_index for device in row} == {process}


def all_cases() -> None:
    """One launch costs seconds, so all of this is done in one."""
    seed_functions()
    host_local()
    boxes_and_back()
    holds_nothing()
    unequal_devices()
    presets()


def late_host(folder: str) -> None:
    """The first process is late; placing and fetching on the others does not notice."""
    meshes = [case.real() for case in zoo(jax.process_count())]
    multihost_utils.sync_global_devices("together")
    with first_process_last(folder):
        for mesh in meshes:
            array = host_to_global_device_array(WHOLE, mesh=mesh)
            copies = host_to_global_device_array(WHOLE, partition=REPLICATED, mesh=mesh)
            local = host_local_to_global(WHOLE, mesh, P(None, mesh.axis_names[:1]))
            jax.block_until_ready((array, copies, local))
            global_to_host_array(array)
            global_to_host_array(copies, partition=REPLICATED)
    multihost_utils.sync_global_devices("done")
