"""What the real processes of `test_jax_runs.py` do."""

from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as v0
from jax.sharding import NamedSharding, PartitionSpec as P
from orbax.checkpoint import v1

from loadax import Dataloader, from_arrays
from loadax.sharding import data_parallel

WEIGHTS = np.arange(16, dtype=np.float32)
STEP = 5


def loader() -> Dataloader:
    data = from_arrays({"x": np.arange(96)}).shuffle(seed=2)
    return Dataloader(data, 16, mesh=data_parallel(), num_epochs=None)


def weights() -> dict[str, jax.Array]:
    sharding = NamedSharding(data_parallel(), P("data"))
    return {"w": jax.make_array_from_callback(WEIGHTS.shape, sharding, lambda index: WEIGHTS[index])}


def save(folder: str) -> None:
    """Saves with both interfaces, the second one in the background while training goes on."""
    with loader().iterate(STEP) as batches:
        with v0.CheckpointManager(Path(folder, "v0")) as manager:
            args = {"model": v0.args.StandardSave(weights()), "data": v0.args.JsonSave(batches.get_state())}
            manager.save(STEP, args=v0.args.Composite(**args))
        with v1.training.Checkpointer(Path(folder, "v1")) as checkpointer:
            saving = checkpointer.save_checkpointables_async(STEP, {"model": weights(), "data": batches})
            next(batches)
            saving.result()
    written = [path.name for path in Path(folder, "v1", str(STEP), "data").glob("*.json")]
    assert written == ["loadax.json"], written


def restore(folder: str) -> None:
    """Any number of processes goes on with the rows of the step that was saved."""
    expected = set(loader().local_rows(STEP).tolist())
    with v0.CheckpointManager(Path(folder, "v0")) as manager:
        args = {"model": v0.args.StandardRestore(weights()), "data": v0.args.JsonRestore()}
        state = manager.restore(STEP, args=v0.args.Composite(**args))["data"]
    with loader().iterate(state) as batches:
        assert local(next(batches)["x"]) == expected
    with v1.training.Checkpointer(Path(folder, "v1")) as checkpointer, loader().iterate() as batches:
        restored = checkpointer.load_checkpointables(STEP, {"model": weights(), "data": batches})
        assert (batches.step, local(next(batches)["x"])) == (STEP, expected)
        assert local(restored["model"]["w"]) == local(weights()["w"])


def local(array: jax.Array) -> set[float]:
    return {value for shard in array.addressable_shards for value in np.asarray(shard.data).tolist()}
