"""`it.move_to`: a run continues on another mesh, and its batches are those of a loader that was always there."""

import gc
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

from loadax import Dataloader, from_arrays
from loadax.core.tree import flatten
from loadax.errors import ArgumentError, MeshError, PartitionError
from loadax.loader.execution.thread_pool import ThreadPool
from loadax.sharding import DataPartitionType, data_parallel, plan_mesh
from tests.limits import HANG
from tests.loader.oracle import arrays
from tests.meshes import ZOO, MeshCase

ROWS, BATCH = 44, 8
TREE = arrays(ROWS)
NAMED = {**TREE, "name": np.array([f"row {row}" for row in range(ROWS)])}
HOST_LEAVES: dict[str, Any] = {"host_leaves": "name"}
VARIANTS: dict[str, tuple[tuple[MeshCase, ...], dict[str, Any]]] = {
    "without workers": (ZOO, {"num_workers": 0, **HOST_LEAVES}),
    "reading ahead": (ZOO, {"num_workers": 2, "prefetch": 3, **HOST_LEAVES}),
    "other shapes later": (ZOO, {"key_seed": 5, "seq_len": {0: 16, 9: 8}, **HOST_LEAVES}),
    # These compile for each mesh.
    "device_map": (ZOO[::3], {"device_map": lambda row: {"x": row["image"].astype(np.float32) / 3}, **HOST_LEAVES}),
    "keep_on_device": (ZOO[3::6], {"keep_on_device": True}),
}


def mesh_of(case: MeshCase, axis_type: AxisType) -> Mesh:
    """The grid of a case, in an order of this process's devices that its owners give."""
    order = np.argsort(case.owners.ravel(), kind="stable").argsort()
    devices = np.array(jax.devices())[order].reshape(case.owners.shape)
    return Mesh(devices, case.axes, axis_types=(axis_type,) * len(case.axes))


def check_same(batch: Any, expected: Any, mesh: Mesh) -> None:
    """Bit-equal, with the same shardings, on the very mesh."""
    (leaves, structure), (others, other_structure) = flatten(batch), flatten(expected)
    assert structure.paths == other_structure.paths
    for leaf, other in zip(leaves, others, strict=True):
        assert leaf.sharding.mesh is mesh
        assert (leaf.sharding, leaf.dtype) == (other.sharding, other.dtype)
        np.testing.assert_array_equal(jax.device_get(leaf), jax.device_get(other))


def check_placed(batch: Any, loader: Dataloader, step: int, devices: int) -> None:
    """The rows of this step, on so many devices."""
    assert batch["label"].sharding.num_devices == devices
    np.testing.assert_array_equal(batch["label"], loader.host_batch(step)["label"])


@pytest.mark.parametrize("variant", VARIANTS)
def test_batches_after_a_move_are_those_of_a_loader_on_that_mesh(variant: str) -> None:
    cases, options = VARIANTS[variant]
    options = {"num_epochs": 4, "remainder": "pad", **options}
    data = from_arrays(NAMED if "host_leaves" in options else {"label": TREE["label"]}).shuffle(seed=2)
    step = 0
    with Dataloader(data, BATCH, **options).iterate() as batches:
        for number, case in enumerate(cases):
            mesh = mesh_of(case, AxisType.Explicit if number % 2 else AxisType.Auto)
            partition = P(case.axes[number % len(case.axes)]) if number % 3 else DataPartitionType.FULL
            batches.move_to(mesh, partition)
            assert batches.mesh is mesh
            assert batches.step == step
            loader = Dataloader(data, BATCH, mesh=mesh, partition=partition, **options)
            for _ in range(1 + number % 2):
                check_same(next(batches), loader[step], mesh)
                if "host_leaves" in options:
                    expected = loader.host(step)
                    assert batches.host["name"].tolist() == expected["name"].tolist()
                    assert batches.host.positions.tolist() == expected.positions.tolist()
                step += 1
        with Dataloader(data, BATCH, **options).iterate(step) as others:
            assert batches.get_state() == others.get_state()
            assert batches.stats().steps == step, "the statistics continue"


