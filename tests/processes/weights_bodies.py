"""What the real processes of `test_jax_runs.py` do: weights of a mixture that each host sets in mid-run."""

import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from loadax import Dataloader, mix
from loadax.errors import HostError
from loadax.loader.iterator import DataIterator

BATCH = 48  # which 2, 3 and 4 processes share equally
SOON = 20.0
"""Seconds in which a host that differs is named, on a busy machine."""


def loader() -> Dataloader:
    parts = {"web": np.arange(400), "code": np.arange(1000, 1090)}
    return Dataloader(mix(parts, [3, 1], stop="never"), BATCH)


def equal_weights() -> None:
    """All hosts set the same weights twice: the batches are those of the loader with these weights."""
    changed = loader().with_weights({2: [1, 1], 5: [0, 1]})
    with loader().iterate() as batches:
        for step in range(8):
            if step == 2:
                batches.set_weights({"web": 1, "code": 1})
            if step == 5:
                batches.set_weights([0, 1])
            check_rows(next(batches), changed.rows(step))
        state = batches.get_state()
    with loader().iterate(state) as batches:
        check_rows(next(batches), changed.rows(8))


def check_rows(batch: Any, rows: Any) -> None:
    values = np.where(rows < 400, rows, rows + 600)
    for shard in batch.addressable_shards:
        assert np.array_equal(shard.data, values[shard.index])


def differing_weights() -> None:
    """Every host gets an error that names who has set which weights, and none hangs."""
    first = jax.process_index() == 0
    last = jax.process_index() == jax.process_count() - 1

    def other(batches: DataIterator) -> None:
        batches.set_weights([1, 1 if first else 2])

    def all_but_first(batches: DataIterator) -> None:
        if not first:
            batches.set_weights([1, 1])

    def last_alone(batches: DataIterator) -> None:
        if last:
            batches.set_weights([1, 1])

    def later(batches: DataIterator) -> None:
        if first:
            next(batches)
        batches.set_weights([1, 1])

    refused = (
        r"process \d has set other weights from step 3 on, and (this process|process \d) has not; call set_weights"
    )
    differ = r"hosts differ in weights that were set: 1:1 from position {} on on process 0; 1:{} from position 144 on"
    cases: list[tuple[Callable[[DataIterator], None], str]] = [
        (other, differ.format(144, 2)),
        (all_but_first, refused),
        (last_alone, refused),
        (later, f"({refused}|{differ.format(192, 1)})"),
    ]
    for change, text in cases:
        with loader().iterate() as batches:
            for _ in range(3):
                next(batches)
            began = time.monotonic()
            change(batches)
            with pytest.raises(HostError, match=text):
                read_until(batches, began + SOON)


def read_until(batches: DataIterator, end: float) -> None:
    while time.monotonic() < end:
        next(batches)


def both() -> None:
    """One launch costs seconds, so all of this is done in one."""
    equal_weights()
    differing_weights()
