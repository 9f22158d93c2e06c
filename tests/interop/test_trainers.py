"""Adapters for trainers that are not installed here, with stand-ins of the few lines that their trainers run.

`python -m tests.interop.trainers` trains with the real ones. MaxText can't be installed from the package index.
"""

import importlib
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from loadax import Dataloader, Dataset, from_arrays
from loadax.errors import UnsupportedError
from loadax.sharding import data_parallel


def data() -> Dataset:
    return from_arrays({"inputs": np.arange(64)}).shuffle(seed=1)


def loader(**options: Any) -> Dataloader:
    return Dataloader(data(), 16, mesh=data_parallel(), **options)


def values(batch: Any) -> list[int]:
    return np.asarray(batch["inputs"]).tolist()


def pointers(array: jax.Array) -> list[int]:
    return [shard.data.unsafe_buffer_pointer() for shard in array.addressable_shards]


@pytest.fixture
def tunix(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The adapter over a stand-in of `tunix.sft.hooks`."""
    hooks = ModuleType("tunix.sft.hooks")
    hooks.DataHooks = type("DataHooks", (), {})  # type: ignore[attr-defined]
    sft = ModuleType("tunix.sft")
    sft.hooks = hooks  # type: ignore[attr-defined]
    for module in (ModuleType("tunix"), sft, hooks):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    adapter = importlib.import_module("loadax.interop.tunix")
    del sys.modules["loadax.interop.tunix"]
    return adapter


def stand_in_for_tunix_train(hooks: Any, iter_steps: int, max_steps: int) -> list[list[int]]:
    """Asks for batches as Tunix' `PeftTrainer.train` does: one more than it uses."""
    used = []
    while (batch := hooks.load_next_train_batch(SimpleNamespace(iter_steps=iter_steps))) is not None:
        if iter_steps >= max_steps:
            break
        used.append(values(batch))
        iter_steps += 1
    return used


def test_tunix_goes_on_at_the_trainers_step(tunix: Any) -> None:
    expected = [loader(num_epochs=2).rows(step).tolist() for step in range(8)]
    hooks = tunix.DataHooks(loader(num_epochs=2))
    assert stand_in_for_tunix_train(hooks, 0, 3) == expected[:3]
    assert stand_in_for_tunix_train(hooks, 3, 5) == expected[3:5], "the batch that was not used is not lost"
    assert stand_in_for_tunix_train(tunix.DataHooks(loader(num_epochs=2)), 5, 99) == expected[5:], "until the end"


def test_tunix_evaluates_all_batches_each_time(tunix: Any) -> None:
    hooks = tunix.DataHooks(loader(), loader())
    for _ in range(2):
        used = []
        while (batch := hooks.load_next_eval_batch(None)) is not None:
            used += values(batch)
        assert sorted(used) == list(range(64))
    assert tunix.DataHooks(loader()).load_next_eval_batch(None) is None


@pytest.mark.parametrize(
    ("name", "packages"),
    [("tunix", "google-tunix"), ("kauldron", "kauldron"), ("levanter", "levanter haliax gitpython chex")],
)
def test_a_trainer_that_is_not_installed(name: str, packages: str) -> None:
    with pytest.raises(UnsupportedError, match=rf"loadax.interop.{name} needs .* pip install {packages}$"):
        importlib.import_module(f"loadax.interop.{name}")


class StandInForMaxTextDataLoader:
    """`load_next_batch` of MaxText's `DataLoader` (src/maxtext/common/data_loader.py)."""

    def __init__(self, mesh: Any, data_iterator: Any):
        self.data_iterator, self.shardings = data_iterator, NamedSharding(mesh, P("data"))

    def load_next_batch(self) -> Any:
        return jax.device_put(next(self.data_iterator), self.shardings)


class StandInForMultiHostDataLoadIterator:
    """`__next__` of MaxText's (src/maxtext/input_pipeline/multihost_dataloading.py): places batches of a host."""

    def __init__(self, dataloader: Any, mesh: Any):
        self.mesh, self.local_iterator = mesh, iter(dataloader)

    def __next__(self) -> Any:
        return jax.tree.map(self._place, next(self.local_iterator))

    def _place(self, array: Any) -> jax.Array:
        parts = jax.device_put(np.split(array, len(self.mesh.local_devices)), list(self.mesh.local_devices))
        shape = (jax.process_count() * array.shape[0], *array.shape[1:])
        sharding = NamedSharding(self.mesh, P(self.mesh.axis_names))
        return jax.make_array_from_single_device_arrays(shape, sharding, parts)


def test_maxtext_takes_the_iterator_and_does_not_copy_its_batches() -> None:
    batches = loader().iterate()
    trainer = StandInForMaxTextDataLoader(data_parallel(), batches)
    with batches:
        first = loader()[0]["inputs"]
        assert values(trainer.load_next_batch()) == np.asarray(first).tolist()
        placed = next(batches)["inputs"]
        again = jax.device_put(placed, trainer.shardings)
        assert pointers(again) == pointers(placed)
        saved = batches.get_state()
    with loader().iterate(saved) as resumed:
        assert values(StandInForMaxTextDataLoader(data_parallel(), resumed).load_next_batch()) == (
            loader().rows(2).tolist()
        )


def test_maxtext_places_host_batches() -> None:
    mesh = jax.make_mesh((4, 2), ("data", "fsdp"), axis_types=(AxisType.Auto,) * 2)
    whole = loader(shard_index=0, shard_count=1)
    placing = StandInForMultiHostDataLoadIterator((whole.host_batch(step) for step in range(len(whole))), mesh)
    for step in range(len(whole)):
        assert values(next(placing)) == whole.rows(step).tolist()
    with pytest.raises(StopIteration):
        next(placing)