def test_mesh_that_does_not_fit_names_what_to_pass_to_move_to() -> None:
    with iter(Dataloader(from_arrays({"label": TREE["label"]}), BATCH)) as batches:
        with pytest.raises(PartitionError, match=r"or with another partition: it\.move_to\(mesh, partition=…\)$"):
            batches.move_to(data_parallel(jax.devices()[:3]))
        batches.move_to(data_parallel(jax.devices()[:3]), P())
        assert next(batches)["label"].sharding.is_fully_replicated


def test_an_epoch_moves_and_keeps_the_partition_and_the_latest_host_leaves() -> None:
    loader = Dataloader(NAMED, BATCH, partition=P("data"), host_leaves="name", num_epochs=2)
    steps = []
    for epoch in loader.epochs():
        for batch in epoch:
            devices = 8 if epoch.step % 2 else 4
            check_placed(batch, loader, epoch.step - 1, 8 if epoch.step == 1 else devices)
            names = epoch.host["name"].tolist()
            steps.append(epoch.step)
            epoch.move_to(data_parallel(jax.devices()[: 12 - devices]))
            assert epoch.host["name"].tolist() == names
            assert batch["label"].sharding.spec == P("data")
    assert steps == list(range(1, len(loader) + 1))


def test_a_mesh_that_the_partition_does_not_fit_leaves_the_iterator_where_it_is() -> None:
    loader = Dataloader(TREE, {0: 8, 3: 12}, partition=P("data"), mesh=data_parallel(jax.devices()[:4]))
    rows = data_parallel(jax.devices()[:8])
    grid = Mesh(np.array(jax.devices()).reshape(4, 2), ("batch", "model"))
    with loader.iterate() as batches:
        next(batches)
        with pytest.raises(
            PartitionError,
            match=r"names the axis 'data', but the mesh has .*: use one of these; or move",
        ):
            batches.move_to(grid)
        with pytest.raises(
            PartitionError,
            match=r"names the axis 'seq', but the mesh has .*: use one of these$",
        ):
            batches.move_to(grid, P("seq"))
        with pytest.raises(PartitionError, match=r"12 rows, but P\('data'\) splits it into 8"):
            batches.move_to(rows)  # fits the next batch, but not those of step 3
        check_placed(next(batches), loader, 1, 4)
        batches.move_to(grid, partition=P("batch"))
        for step, batch in enumerate(batches, 2):
            check_placed(batch, loader, step, 8)
        assert step == len(loader) - 1


def test_what_no_batch_can_be_placed_on_is_refused() -> None:
    loader = Dataloader(TREE, BATCH, partition=NamedSharding(data_parallel(), P("data")))
    half = data_parallel(jax.devices()[:4])
    with loader.iterate() as batches:
        check_placed(next(batches), loader, 0, 8)
        with pytest.raises(ArgumentError, match=r"mesh=None: pass the jax\.sharding\.Mesh to move to"):
            batches.move_to(None)  # type: ignore[arg-type]
        with pytest.raises(MeshError, match="is for planning only"):
            batches.move_to(plan_mesh({"data": 8}, hosts=2), P("data"))  # type: ignore[arg-type]
        with pytest.raises(MeshError, match=r"use one mesh; or move to another mesh"):
            batches.move_to(half)
        check_placed(next(batches), loader, 1, 8)
        batches.move_to(half, NamedSharding(half, P("data")))
        check_placed(next(batches), loader, 2, 4)
    with loader.host_batches() as on_host:
        next(on_host)
        message = (
            r"are not placed, so .* make a new iterator in another mesh: loader\.host_batches\(start=it\.get_state"
        )
        with pytest.raises(MeshError, match=message):
            on_host.move_to(half)
        with jax.set_mesh(half), loader.host_batches(start=on_host.get_state()) as others:
            assert others.step == 1


def test_the_mesh_of_a_move_counts_as_given() -> None:
    loader = Dataloader(TREE, BATCH)
    half = data_parallel(jax.devices()[:4])
    with jax.set_mesh(data_parallel()):
        batches = loader.iterate()
        next(batches)
        batches.move_to(half)
        check_placed(next(batches), loader, 1, 4)
    with loader.iterate() as batches, jax.set_mesh(half):
        with pytest.raises(MeshError, match=re.escape("continue there with it.move_to(mesh), make a new iterator")):
            next(batches)
        batches.move_to(half)
        check_placed(next(batches), loader, 0, 4)


