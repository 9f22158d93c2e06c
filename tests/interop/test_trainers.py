"""Adapters for trainers that are not installed here, with stand-ins of the few lines that their trainers run.

`python -m tests.interop.trainers` trains with the real ones. MaxText can't be installed from the package index.
"""

import contextlib
import dataclasses
import importlib
import io
import json
import sys
import warnings
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import grain
import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import loadax
from loadax import Dataloader, Dataset, from_arrays
from loadax.errors import ArgumentError, UnsupportedError
from loadax.sharding import data_parallel


def data() -> Dataset:
    return from_arrays({"inputs": np.arange(64)}).shuffle(seed=1)


def loader(**options: Any) -> Dataloader:
    return Dataloader(data(), 16, mesh=data_parallel(), **options)


def values(batch: Any) -> list[int]:
    return np.asarray(batch["inputs"]).tolist()


def pointers(array: jax.Array) -> list[int]:
    return [shard.data.unsafe_buffer_pointer() for shard in array.addressable_shards]


def adapter_over(modules: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The adapter over stand-ins of modules of a trainer, which are given by their members."""
    for module, members in modules.items():
        stand_in = ModuleType(module)
        vars(stand_in).update(members)
        monkeypatch.setitem(sys.modules, module, stand_in)
    adapter = importlib.import_module(f"loadax.interop.{name}")
    del sys.modules[f"loadax.interop.{name}"]
    return adapter


def tunix_over(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The adapter of Tunix over a stand-in."""
    hooks = SimpleNamespace(DataHooks=type("DataHooks", (), {}))
    return adapter_over({"tunix": {}, "tunix.sft": {"hooks": hooks}}, "tunix", monkeypatch)


@pytest.fixture
def tunix(monkeypatch: pytest.MonkeyPatch) -> Any:
    return tunix_over(monkeypatch)


def stand_in_for_tunix_trainer(iter_steps: int = 0, axis: tuple[str, ...] = ("data",)) -> Any:
    """The members of Tunix' `PeftTrainer` that hooks see."""
    return SimpleNamespace(iter_steps=iter_steps, config=SimpleNamespace(data_sharding_axis=axis))


def stand_in_for_tunix_train(hooks: Any, iter_steps: int, max_steps: int) -> list[list[int]]:
    """Asks for batches as Tunix' `PeftTrainer.train` does: one more than it uses."""
    used = []
    while (batch := hooks.load_next_train_batch(stand_in_for_tunix_trainer(iter_steps))) is not None:
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
        while (batch := hooks.load_next_eval_batch(stand_in_for_tunix_trainer())) is not None:
            used += values(batch)
        assert sorted(used) == list(range(64))
    assert tunix.DataHooks(loader()).load_next_eval_batch(stand_in_for_tunix_trainer()) is None


def warnings_of_tunix_hooks(adapter: Any, training: Dataloader, axis: tuple[str, ...]) -> list[str]:
    """What hooks say while a trainer trains, is started again at another step, and evaluates twice."""
    hooks = adapter.DataHooks(training, training)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in (0, 1, 3):
            hooks.load_next_train_batch(stand_in_for_tunix_trainer(step, axis))
        while hooks.load_next_eval_batch(stand_in_for_tunix_trainer(4, axis)) is not None:
            pass
        hooks.load_next_eval_batch(stand_in_for_tunix_trainer(4, axis))
    return [str(each.message) for each in caught]


@pytest.mark.filterwarnings("ignore:.with mesh.. context manager:DeprecationWarning")  # the form that Tunix needs
def test_tunix_hooks_say_once_a_loader_that_batches_are_placed_again(tunix: Any) -> None:
    mesh = jax.make_mesh((4, 2), ("fsdp", "tp"), axis_types=(AxisType.Auto,) * 2)
    rows = from_arrays({"tokens": np.zeros((64, 4), np.int32), "weights": np.zeros(64, np.float32)})

    def loader_of(partition: Any, mesh: Any = mesh) -> Dataloader:
        return Dataloader(rows, 16, mesh=mesh, partition=partition)

    with mesh:
        for partition, axis, remedy in (
            (P("fsdp", None), ("fsdp",), P("fsdp")),  # equivalent
            (P("tp"), ("fsdp",), P("fsdp")),
            ({"tokens": P("fsdp"), "weights": P()}, ("fsdp",), P("fsdp")),  # one leaf of several
            (P("fsdp"), ("fsdp", "tp"), P("fsdp", "tp")),
        ):
            said = warnings_of_tunix_hooks(tunix, loader_of(partition), axis)
            assert len(said) == 2, said
            for name, text in zip(("loader", "eval_loader"), said, strict=True):
                assert text.startswith(f"Tunix places every batch of {name} a second time: the loader's partition is ")
                assert f"data_sharding_axis is {remedy}, which" in text
                assert text.endswith(f"make the loader by Dataloader(…, partition={remedy})")
            assert not warnings_of_tunix_hooks(tunix, loader_of(remedy), axis), "the advice works"
        text, _ = warnings_of_tunix_hooks(tunix, loader_of(P("fsdp", None)), ("fsdp",))
        assert f"the loader's partition is {P('fsdp', None)}, and" in text
        elsewhere = jax.make_mesh((8,), ("fsdp",), axis_types=(AxisType.Auto,))
        text, _ = warnings_of_tunix_hooks(tunix, loader_of(P("fsdp"), elsewhere), ("fsdp",))
        assert f"partition is {P('fsdp')} on another mesh, and" in text
        assert text.endswith(f"Dataloader(…, mesh=mesh, partition={P('fsdp')})")
    assert not warnings_of_tunix_hooks(tunix, loader_of(P("tp")), ("fsdp",)), "Tunix places nothing without a mesh"
    with jax.set_mesh(mesh):
        assert not warnings_of_tunix_hooks(tunix, loader_of(P("tp")), ("fsdp",)), "nor under jax.set_mesh"


@pytest.mark.filterwarnings("ignore:.with mesh.. context manager:DeprecationWarning")
def test_tunix_places_no_arrays_that_span_processes(tunix: Any) -> None:
    mesh = data_parallel()
    leaf = jax.ShapeDtypeStruct((16,), np.int32, sharding=NamedSharding(mesh, P()))
    spanning = SimpleNamespace(is_fully_addressable=False, mesh=mesh, spec=P())
    for shape, count in ((leaf, 1), (SimpleNamespace(ndim=1, sharding=spanning), 0)):
        hooks = tunix.DataHooks(SimpleNamespace(spec=shape, iterate=lambda start: iter(range(start))))
        with mesh, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            hooks.load_next_train_batch(stand_in_for_tunix_trainer())
        assert len(caught) == count


def kauldron_over(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The adapter of Kauldron over a stand-in."""
    pipeline = dataclasses.make_dataclass("Pipeline", [("batch_size", Any, None)], frozen=True, kw_only=True)
    iterator = dataclasses.make_dataclass("Iterator", [("source", Any)], frozen=True, kw_only=True)
    classes = {"pipelines": SimpleNamespace(Pipeline=pipeline), "iterators": SimpleNamespace(Iterator=iterator)}
    etils = {"enp": SimpleNamespace(ArraySpec=jax.ShapeDtypeStruct)}
    return adapter_over({"kauldron": {}, "kauldron.data": classes, "etils": etils}, "kauldron", monkeypatch)


@pytest.fixture
def kauldron(monkeypatch: pytest.MonkeyPatch) -> Any:
    return kauldron_over(monkeypatch)


@pytest.mark.parametrize("processes", [1, 2])
def test_kauldron_gets_numpy_arrays_in_several_processes(
    kauldron: Any, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jax, "process_count", lambda: processes)
    pipeline = kauldron.Pipeline(dataset=data(), batch_size=16)
    batches = iter(pipeline)
    with batches.batches:
        first, second = next(batches), next(batches)
    for step, batch in enumerate((first, second)):
        assert isinstance(batch["inputs"], jax.Array if processes == 1 else np.ndarray)
        assert values(batch) == loader().rows(step)[: 16 // processes].tolist(), "the rows of process 0"
    assert pipeline.element_spec["inputs"].shape == (16 // processes,)


@pytest.mark.parametrize("name", ["mesh", "shard_count", "device_map", "host_leaves"])
def test_kauldron_places_by_itself(kauldron: Any, name: str) -> None:
    message = rf"^options has {name}, but Kauldron places batches itself: leave this out; dataset.map\(fn\) changes"
    with pytest.raises(ArgumentError, match=message):
        iter(kauldron.Pipeline(dataset=data(), batch_size=16, options={name: None, "num_workers": 2}))
    with iter(kauldron.Pipeline(dataset=data(), batch_size=16, options={"num_workers": 2})).batches as batches:
        next(batches)
    with pytest.raises(ArgumentError, match=r"^batch_size=None: pass the rows of the global batch"):
        iter(kauldron.Pipeline(dataset=data()))


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
    """MaxText's (src/maxtext/input_pipeline/multihost_dataloading.py): places batches of a host, and restarts."""

    def __init__(self, dataloader: Any, mesh: Any):
        self.mesh, self.dataloader = mesh, dataloader
        self.reset()

    def reset(self) -> None:
        self.local_iterator = iter(self.dataloader)

    def __iter__(self) -> Any:
        self.reset()
        return self

    def __next__(self) -> Any:
        return jax.tree.map(self._place, next(self.local_iterator))

    def _place(self, array: Any) -> jax.Array:
        parts = jax.device_put(np.split(array, len(self.mesh.local_devices)), list(self.mesh.local_devices))
        shape = (jax.process_count() * array.shape[0], *array.shape[1:])
        sharding = NamedSharding(self.mesh, P(self.mesh.axis_names))
        return jax.make_array_from_single_device_arrays(shape, sharding, parts)


class StandInForGrainCheckpointHandler:
    """MaxText's (src/maxtext/common/grain_utility.py): states of Grain's iterators are JSON, and of others bytes."""

    def save(self, path: Path, item: Any) -> None:
        state = item.get_state()
        path.write_text(json.dumps(state) if isinstance(item, grain.DatasetIterator) else state.decode())

    def restore(self, path: Path, item: Any) -> None:
        state = path.read_text()
        item.set_state(json.loads(state) if isinstance(item, grain.DatasetIterator) else state.encode())


@pytest.fixture
def host_batches() -> Any:
    """The class that the guide shows."""
    guide = Path(__file__).parents[2] / "docs/guides/trainers.md"
    (block,) = (block for block in guide.read_text("utf-8").split("```") if "class HostBatches" in block)
    names: dict[str, Any] = {"loadax": loadax, "data": data()}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(block.removeprefix("python"), names)
    return names["HostBatches"]


def test_maxtext_evaluates_on_all_batches_each_time(host_batches: Any) -> None:
    small = Dataloader(data(), 16, mesh=data_parallel())
    placing = StandInForMultiHostDataLoadIterator(host_batches(small), data_parallel())
    for _ in range(3):
        assert [values(batch) for batch in placing] == [small.rows(step).tolist() for step in range(len(small))]


def test_maxtext_saves_and_restores_the_position(host_batches: Any, tmp_path: Path) -> None:
    expected = [loader(num_epochs=2).rows(step).tolist() for step in range(8)]
    hosts = (host_batches(loader(num_epochs=2)) for _ in range(2))
    saved, restored = (StandInForMultiHostDataLoadIterator(each, data_parallel()) for each in hosts)
    assert [values(next(saved)) for _ in range(5)] == expected[:5]
    handler, path = StandInForGrainCheckpointHandler(), tmp_path / "process_0-of-1.json"
    handler.save(path, saved.local_iterator)
    handler.restore(path, restored.local_iterator)
    assert [values(next(restored)) for _ in range(3)] == expected[5:]


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
    assert list(map(values, placing)) == [whole.rows(step).tolist() for step in range(len(whole))]
