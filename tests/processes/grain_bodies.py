"""What the real processes of `test_jax_runs.py` do."""

from pathlib import Path

import grain
import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec as P

from loadax import Dataloader, from_arrays
from loadax.interop.grain import as_grain_iterator
from tests.loader.oracle import assert_placed


def checkpointed_by_grain(folder: str) -> None:
    """Grain's handler writes a file for each process, and each goes on from its own at the same step."""
    data = from_arrays({"x": np.arange(64, dtype=np.int32)}).shuffle(seed=1)
    mesh = Mesh(np.array(jax.devices()), ("data",))
    loader = Dataloader(data, 16, mesh=mesh, partition=P("data"), num_epochs=2)
    handler = grain.checkpoint.CheckpointHandler()
    with iter(loader) as inner:
        batches = as_grain_iterator(inner)
        for _ in range(3):
            next(batches)
        handler.save(Path(folder), batches)
    assert Path(folder, f"process_{jax.process_index()}-of-{jax.process_count()}.json").exists()
    with iter(loader) as inner:
        restored = handler.restore(Path(folder), as_grain_iterator(inner))
        steps = 0
        for step, batch in enumerate(restored, 3):
            positions, epoch = np.arange(16) + 16 * (step % 4), step // 4
            assert_placed(batch, data.read(positions, epoch), mesh)
            steps += 1
        assert steps == 5