def arrays_on(devices: list[jax.Device]) -> set[int]:
    gc.collect()
    return {id(array) for array in jax.live_arrays() if not set(devices).isdisjoint(array.devices())}


def test_cached_rows_follow_and_a_cache_that_does_not_fit_leaves_the_iterator_where_it_is() -> None:
    columns = {"x": np.arange(64 * 64, dtype=np.float32).reshape(64, 64)}
    everywhere, half = jax.devices(), jax.devices()[:4]
    left = [device for device in everywhere if device not in half]
    before = arrays_on(left)
    mesh = Mesh(np.array(everywhere), ("data",))
    loader = Dataloader(columns, BATCH, mesh=mesh, partition=P(None, "data"), keep_on_device=4000)
    with loader.iterate() as batches:
        batch = next(batches)
        with pytest.raises(ArgumentError, match="of each device, and the limit is"):
            batches.move_to(Mesh(np.array(half), ("data",)))
        batch = next(batches)
        assert batch["x"].sharding.num_devices == 8
        np.testing.assert_array_equal(batch["x"], columns["x"][8:16])
    loader = Dataloader(columns, BATCH, mesh=mesh, partition=P(None, "data"), keep_on_device=True)
    with loader.iterate() as batches:
        batch = next(batches)
        batches.move_to(Mesh(np.array(half), ("data",)))
        batch = next(batches)
        assert batch["x"].sharding.num_devices == 4
        np.testing.assert_array_equal(batch["x"], columns["x"][8:16])
        del batch
        assert arrays_on(left) <= before, "nothing stays on devices that were left"


class Device:
    """A map that fails while a device is said to be lost."""

    lost = False

    def __call__(self, batch: Any) -> Any:
        if self.lost:
            raise RuntimeError("the device is lost")
        return batch


def test_a_run_that_an_error_ended_continues_from_that_step() -> None:
    device = Device()
    loader = Dataloader(from_arrays(TREE).map_batch(device), BATCH, num_workers=0)
    with loader.iterate() as batches:
        next(batches)
        device.lost = True
        for _ in range(2):
            with pytest.raises(RuntimeError, match="the device is lost"):
                next(batches)
        device.lost = False
        batches.move_to(data_parallel(jax.devices()[:2]))
        check_placed(next(batches), loader, 1, 2)


def test_threads_that_share_a_moving_iterator_get_each_batch_once() -> None:
    loader = Dataloader(np.arange(800, dtype=np.int32), BATCH, num_workers=2)
    batches = loader.iterate()

    def consume() -> list[int]:
        return [int(batch[0]) // BATCH for batch in batches]

    with ThreadPoolExecutor(4) as pool:
        consumers = [pool.submit(consume) for _ in range(4)]
        while batches.step < len(loader) and not any(consumer.done() for consumer in consumers):
            batches.move_to(data_parallel(jax.devices()[: 4 if batches.mesh.size == 8 else 8]))
        taken = [step for consumer in consumers for step in consumer.result(HANG)]
    assert sorted(taken) == list(range(len(loader)))


def test_closing_does_not_forget_the_threads_that_another_one_opens_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    close, opened = ThreadPool.close, threading.Event()

    def close_slowly(threads: ThreadPool) -> bool:
        ended = close(threads)
        if not opened.is_set():
            opened.set()
            batches.move_to(data_parallel(jax.devices()[:4]))
        return ended

    monkeypatch.setattr(ThreadPool, "close", close_slowly)
    loader = Dataloader(np.arange(800, dtype=np.int32), BATCH, num_workers=2)
    batches = loader.iterate()
    next(batches)
    batches.close()
    assert opened.is_set()
    assert repr(batches).endswith("open)")
    assert next(batches).tolist() == list(range(BATCH, 2 * BATCH))
    batches.close()
    assert repr(batches).endswith("closed)")
