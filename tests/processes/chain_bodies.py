"""What the real processes of `test_chain_processes.py` do."""

import json
import time
from itertools import accumulate
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

import loadax
from loadax import Dataloader, from_arrays
from loadax.sharding import data_parallel
from tests.limits import ENDLESS
from tests.loader.oracle import CHAIN, NONE, Oracle, arrays, assert_placed

TREE = arrays(80)
PHASES = ((16, 2, "drop", NONE), (32, 1, "pad", CHAIN), (8, 1, "drop", NONE))
FIRST_STEPS = (0, 10, 13)


def chained(mesh: Mesh) -> tuple[Dataloader, list[Any]]:
    """Three phases with other batch sizes and maps, and their batches, worked out one by one."""
    loaders, batches = [], []
    for seed, (batch_size, epochs, remainder, recipe) in enumerate(PHASES):
        data = recipe.build(from_arrays(TREE).shuffle(seed))
        options: dict[str, Any] = {"num_epochs": epochs, "remainder": remainder, "mesh": mesh, "num_workers": 2}
        loaders.append(Dataloader(data, batch_size, **options))
        oracle = Oracle(TREE, data.order, recipe, batch_size, remainder)
        batches += [oracle.batch(step) for step in range(len(loaders[-1]))]
    assert tuple(accumulate(map(len, loaders), initial=0)) == (*FIRST_STEPS, len(batches))
    return loadax.chain(loaders), batches


def train(folder: str) -> None:
    """Goes through all phases, saves its state at each step, and then waits to be killed."""
    run, wanted = chained(data_parallel())
    with iter(run) as batches:
        for step, batch in enumerate(batches):
            assert_placed(batch, wanted[step])
            made = Path(folder, f"{step + 1}-{jax.process_index()}.new")
            made.write_text(json.dumps(batches.get_state()))
            made.rename(made.with_suffix(".json"))
        assert batches.stats().steps == len(wanted)
    time.sleep(ENDLESS)
