"""Microbatches: leaves of shape (k, rows / k, …), on the devices that hold their rows anyway.

And random keys for each row.
"""

from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec as P

from loadax import Dataloader, from_arrays
from loadax.errors import ArgumentError, PartitionError
from loadax.seeds import derive
from tests.loader.oracle import arrays, mesh_of

DATA = from_arrays(arrays(200)).shuffle(seed=2)
MESHES: dict[str, tuple[dict[str, int], Any]] = {
    "rows": ({"data": 8}, P("data")),
    "rows and columns": (
        {"data": 2, "space": 4},
        {"image": P("data", None, "space"), "label": P("data"), "tokens": P("data", "space")},
    ),
    "copies": ({"data": 2, "copy": 4}, P("data")),
    "one leaf whole": ({"data": 8}, {"image": P("data"), "label": P(), "tokens": P(None, "data")}),
}


@pytest.mark.parametrize(("axes", "partition"), MESHES.values(), ids=MESHES.keys())
@pytest.mark.parametrize("micro", [2, 4])
def test_row_r_is_entry_r_modulo_k(axes: dict[str, int], partition: Any, micro: int) -> None:
    mesh = mesh_of(axes, seed=1)
    whole = Dataloader(DATA, batch_size=64, mesh=mesh, partition=partition)
    loader = Dataloader(DATA, batch_size=64, mesh=mesh, partition=partition, microbatches=micro)
    for step, batch in enumerate(loader):
        for name, leaf in batch.items():
            plain = np.asarray(whole[step][name])
            assert leaf.shape == (micro, 64 // micro, *plain.shape[1:])
            entries = np.asarray(leaf)
            for row in range(64):
                np.testing.assert_array_equal(entries[row % micro, row // micro], plain[row])
            # The spec is that of a microbatch, and no row has changed its device.
            before, after = whole.spec[name].sharding.spec, leaf.sharding.spec
            assert tuple(after) == (None, *before)
            for shard, other in zip(leaf.addressable_shards, whole[step][name].addressable_shards, strict=True):
                assert shard.device == other.device
                rows = np.asarray(shard.data).swapaxes(0, 1).reshape(-1, *shard.data.shape[2:])
                np.testing.assert_array_equal(rows, np.asarray(other.data))
        np.testing.assert_array_equal(np.asarray(batch["label"]), arrays(200)["label"][loader.rows(step)])
    assert loader.spec["label"].shape == (micro, 64 // micro)
    assert loader.spec["label"] == jax.ShapeDtypeStruct(
        batch["label"].shape, batch["label"].dtype, sharding=batch["label"].sharding
    )


def test_a_scan_goes_through_them_without_moving_rows() -> None:
    loader = Dataloader(DATA, batch_size=64, mesh=mesh_of({"data": 8}), microbatches=4)

    @jax.jit
    def total(batch: Any) -> Any:
        return jax.lax.scan(lambda before, micro: (before + micro["tokens"].sum(), None), 0, batch)[0]

    for step, batch in enumerate(loader):
        assert int(total(batch)) == int(arrays(200)["tokens"][loader.rows(step)].astype(np.int64).sum())


def test_with_padding_and_other_batch_sizes() -> None:
    loader = Dataloader(DATA, batch_size={0: 64, 2: 32}, mesh=mesh_of({"data": 8}), microbatches=2, remainder="pad")
    batches = list(loader)
    assert [batch["mask"].shape for batch in batches] == [(2, 32)] * 2 + [(2, 16)] * 3
    assert sum(int(batch["mask"].sum()) for batch in batches) == 200
    for step, batch in enumerate(batches):
        rows = loader.rows(step)
        np.testing.assert_array_equal(np.asarray(batch["mask"]), rows >= 0)
        assert (np.asarray(batch["image"])[rows < 0] == 0).all()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            {"batch_size": 64, "microbatches": 3},
            ArgumentError,
            "batch_size=64 can't be split into microbatches=3 equal parts; use a multiple of 3",
        ),
        (
            {"batch_size": 16, "microbatches": 4},
            PartitionError,
            (
                r"leaf \['image'\]: P.* gives a device 2 of the 16 rows, not a multiple of microbatches=4; "
                r"use a batch_size that is a multiple of 32"
            ),
        ),
    ],
)
def test_what_is_refused(arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Dataloader(DATA, mesh=mesh_of({"data": 8}), **arguments)


def test_the_size_that_would_do_is_that_of_the_whole_batch() -> None:
    shard: dict[str, Any] = {"shard_index": 1, "shard_count": 2, "mesh": mesh_of({"data": 8}), "microbatches": 4}
    with pytest.raises(
        PartitionError, match=r"a device 2 of the 16 rows, .*; use a batch_size that is a multiple of 64"
    ):
        Dataloader(DATA, batch_size=32, **shard)
    assert Dataloader(DATA, batch_size=64, **shard)[0]["label"].shape == (4, 8)


def key_by_hand(seed: int, epoch: int, row: int) -> list[int]:
    key = int(derive(seed, "key", epoch, row))
    return [key >> 32, key & 0xFFFFFFFF]


@pytest.mark.parametrize("micro", [1, 2])
def test_every_row_has_a_key_of_its_own(micro: int) -> None:
    mesh = mesh_of({"data": 8})
    loader = Dataloader(DATA, batch_size=16, num_epochs=2, mesh=mesh, key_seed=7, microbatches=micro)
    seen = set()
    for step, batch in enumerate(loader):
        data = np.asarray(batch["key"])
        assert (batch["key"].dtype, data.shape[-1]) == (np.uint32, 2)
        epoch = step // loader.steps_per_epoch
        rows = loader.rows(step)
        for row, key in zip(rows.ravel().tolist(), data.reshape(-1, 2).tolist(), strict=True):
            assert key == key_by_hand(7, epoch, row)
            seen.add(tuple(key))
    assert len(seen) == 2 * 192


def test_keys_make_random_numbers_on_the_device() -> None:
    loader = Dataloader(DATA, batch_size=16, mesh=mesh_of({"data": 8}), key_seed=0)

    @jax.jit
    def noise(batch: Any) -> Any:
        return jax.vmap(lambda key: jax.random.normal(key, (3,)))(jax.random.wrap_key_data(batch["key"]))

    one, again = noise(loader[0]), noise(loader[0])
    np.testing.assert_array_equal(np.asarray(one), np.asarray(again))
    assert len(set(np.asarray(one).ravel().tolist())) == 48
    assert isinstance(one.sharding, NamedSharding)


def test_keys_are_the_same_on_any_share_and_for_padding_zero() -> None:
    whole = Dataloader(DATA, batch_size=64, key_seed=3, remainder="pad", partition=P("data"), mesh=mesh_of({"data": 8}))
    last = len(whole) - 1
    keys, rows = np.asarray(whole[last]["key"]), whole.rows(last)
    assert (keys[rows < 0] == 0).all()
    assert (keys[rows >= 0] != 0).any()
    np.testing.assert_array_equal(whole.host_batch(last)["key"], keys)
    halves = [
        Dataloader(DATA, batch_size=64, key_seed=3, remainder="pad", shard_index=i, shard_count=2) for i in range(2)
    ]
    np.testing.assert_array_equal(np.concatenate([half.host_batch(last)["key"] for half in halves]), keys)
    # A mesh may cut the two halves of a key apart, if somebody wants that.
    cut = {"image": P(), "label": P(), "tokens": P(), "mask": P(), "key": P(None, "data")}
    mesh = mesh_of({"data": 2, "x": 4})
    np.testing.assert_array_equal(
        np.asarray(Dataloader(DATA, batch_size=64, key_seed=3, remainder="pad", mesh=mesh, partition=cut)[last]["key"]),
        keys,
    )


def test_keys_need_a_place() -> None:
    with pytest.raises(
        ArgumentError,
        match=r"a leaf 'key' is to be added to every batch, but an example already has the key 'key'; make",
    ):
        Dataloader(from_arrays({"key": np.arange(9)}), batch_size=8, key_seed=0)
    with pytest.raises(
        ArgumentError, match=r"an example is one bare array; make examples dicts .*, or leave out key_seed="
    ):
        Dataloader(np.arange(9), batch_size=8, key_seed=0)
    with pytest.raises(ArgumentError, match=r"key_seed='a': pass an int"):
        Dataloader(DATA, batch_size=8, key_seed="a")  # type: ignore[arg-type]
