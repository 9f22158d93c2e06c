"""What the real processes of `test_jax_runs.py` do."""

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec as P

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
    grouped_batches(folder, mesh)


def grouped_batches(folder: str, mesh: Mesh) -> None:
    """The processes share the passes of sizes and counts, and each holds its part of the groups and of the examples."""
    rows = from_source([np.full(row % 7, row, np.int32) for row in range(400)])
    groups = rows.group({"n": 16}, sizes_of, most_rows=5, index=f"{folder}/group").shuffle(seed=1).map(padded)
    parts = rows.flat_map(lambda row: [row[:1]] * len(row), counts=len, index=f"{folder}/flat_map")
    for dataset in (groups, parts):
        loader = Dataloader(dataset, 8, mesh=mesh, partition=P("data"))
        for step, batch in enumerate(loader):
            assert_placed(batch, dataset.read(np.arange(8) + 8 * step), mesh)


def sizes_of(row: Any) -> dict[str, int]:
    return {"n": len(row)}


def padded(group: list[Any]) -> Any:
    values = np.concatenate(group)
    return np.pad(values, (0, 16 - len(values)))
