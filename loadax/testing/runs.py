"""Laws of a run: a batch is a function of the step, however the run gets there."""

import json
from typing import Any, final

import jax
import numpy as np
from jax.sharding import Mesh
from numpy.typing import NDArray

from loadax.core.tree import flatten
from loadax.dataset import Dataset
from loadax.loader.dataloader import Dataloader
from loadax.testing.comparison import difference
from loadax.testing.laws import Law
from loadax.testing.subject import Subject
from loadax.testing.threads import run_beside

_CONTRACT = "a row's values must depend on the row (and, in a random map, on its generator) alone"
LOADS = Law(
    "it loads",
    "a Dataloader must be able to place it; pass the dataset with the map that converts it to numbers, or loader=False",
)
RESUME = Law("resume", _CONTRACT)
STEP = Law("loader[step]", _CONTRACT)
WORKERS = Law("any number of workers", _CONTRACT)
SHARDS = Law("shards make up the batch", _CONTRACT)
IN_TIME = Law("a run ends", "reads must not deadlock; pass a larger timeout if they are only slow")

_MOST_ROWS = 8  # per batch

Leaves = list[NDArray[Any]]


def check_runs(subject: Subject, dataset: Dataset, seed: int, rows: int, timeout: float) -> None:
    """Checks two shuffled epochs of some rows: resumed, step by step, with other workers, and in shards."""
    resume_after = float(subject.random.random())

    def check() -> None:
        with LOADS.during(subject.name, "a Dataloader over it"):
            _Runs(subject.name, dataset, seed, rows).check(resume_after)

    if not run_beside([check], timeout):
        raise IN_TIME.broken(subject.name, f"a Dataloader had not returned all batches after {timeout:g} s")


@final
class _Runs:
    """Runs of one dataset that must all give the same batches."""

    def __init__(self, name: str, dataset: Dataset, seed: int, rows: int):
        self._name = name
        self._data = dataset.shuffle(seed)[:rows]
        count = len(self._data)
        # Even, for two shards; small enough for several steps per epoch.
        self._size = 2 * max(1, min(_MOST_ROWS, count // 3) // 2) if count > 1 else 1
        self._mesh = Mesh(np.array(jax.local_devices()[:1], object), ("data",))

    def check(self, resume_after: float) -> None:
        straight = self._run(self._loader(0))
        middle = int(len(straight) * resume_after)
        self._same(RESUME, self._resumed(middle), straight[middle:], f"resumed at step {middle}", middle)
        alone = self._loader(0)
        for step in (0, middle, len(straight) - 1):
            self._same(STEP, [_leaves(alone[step])], [straight[step]], f"read by loader[{step}]", step)
        for workers in (1, 4):
            self._same(
                WORKERS, self._run(self._loader(workers)), straight, f"with num_workers={workers} instead of 0", 0
            )
        if self._size > 1:
            for step in (0, len(straight) - 1):
                parts = [self._loader(0, shard).host_batch(step) for shard in (0, 1)]
                whole = [np.concatenate(pair) for pair in zip(*map(_leaves, parts), strict=True)]
                self._same(SHARDS, [whole], [straight[step]], "put together from the host_batch of two shards", step)

    def _loader(self, workers: int, shard: int | None = None) -> Dataloader:
        count = None if shard is None else 2
        return Dataloader(
            self._data,
            self._size,
            mesh=self._mesh,
            num_epochs=2,
            num_workers=workers,
            shard_index=shard,
            shard_count=count,
        )

    def _run(self, loader: Dataloader, start: Any = 0) -> list[Leaves]:
        with loader.iterate(start) as batches:
            return [_leaves(batch) for batch in batches]

    def _resumed(self, step: int) -> list[Leaves]:
        with self._loader(0).iterate() as batches:
            for _ in range(step):
                next(batches)
            state = json.loads(json.dumps(batches.get_state()))
        return self._run(self._loader(0), state)

    def _same(self, law: Law, got: list[Leaves], straight: list[Leaves], how: str, first: int) -> None:
        """Checks that the batches `got`, from step `first` on, equal those of the uninterrupted run."""
        loader = self._loader(0)
        paths = flatten(loader.spec)[1].paths
        for step, (batch, expected) in enumerate(zip(got, straight, strict=True), first):
            mismatch = difference(batch, expected, paths, loader.rows(step))
            if mismatch:
                raise law.broken(self._name, f"in step {step}, {how}, {mismatch} as in the uninterrupted run")


def _leaves(batch: Any) -> Leaves:
    # Copies, because on the CPU an array may alias the loader's buffers.
    return [np.array(leaf) for leaf in flatten(batch)[0]]
