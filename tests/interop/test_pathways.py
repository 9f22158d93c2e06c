"""Loaders whose rows the hosts of the devices read, on CPU devices, which are their own hosts."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from loadax import Dataloader, from_source, from_stream, mix
from loadax.errors import ArgumentError, StateError
from loadax.interop import pathways


def documents(count: int) -> list[dict[str, Any]]:
    lengths = np.random.default_rng(count).integers(1, 20, count)
    return [{"tokens": np.full(length, row, np.int32)} for row, length in enumerate(lengths.tolist())]


def loader(devices: int, **options: Any) -> Dataloader:
    """A mix of filtered documents, packed."""
    long = from_source(documents(100)).filter(lambda row: len(row["tokens"]) > 2).shuffle(seed=1)
    data = mix([long, from_source(documents(30)).shuffle(seed=2)], [3, 1]).pack(32)
    given: dict[str, Any] = {"mesh": jax.make_mesh((devices,), ("data",), devices=jax.devices()[:devices])}
    return Dataloader(data, 8, **{**given, "num_epochs": 2, "remainder": "pad", **options})


def equal(batches: Any, wanted: Any) -> None:
    for batch, expected in zip(batches, wanted, strict=True):
        jax.tree.map(np.testing.assert_array_equal, batch, expected)
        assert [leaf.sharding for leaf in jax.tree.leaves(batch)] == [
            leaf.sharding for leaf in jax.tree.leaves(expected)
        ]


def test_batches_are_those_of_the_loader() -> None:
    assert len(loader(8)) > 6
    equal(pathways.batches(loader(8)), loader(8))


def test_a_sharding_is_cut_from_the_devices_of_the_hosts() -> None:
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    given = {"partition": NamedSharding(mesh, PartitionSpec("data")), "mesh": None}
    equal(pathways.batches(loader(8, **given)), loader(8, **given))


def test_a_run_is_continued_by_fewer_devices_and_by_a_loader() -> None:
    batches, local = pathways.batches(loader(8)), loader(8).iterate()
    for _ in range(3):
        next(batches), next(local)
    state = batches.get_state()
    assert state == local.get_state()
    assert batches.step == 3
    equal(pathways.batches(loader(4), state), loader(4).iterate(state))
    equal(loader(4).iterate(state), pathways.batches(loader(4), 3))
    with pytest.raises(StateError):
        pathways.batches(loader(8, num_epochs=1), state | {"order": 1})


def test_epochs_end() -> None:
    batches = pathways.batches(loader(8), len(loader(8)) - 1)
    next(batches)
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(batches)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"device_map": lambda batch: batch},
            "loader has device_map=, and each host makes jax.Arrays of one shape by its own cores; leave it out",
        ),
        ({"remote": lambda: ThreadPoolExecutor(1)}, "loader has remote="),
        ({"seq_len": {0: 16, 2: 32}}, "loader has 2 shapes of batches"),
    ],
)
def test_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        pathways.batches(loader(8, **options))
    equal(pathways.batches(loader(8)), loader(8))  # the loader without it, as the message says


def test_what_is_no_loader_of_rows_is_refused() -> None:
    stream = from_stream(lambda lane, lanes: iter([{"x": np.float32(lane)}]), lanes=8)
    with pytest.raises(ArgumentError, match="loader has the lanes of a stream"):
        pathways.batches(Dataloader(stream, 8, mesh=jax.make_mesh((8,), ("data",))))
    data: Any = from_source(documents(30))
    with pytest.raises(ArgumentError, match=r"loader is .*Dataset; pass a Dataloader"):
        pathways.batches(data)
