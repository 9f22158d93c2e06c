"""What the real processes of `test_jax_runs.py` do.

Whatever is computed on devices is computed by each process alone.
"""

from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, PartitionSpec as P

from loadax import Dataloader, DeviceMap, from_arrays, from_source
from loadax.core.tree import flatten
from loadax.sharding import data_parallel
from tests.loader.oracle import NONE, Oracle, ReadSource, arrays, assert_placed
from tests.meshes import zoo
from tests.processes.lateness import first_process_last

ROWS, BATCH = 90, 16
TREE = arrays(ROWS)


def shifted(example: Any) -> Any:
    """Elementwise, so that it may be given some columns; exact, so that NumPy must agree to the bit."""
    return {**example, "image": example["image"].astype(np.float32) / 2 - 1, "label": example["label"] + 3}


def every_mesh() -> None:
    data = from_arrays(TREE).shuffle(seed=5)
    oracle = Oracle(TREE, data.order, NONE, BATCH, "pad")
    expected = [oracle.batch(step) for step in range(6)]
    for number, case in enumerate(zoo(jax.process_count())):
        first, *rest = case.axes
        mesh = case.real(AxisType.Explicit if number % 2 else AxisType.Auto)
        # Each mesh with one partition and in one of three ways, since compiling takes nearly all of the time.
        partition = P(first) if number % 2 else P(*rest, first)
        keep, mapped = [(False, True), (True, True), (True, False)][number % 3]
        by_element = DeviceMap(shifted, elementwise=True) if mapped else None
        loader = Dataloader(
            data,
            BATCH,
            device_map=by_element,
            keep_on_device=keep,
            mesh=mesh,
            partition=partition,
            remainder="pad",
            num_workers=number % 3,
        )
        for step, batch in enumerate(loader):
            assert_placed(batch, shifted(expected[step]) if mapped else expected[step], mesh)
            for leaf, spec in zip(flatten(batch)[0], flatten(loader.spec)[0], strict=True):
                assert (leaf.shape, leaf.dtype, leaf.sharding) == (spec.shape, spec.dtype, spec.sharding)
        assert step + 1 == len(expected)


def holds_nothing() -> None:
    """A mesh of the first process's devices: the others have nothing to compute and nothing to keep."""
    mesh = data_parallel([device for device in jax.devices() if device.process_index == 0])
    source = ReadSource(TREE)
    loader = Dataloader(from_source(source), BATCH, mesh=mesh, keep_on_device=True, device_map=shifted)
    source.counts[:] = 0
    oracle = Oracle(TREE, loader.dataset.order, NONE, BATCH)
    for step, batch in enumerate(loader):
        assert_placed(batch, shifted(oracle.batch(step)), mesh)
    assert step + 1 == 5
    assert source.counts.sum() == (ROWS if jax.process_index() == 0 else 0)


def late_host(folder: str) -> None:
    """The first process does nothing until the others are through.

    They compile, keep, map and place all their batches without it.
    """
    with first_process_last(folder):
        for case in zoo(jax.process_count())[:3]:
            loader = Dataloader(
                TREE, BATCH, mesh=case.real(), partition=P(case.axes[0]), keep_on_device=True, device_map=shifted
            )
            loader.warmup()
            jax.block_until_ready([*loader, loader[3]])


def small_cases(folder: str) -> None:
    """One launch costs seconds, so all of this is done in one."""
    holds_nothing()
    late_host(folder)
