"""What the real processes of `test_jax_runs.py` do."""

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from loadax import Dataloader, from_documents, from_source
from tests.loader.oracle import assert_placed


def packed_batches(folder: str) -> None:
    """Every host has the same plan, finds or makes the same index, and holds its own part of the sequence."""
    lengths = np.random.default_rng(0).integers(0, 30, 300)
    tokens = np.arange(1, lengths.sum() + 1, dtype=np.int32)
    offsets = np.cumsum([0, *lengths])
    mesh = Mesh(np.array(jax.devices()).reshape(jax.process_count(), -1).T, ("data", "seq"))
    for number, method in enumerate(("split", "best_fit")):
        for source in (from_documents(tokens, offsets), from_source(np.split(tokens, offsets[1:-1]))):
            options: dict[str, Any] = {"method": method, "index": f"{folder}/{number}"}
            packed = source.pack(32, **options).shuffle(seed=1)
            loader = Dataloader(packed, 8, mesh=mesh, partition=P("data", "seq"), num_epochs=2)
            seen = []
            for step, batch in enumerate(loader):
                expected = packed.read(
                    np.arange(8) + 8 * (step % loader.steps_per_epoch), epoch=step // loader.steps_per_epoch
                )
                assert_placed(batch, expected, mesh)
                seen += expected["tokens"][expected["segment_ids"] > 0].tolist()
            assert max(np.unique(seen, return_counts=True)[1]) == 2  # once an epoch
