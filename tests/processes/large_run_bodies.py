"""What the real processes of `test_jax_runs.py` do.

Every process works out every whole batch by itself, from lists.
"""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec as P

from loadax import Dataloader
from tests.laws.chain_verbs import exclude, keep, shuffle, shuffle_blocks, split, split_groups
from tests.laws.large_runs import Run, documents, pack, whole_rows
from tests.loader.oracle import assert_placed

LEAVES = ("tokens", "segment_ids", "positions", "loss_mask")
PARTITION = {**dict.fromkeys(LEAVES, P("data", "seq")), "key": P("data"), "mask": P("data")}
GONE = range(11, 14)
STEP = 7


def composed(folder: Path) -> Run:
    """Chosen, split, packed and shuffled parts, mixed; weights, sizes and lengths are scheduled.

    The process that begins the run builds the indices that the others read.
    """
    web = shuffle(keep(documents(120, 0, 1, flat=True), 1, folder / "filter"), 3)
    web = shuffle_blocks(pack(web, "split"), 5, block=4, window=2, lanes=3)
    code = split(shuffle(documents(110, 1, 10_001, flat=False), 4), 0.7, 0, 0)
    code = shuffle(exclude(pack(code, "best_fit", folder / "lengths"), [2, 9]), 6)
    books = shuffle(split_groups(whole_rows(30, 20_001), 0.5, 0, 0, folder / "groups"), 7)
    return Run(
        {"web": web, "code": code, "books": books},
        sizes={0: 8, 5: 16, 10: 24},
        lengths={0: 4, 8: 8},
        epochs=3,
        remainder="pad",
        weights={0: (3, 2, 1), 70: (2, 3, 1), 110: (1, 1, 1)},
        seed=11,
        stop="all",
    )


def loader_of(run: Run) -> Dataloader:
    """On a mesh where each process has its own columns of the sequences."""
    mesh = Mesh(np.array(jax.devices()).reshape(jax.process_count(), -1).T, ("data", "seq"))
    return run.loader(mesh=mesh, partition=PARTITION, num_workers=2) if jax.process_count() > 1 else run.loader()


def follow(run: Run, loader: Dataloader, start: Any, numbers: list[int]) -> dict[str, Any]:
    """Checks the batches of these steps of the run; the state behind them."""
    batches = run.batches()
    with loader.iterate(start) as placed:
        for number in numbers:
            assert_placed(next(placed), run.values(number, batches[number]))
        return placed.get_state()


def save(folder: str) -> None:
    """One process goes to a step, and saves where it is; and the digest of the whole run."""
    run = composed(Path(folder))
    loader = loader_of(run)
    assert len(loader) == len(run.batches()) > max(GONE) + 4
    Path(folder, "state.json").write_text(json.dumps(follow(run, loader, 0, list(range(STEP)))))
    Path(folder, "digest").write_text(loader.skip(GONE).digest())


def go_on(folder: str) -> None:
    """Several go through the whole run, and on from that state without some later steps: they see what one saw."""
    run = composed(Path(folder))
    loader = loader_of(run)
    state = json.loads(Path(folder, "state.json").read_text())
    assert follow(run, loader, 0, list(range(STEP))) == state
    left = [number for number in range(len(loader)) if number not in GONE]
    assert follow(run, loader.skip(GONE), state, left[STEP:])["step"] == len(left)
    # Where nothing is left out, through all seams.
    follow(run, loader, STEP, list(range(STEP, len(loader))))
    assert loader.skip(GONE).digest() == Path(folder, "digest").read_text()
    trace = loader.trace(STEP)
    assert [record.id for record in trace] == loader.rows(STEP).tolist()
    assert loader.find(trace[5].row, trace[5].dataset, steps=STEP)[0] == (STEP, 5)
