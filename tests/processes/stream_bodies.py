"""What the real processes of `test_jax_runs.py` do."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from orbax.checkpoint import v1

from loadax import Dataloader, Dataset, from_source, from_stream
from loadax.errors import HostError, SourceError
from loadax.sharding import data_parallel
from tests.packing.stream_packing import host_steps
from tests.streams import CountedLanes, expected_steps, row_of

LANES, BATCH, STEPS = 16, 32, 10
LENGTHS = [50 + 3 * (lane % 4) for lane in range(LANES)]


def loader_of(lanes: Any, **options: Any) -> Dataloader:
    return Dataloader(from_stream(lanes, lanes=LANES), BATCH, mesh=data_parallel(), **options)


def local(array: jax.Array) -> list[tuple[int, int]]:
    """Batch positions and values of this process's rows."""
    return [
        (position, value)
        for shard in array.addressable_shards
        for position, value in enumerate(np.asarray(shard.data).tolist(), shard.index[0].start or 0)
    ]


def check(batch: Any, expected: list[int]) -> None:
    mask = dict(local(batch["mask"])) if "mask" in batch else {}
    for position, value in local(batch["x"]):
        assert (value if mask.get(position, True) else -1) == expected[position]


def packed() -> Dataset:
    """Documents that are shuffled in a buffer and packed as they are read, over several epochs."""
    lengths = np.random.default_rng(0).integers(1, 30, 200)
    documents = from_source([np.full(length, number) for number, length in enumerate(lengths)])
    shuffled = documents.shuffle(0).to_stream(LANES).shuffle(1, buffer_size=5)
    return shuffled.pack(16, method="best_fit", long="cut")


def packed_batches() -> Any:
    return iter(Dataloader(packed(), BATCH, mesh=data_parallel(), num_epochs=None, num_workers=2))


def packed_steps() -> list[Any]:
    """The batches of one process that reads all lanes."""
    return host_steps(packed(), BATCH, STEPS + 2)[0]


def check_packed(batch: Any, expected: Any) -> None:
    for name, leaf in expected.items():
        for shard in batch[name].addressable_shards:
            np.testing.assert_array_equal(shard.data, leaf[shard.index])


def save(folder: str) -> None:
    """Reads lanes of unequal lengths to the same end on all processes, and saves states of lanes on the way."""
    for remainder in ("drop", "pad"):
        lanes = CountedLanes(LENGTHS)
        expected = expected_steps(LENGTHS, BATCH, remainder)
        with iter(loader_of(lanes, remainder=remainder, num_workers=2)) as batches:
            count = 0
            for batch, step in zip(batches, expected, strict=True):
                check(batch, step)
                count += 1
        assert count == len(expected)
        # Lane 0 was opened for the spec, and is not opened again by the process that reads it.
        assert len(lanes.opened) == len(set(lanes.opened)) == LANES // jax.process_count() + (jax.process_index() > 0)
    with pytest.raises((SourceError, HostError), match=r"some of its rows"):
        list(loader_of(CountedLanes(LENGTHS), remainder="error"))
    with iter(loader_of(Broken(jax.process_index()))) as batches, pytest.raises((OSError, HostError)) as caught:
        list(batches)
    if jax.process_index() == 1:
        assert "process 0 could not read its lanes" in str(caught.value)
    with iter(loader_of(CountedLanes(stateful=True), num_epochs=None)) as batches:
        for step in expected_steps([100] * LANES, BATCH, "drop")[:STEPS]:
            check(next(batches), step)
        with packed_batches() as packed, v1.training.Checkpointer(Path(folder)) as checkpointer:
            for step in packed_steps()[:STEPS]:
                check_packed(next(packed), step)
            checkpointer.save_checkpointables(STEPS, {"data": batches, "packed": packed})


class Broken:
    """Lanes of process 0 raise."""

    def __init__(self, process: int):
        self.process = process

    def __call__(self, lane: int, lanes: int) -> Any:
        for row in range(20):
            if row == 12 and self.process == 0:
                raise OSError("no answer")
            yield {"x": np.int32(row_of(lane, row))}


def restore(folder: str) -> None:
    """Any number of processes goes on, and reads no row again but those since the states of lanes."""
    lanes = CountedLanes(stateful=True)
    with iter(loader_of(lanes, num_epochs=None, num_workers=0)) as batches:
        with packed_batches() as packed, v1.training.Checkpointer(Path(folder)) as checkpointer:
            checkpointer.load_checkpointables(STEPS, {"data": batches, "packed": packed})
            for step in packed_steps()[STEPS:]:
                check_packed(next(packed), step)
        lanes.opened, lanes.rows_read = [], 0
        for step in expected_steps([100] * LANES, BATCH, "drop")[STEPS : STEPS + 2]:
            check(next(batches), step)
    assert len(lanes.opened) == LANES // jax.process_count()
    assert lanes.rows_read < STEPS * BATCH // jax.process_count()
