"""What the real processes of `test_jax_runs.py` do."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from loadax import Buckets, Dataloader, from_documents, mix
from loadax.sharding import data_parallel
from tests.loader.oracle import assert_placed

LENGTHS = np.random.default_rng(0).integers(1, 65, 300)
COSTS = LENGTHS.astype(float) ** 2
SIZES = {16: 32, 32: 16, 64: 8}
STEP = 7


def run(**options: Any) -> Dataloader:
    """Buckets of a mixture, or balanced batches of the same rows."""
    tokens = np.repeat(np.arange(1, len(LENGTHS) + 1, dtype=np.int32), LENGTHS)
    documents = from_documents({"tokens": tokens}, np.cumsum([0, *LENGTHS]))
    if "balance" in options:
        data = documents.pad({"tokens": 64}).shuffle(seed=1)
        return Dataloader(data, 32, mesh=data_parallel(), num_epochs=2, **options)
    parts = {"all": documents.shuffle(seed=1), "some": documents[:100].shuffle(seed=2)}
    return Dataloader(mix(parts, [2, 1]), Buckets("tokens", SIZES), mesh=data_parallel(), num_epochs=2, **options)


def wanted(loader: Dataloader, step: int, lengths: Iterable[int]) -> Any:
    """The global batch of a step, from its rows, as long as the shortest of these lengths that holds them."""
    rows = loader.rows(step) % len(LENGTHS)  # the second part has the first rows again
    length = next(each for each in lengths if each >= LENGTHS[rows].max())
    tokens = np.zeros((len(rows), length), np.int32)
    for index, row in enumerate(rows):
        tokens[index, : LENGTHS[row]] = row + 1
    return {"tokens": tokens, "tokens_length": LENGTHS[rows].astype(np.int32)}


def every_batch(folder: str) -> None:
    """Each process holds its part of each batch; the states of a step are kept."""
    for name, loader, lengths in (("buckets", run(num_workers=1), SIZES), ("balance", run(balance=COSTS), [64])):
        with loader.iterate() as batches:
            for step, batch in enumerate(batches):
                assert_placed(batch, wanted(loader, step, lengths))
                if step + 1 == STEP:
                    Path(folder, name).write_text(json.dumps(batches.get_state()))
    plain = run(balance=None)
    assert all(sorted(plain.rows(step)) == sorted(loader.rows(step)) for step in range(3))


def go_on(folder: str) -> None:
    """Another number of processes goes on with the batches that were left."""
    for name, loader, lengths in (("buckets", run(), SIZES), ("balance", run(balance=COSTS), [64])):
        steps = range(STEP, len(loader))
        with loader.iterate(json.loads(Path(folder, name).read_text())) as batches:
            for step, batch in zip(steps, batches, strict=True):
                assert_placed(batch, wanted(loader, step, lengths))
