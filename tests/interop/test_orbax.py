"""States in Orbax checkpoints, of both of its interfaces."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as v0
import pytest
from orbax.checkpoint import v1

from loadax import DataIterator, Dataloader, Dataset, from_arrays
from loadax.errors import ArgumentError, StateError


def data(rows: int = 64) -> Dataset:
    return from_arrays({"x": np.arange(rows)}).shuffle(seed=5)


def loader(rows: int = 64) -> Dataloader:
    return Dataloader(data(rows), 8, num_epochs=None).skip(range(2, 4))


@pytest.fixture
def batches() -> Iterator[DataIterator]:
    """At step 11, in the second epoch; two steps before it were left out."""
    with loader().iterate(9) as started:
        next(started)
        next(started)
        yield started


def goes_on(restored: DataIterator, at: int = 11) -> bool:
    """Whether a restored iterator is at the step that was saved and yields the rows of that step."""
    return restored.step == at and next(restored)["x"].tolist() == loader().rows(at).tolist()


def managed(folder: Path, args: Any) -> None:
    with v0.CheckpointManager(folder) as manager:
        manager.save(1, args=args)


def test_v0_json(batches: DataIterator, tmp_path: Path) -> None:
    weights = {"w": jnp.arange(8.0)}
    managed(
        tmp_path,
        v0.args.Composite(model=v0.args.StandardSave(weights), data=v0.args.JsonSave(batches.get_state())),
    )
    with v0.CheckpointManager(tmp_path) as manager:
        restored = manager.restore(
            1, args=v0.args.Composite(model=v0.args.StandardRestore(weights), data=v0.args.JsonRestore())
        )
    with loader().iterate(restored["data"]) as again:
        assert goes_on(again)


@pytest.mark.parametrize("with_target", [True, False])
@pytest.mark.parametrize("convert", [int, jnp.asarray], ids=["ints", "arrays of a train state"])
def test_v0_state_among_the_weights(batches: DataIterator, with_target: bool, convert: Any, tmp_path: Path) -> None:
    """`StandardSave` refuses strings, and JAX ints beyond int32: a state has neither."""
    tree = {"w": jnp.arange(8.0), "data": jax.tree.map(convert, batches.get_state())}
    managed(tmp_path, v0.args.StandardSave(tree))
    with v0.CheckpointManager(tmp_path) as manager:
        restored = manager.restore(1, args=v0.args.StandardRestore(tree if with_target else None))
    with loader().iterate(restored["data"]) as again:
        assert goes_on(again)


def test_v1_iterator(batches: DataIterator, tmp_path: Path) -> None:
    assert isinstance(batches, v1.StatefulCheckpointable)
    v1.save_checkpointables(tmp_path / "1", {"model": {"w": jnp.arange(8.0)}, "data": batches})
    with loader().iterate() as again:
        next(again)
        restored = v1.load_checkpointables(tmp_path / "1", {"model": {"w": jnp.zeros(8)}, "data": again})
        assert restored["data"] is again
        assert goes_on(again)
    assert restored["model"]["w"].tolist() == list(range(8))


def test_v1_state(batches: DataIterator, tmp_path: Path) -> None:
    """As plain data, which `epochs(start=)` takes too."""
    v1.save_checkpointables(tmp_path / "1", {"data": batches.get_state()})
    restored = v1.load_checkpointables(tmp_path / "1")["data"]
    assert next(iter(loader().epochs(start=restored))).step == 11


def test_v1_checkpointer_saves_in_the_background(batches: DataIterator, tmp_path: Path) -> None:
    """Batches taken while Orbax still writes are not in the checkpoint."""
    with v1.training.Checkpointer(tmp_path) as checkpointer:
        for _ in range(3):
            saving = checkpointer.save_checkpointables_async(batches.step, {"data": batches})
            next(batches)
            assert saving.result()
        assert [saved.step for saved in checkpointer.checkpoints] == [11, 12, 13]
        for step in (11, 13):
            with loader().iterate() as again:
                checkpointer.load_checkpointables(step, {"data": again})
                assert goes_on(again, step)


class LateFolder:
    """Stands in for Orbax's `PathAwaitingCreation`: a folder that the test creates later."""

    def __init__(self, path: Path):
        self.path, self.allowed = path, asyncio.Event()

    async def await_creation(self) -> Path:
        await self.allowed.wait()
        self.path.mkdir()
        return self.path


def test_the_state_is_that_of_the_call(batches: DataIterator, tmp_path: Path) -> None:
    expected = batches.get_state()

    async def save_late() -> None:
        folder = LateFolder(tmp_path / "late")
        writing = asyncio.ensure_future(await batches.save(folder))
        next(batches)
        folder.allowed.set()
        await writing

    asyncio.run(save_late())
    assert [path.name for path in (tmp_path / "late").iterdir()] == ["loadax.json"]
    assert json.loads((tmp_path / "late" / "loadax.json").read_text()) == expected


def load(into: DataIterator, folder: Path) -> None:
    async def loading() -> None:
        await (await into.load(folder))

    asyncio.run(loading())


def test_a_folder_without_a_state(batches: DataIterator, tmp_path: Path) -> None:
    message = r"loadax.json does not exist: this checkpoint was not saved .* loader.iterate\(start=step\)"
    with pytest.raises(StateError, match=message):
        load(batches, tmp_path)
    (tmp_path / "loadax.json").write_text("{torn")
    with pytest.raises(StateError, match=r"loadax.json is not JSON: this checkpoint .* is damaged"):
        load(batches, tmp_path)
    assert goes_on(batches), "nothing has changed"


def test_a_checkpoint_of_weights_alone(batches: DataIterator, tmp_path: Path) -> None:
    v1.save_checkpointables(tmp_path / "1", {"model": {"w": jnp.arange(8.0)}})
    with pytest.raises(KeyError, match="data"):
        v1.load_checkpointables(tmp_path / "1", {"data": batches})
    assert goes_on(batches)


def test_the_state_of_another_loader(batches: DataIterator, tmp_path: Path) -> None:
    v1.save_checkpointables(tmp_path / "1", {"data": batches})
    with Dataloader(data(80), 8, num_epochs=None).iterate(3) as other:
        message = r"the state's 'order' is .*: the part `80 rows` differs from the saved run"
        with pytest.raises(StateError, match=message):
            v1.load_checkpointables(tmp_path / "1", {"data": other})
        assert other.step == 3


@pytest.mark.parametrize("folder", ["checkpoint", "checkpoint/loadax.json"])
def test_save_and_load_with_a_path_raise_at_the_call_and_say_what_to_call(
    folder: str, batches: DataIterator, tmp_path: Path
) -> None:
    """Without `await`, which whoever calls them so leaves out."""
    path = tmp_path / folder
    calls: list[tuple[Any, Any]] = [(batches.save, str(path)), (batches.load, str(path)), (batches.save, path)]
    messages = []
    for call, given in calls:
        with pytest.raises(ArgumentError, match=r"(save|load)\(.*checkpoint.*\): only Orbax calls this") as caught:
            call(given)
        messages.append(str(caught.value))
    state = Path(tmp_path, "state.json")
    followed = {"json": json, "it": batches}
    saving, loading = re.findall(r"(json\.dump\(.*?\), file\)|it\.set_state\(.*\)\))", messages[0])
    with state.open("w") as file:
        exec(saving, {**followed, "file": file})
    expected = next(batches)
    with state.open() as file:
        exec(loading, {**followed, "file": file})
    assert jax.tree.all(jax.tree.map(lambda left, right: bool((left == right).all()), expected, next(batches)))
