"""What the real processes of `test_jax_runs.py` do."""

from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec as P

from loadax import Dataloader, MaskErrors, from_arrays
from tests.meshes import zoo

ROWS, BATCH = 90, 16
NAMES = np.array([f"page {row}" for row in range(ROWS)])


def loader(**options: Any) -> Dataloader:
    data = from_arrays({"x": np.arange(ROWS), "name": NAMES}).shuffle(seed=4)
    return Dataloader(data, BATCH, host_leaves=("name",), num_epochs=None, **options)


def every_mesh() -> None:
    """Each process has the host leaves of exactly the rows that its devices hold, also without placed ones."""
    for case in zoo(jax.process_count()):
        mesh = case.real()
        own = loader(mesh=mesh, partition=P(case.axes[0]))
        held = {
            position
            for shard in own[0]["x"].addressable_shards
            for position in range(*shard.index[0].indices(BATCH)[:2])
        }
        with own.iterate() as placed, own.host_batches() as on_host:
            for step in range(7):
                next(placed)
                batch = next(on_host)
                for rows in (placed.host, own.host(step), on_host.host):
                    assert set(rows.positions.tolist()) == held
                    np.testing.assert_array_equal(rows["name"], NAMES[own.local_rows(step)])
                np.testing.assert_array_equal(batch["x"], own.local_rows(step))
            assert placed.get_state() == on_host.get_state()


def parts() -> None:
    """Without a mesh that spans the processes: each has its part, and goes on from the state of another number."""
    part = loader(shard_index=jax.process_index(), shard_count=jax.process_count())
    with part.host_batches(3) as batches:
        state = batches.get_state()
        size = BATCH // jax.process_count()
        low = jax.process_index() * size
        np.testing.assert_array_equal(next(batches)["x"], part.rows(3)[low : low + size])
    alone = Dataloader(part.dataset, BATCH, shard_index=0, shard_count=1, host_leaves="name", num_epochs=None)
    np.testing.assert_array_equal(next(alone.host_batches(state))["x"], part.rows(3))


def masked() -> None:
    """Every process masks the same rows, also those that are bad in columns, or a leaf, that only another one holds."""
    x = np.repeat(np.arange(ROWS)[:, None], 8, axis=1)
    x[::7, 7] = 2**40  # does not fit int32
    data = from_arrays({"x": x, "y": np.arange(ROWS)}).shuffle(seed=4)
    good_rows = np.arange(ROWS) % 7 != 0
    for case in zoo(jax.process_count()):
        mesh, (first, *rest) = case.real(), case.axes
        partitions = ({"x": P(None, first), "y": P(), "mask": P()}, {"x": P(first, *rest[:1]), "y": P(), "mask": P()})
        for partition in partitions:
            masking = MaskErrors(max_in_a_row=ROWS, max_share=1)
            loader = Dataloader(data, BATCH, mesh=mesh, partition=partition, remainder="pad", on_error=masking)
            for step, batch in enumerate(loader):
                ids = loader.rows(step)
                good = (ids >= 0) & good_rows[ids]
                filled = np.where(good, ids, 0)
                for leaf, expected in (("mask", good), ("y", filled), ("x", filled[:, None].repeat(8, 1))):
                    for shard in batch[leaf].addressable_shards:
                        np.testing.assert_array_equal(shard.data, expected[shard.index])


def all_cases() -> None:
    """One launch costs seconds, so all of this is done in one."""
    every_mesh()
    parts()
    masked()
