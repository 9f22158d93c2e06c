"""What the real processes of `test_jax_runs.py` do."""

from pathlib import Path

import jax
import numpy as np
from jax.sharding import PartitionSpec as P

from loadax import Certificate, Dataloader, Dataset, from_arrays, mix
from loadax.sharding import data_parallel
from tests.meshes import zoo

BATCH = 16


def data() -> Dataset:
    parts = {"a": np.arange(90), "b": np.arange(1000, 1040)}
    return mix({name: from_arrays({"x": rows}).shuffle(3) for name, rows in parts.items()}, [2, 1], stop="all")


def certify(folder: str) -> None:
    """Each process writes the certificates of its own part on every mesh, and traces and finds what all others do."""
    for number, case in enumerate(zoo(jax.process_count())):
        loader = Dataloader(data(), BATCH, mesh=case.real(), partition=P(case.axes[0]), num_epochs=2).skip(range(3, 5))
        part = loader.certificate()
        part.save(Path(folder, f"{number}-{jax.process_index()}.json"))
        assert part.run == f"{jax.process_count()} processes"
    loader = Dataloader(data(), BATCH, mesh=data_parallel(), num_epochs=2).skip(range(3, 5))
    trace = loader.trace(7)
    assert [record.id for record in trace] == loader.rows(7).tolist()
    assert loader.find(trace[5].row, trace[5].dataset, steps=7)[0] == (7, 5)
    # What was certified is what is handed out.
    local = loader.host_batch(7)["x"]
    for shard in loader[7]["x"].addressable_shards:
        assert set(np.asarray(shard.data).tolist()) <= set(local.tolist())


def compare(folder: str) -> None:
    """One process alone finds what those of each mesh found together."""
    loader = Dataloader(data(), BATCH, mesh=data_parallel(), num_epochs=2).skip(range(3, 5))
    alone = loader.certificate()
    names = {path.name.partition("-")[0] for path in Path(folder).glob("*.json")}
    assert len(names) > 3
    for name in names:
        first, *others = (Certificate.load(path) for path in sorted(Path(folder).glob(f"{name}-*.json")))
        whole = first.merge(*others)
        assert whole.missing() == []
        assert whole.digest == alone.digest
        assert whole.rows == alone.rows
