"""How block shuffles mix, with pinned lanes and without, and what a host reads: `python benchmarks/mixing.py`.

Everything is computed from the orders; nothing is read, so the figures are the same on every machine.

Chunks: distinct chunks that a host has read after each epoch, of 512 in 64 lanes, by the number of hosts; of all hosts
the one with most.

Mixing: rows sorted by 100 classes, in chunks of 64. The counts of the classes in a batch are compared with those of as
many random rows:

- `variance`: their variance, over that of random rows. `loadax.plan.block_shuffle.batch_variance` is its formula.
- `lag 1`, `lag 8`: their correlation with those of the next step, and of the step eight later. With m = batch / lanes
  rows of a lane in a batch, R rows of a chunk and w chunks of a window it is, at lag k,
  m (R - 1) / (w R - 1) max(0, 1 - k m / (w R)) / variance.
- `epochs`: their correlation with those of the same step of the next epoch: 0 if epochs know nothing of each other.
- `pairs`: over all pairs of chunks, the correlation of the number of steps in which both have rows between one epoch
  and the next.
- `host`: the standard deviation of the share of a class among all rows that one of eight hosts reads in ten epochs,
  over that share.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from loadax.plan.batches import BatchPlan
from loadax.plan.block_shuffle import BlockShuffled, batch_variance
from loadax.plan.sequential import Sequential
from loadax.plan.shuffle import Shuffled
from loadax.protocols import Order

HOSTS = (1, 2, 4, 8, 16)
EPOCHS, CLASSES, ROWS = 10, 100, 64
SIZE = 1 << 18
CASES = ((4, 128, 256), (4, 128, 1024), (4, 128, 4096), (8, 32, 1024), (1, 128, 1024), (4, 1024, 1024))
"""Window, lanes and batch size."""

Array = Any


def epoch_of(order: Order, batch_size: int, epoch: int) -> Array:
    """Rows of each step of an epoch, int64[steps, batch_size]."""
    plan = BatchPlan(order, batch_size)
    steps = range(epoch * plan.steps_per_epoch, (epoch + 1) * plan.steps_per_epoch)
    return plan.visits_of(steps, np.arange(batch_size)).rows.reshape(-1, batch_size)


def chunks_of_hosts(pinned: bool, hosts: int) -> list[int]:
    """Distinct chunks that the host with most of them has read after each epoch."""
    order = BlockShuffled(Sequential(512 * ROWS), 0, ROWS, 4, 64, pinned)
    met: list[set[int]] = [set() for _ in range(hosts)]
    found = []
    for epoch in range(EPOCHS):
        shares = np.split(epoch_of(order, 1024, epoch) // ROWS, hosts, axis=1)
        for one, share in zip(met, shares, strict=True):
            one.update(np.unique(share).tolist())
        found.append(max(map(len, met)))
    return found


def counts_of(rows: Array) -> Array:
    """Rows of each class in each step, less their expected number, float64[steps, classes]."""
    classes = rows * CLASSES // SIZE
    counts = np.stack([np.bincount(step, minlength=CLASSES) for step in classes])
    return counts - rows.shape[1] / CLASSES


def correlation(one: Array, other: Array) -> float:
    """Of figures whose means are 0."""
    return float((one * other).mean() / np.sqrt((one * one).mean() * (other * other).mean()))


def meetings(rows: Array) -> Array:
    """Number of steps in which each pair of chunks has rows, less the mean, float32[pairs]."""
    present = np.zeros((len(rows), SIZE // ROWS), np.float32)
    for step, blocks in enumerate(rows // ROWS):
        present[step, blocks] = 1
    pairs = (present.T @ present)[np.triu_indices(SIZE // ROWS, 1)]
    return pairs - pairs.mean()


def host_share(order: Order, batch_size: int) -> float:
    """Relative standard deviation of the share of a class on the first of eight hosts."""
    mine = [epoch_of(order, batch_size, epoch)[:, : batch_size // 8].ravel() for epoch in range(EPOCHS)]
    shares = np.bincount(np.concatenate(mine) * CLASSES // SIZE, minlength=CLASSES)
    return float(shares.std() / shares.mean())


def mixing(order: Order, batch_size: int) -> dict[str, float]:
    """The figures of an order, by their names above."""
    epochs = [epoch_of(order, batch_size, epoch) for epoch in range(4)]
    counts = list(map(counts_of, epochs))
    pairs = [meetings(rows) for rows in epochs[:2]]
    random = batch_size / CLASSES * (1 - 1 / CLASSES)
    return {
        "variance": float(np.mean([(each**2).mean() for each in counts]) / random),
        "lag 1": float(np.mean([correlation(each[:-1], each[1:]) for each in counts])),
        "lag 8": float(np.mean([correlation(each[:-8], each[8:]) for each in counts])),
        "epochs": float(np.mean([correlation(*counts[first : first + 2]) for first in range(3)])),
        "pairs": correlation(*pairs),
        "host": host_share(order, batch_size),
    }


def formula(window: int, lanes: int, batch_size: int, lag: int) -> float:
    """Correlation of the counts of a batch with those `lag` steps later, without pins."""
    blocks = BlockShuffled(Sequential(SIZE), 0, ROWS, window, lanes).shuffle.blocks
    assert blocks is not None
    per_lane = batch_size / lanes
    alike = (ROWS - 1) / (window * ROWS - 1)
    together = max(0.0, 1 - lag * per_lane / (window * ROWS))
    return per_lane * alike * together / batch_variance(blocks, batch_size)


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one case alone")
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args()
    found: dict[str, Any] = {}
    for pinned in (False, True):
        print("pinned lanes" if pinned else "lanes", "of 512 chunks, after epochs 1 to 10")
        for hosts in HOSTS[: 2 if options.quick else None]:
            chunks = chunks_of_hosts(pinned, hosts)
            found[f"chunks, {hosts} hosts, pinned={pinned}"] = chunks
            print(f"{hosts:6} hosts", *(f"{count:4}" for count in chunks))
    for window, lanes, batch_size in CASES[: 1 if options.quick else None]:
        told = [formula(window, lanes, batch_size, lag) for lag in (1, 8)]
        print(f"window {window}, {lanes} lanes, batch {batch_size}; formula: {told[0]:.3f} {told[1]:.3f}")
        orders: dict[str, Order] = {
            "lanes": BlockShuffled(Sequential(SIZE), 0, ROWS, window, lanes),
            "pinned": BlockShuffled(Sequential(SIZE), 0, ROWS, window, lanes, True),
            "full": Shuffled(Sequential(SIZE), 0),
        }
        for name, order in orders.items():
            figures = mixing(order, batch_size)
            found[f"{name}, window {window}, {lanes} lanes, batch {batch_size}"] = figures
            print(f"{name:8}", *(f"{key} {value:7.4f} " for key, value in figures.items()))
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
