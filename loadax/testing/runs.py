"""Law of a run: a batch is a function of the step, however the run gets there."""

import json
from collections.abc import Iterable
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from numpy.typing import NDArray

from loadax.core.tree import flatten
from loadax.dataset import Dataset
from loadax.loader.dataloader import Dataloader
from loadax.testing.laws import Law, difference
from loadax.testing.subject import Subject
from loadax.testing.workers import run_beside

LOADS = Law(
    "it loads",
    "a Dataloader must be able to place it, and reads must not deadlock; pass the "
    "dataset with the map that converts it to numbers, or a larger timeout, or "
    "loader=False",
)
STEPS = Law(
    "a batch follows from its step",
    "a row's values must follow from the row (and its generator) alone",
)


def check_runs(
    subject: Subject, dataset: Dataset, seed: int, rows: int, timeout: float
) -> None:
    """Checks two shuffled epochs of some rows: resumed, step by step, with other workers, and in shards."""
    data = dataset.shuffle(seed)[:rows]
    # Even, for two shards; small enough for several steps per epoch.
    if len(data) > 1:
        size = 2 * max(1, min(8, len(data) // 3) // 2)
    else:
        size = 1
    mesh = Mesh(np.array(jax.local_devices()[:1], object), ("data",))

    def check() -> None:
        with LOADS.during(subject.name, "a Dataloader over it"):
            _check(
                subject.name, partial(Dataloader, data, size, mesh=mesh, num_epochs=2)
            )

    if not run_beside([check], timeout):
        raise LOADS.broken(
            subject.name,
            f"a Dataloader had not returned all batches after {timeout:g} s",
        )


def _check(name: str, make: partial[Dataloader]) -> None:
    loader = make(num_workers=0)
    straight = _run(loader)
    paths = flatten(loader.spec)[1].paths
    middle = len(straight) // 2
    last = len(straight) - 1

    def same(how: str, steps: Iterable[int], batches: Iterable[Any]) -> None:
        for step, batch in zip(steps, batches, strict=True):
            mismatch = difference(batch, straight[step], paths, loader.rows(step))
            if mismatch:
                raise STEPS.broken(
                    name,
                    f"in step {step}, {how}, {mismatch} as in the uninterrupted run",
                )

    with loader.iterate() as batches:
        for _ in range(middle):
            next(batches)
        state = json.loads(json.dumps(batches.get_state()))
    same(
        f"resumed at step {middle}",
        range(middle, last + 1),
        _run(make(num_workers=0), state),
    )
    for step in (0, middle, last):
        same(f"read by loader[{step}]", [step], [_leaves(loader[step])])
    for workers in (1, 4):
        same(
            f"with num_workers={workers} instead of 0",
            range(last + 1),
            _run(make(num_workers=workers)),
        )
    if loader.batch_size > 1:
        shards = [
            make(num_workers=0, shard_index=shard, shard_count=2) for shard in (0, 1)
        ]
        for step in (0, last):
            pairs = zip(
                *(_leaves(shard.host_batch(step)) for shard in shards), strict=True
            )
            same(
                "put together from the host_batch of two shards",
                [step],
                [list(map(np.concatenate, pairs))],
            )


def _run(loader: Dataloader, start: Any = 0) -> list[list[NDArray[Any]]]:
    with loader.iterate(start) as batches:
        return [_leaves(batch) for batch in batches]


def _leaves(batch: Any) -> list[NDArray[Any]]:
    # Copies, because on the CPU an array may alias the loader's buffers.
    return [np.array(leaf) for leaf in flatten(batch)[0]]
