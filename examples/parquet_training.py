"""Writes a table of houses to Parquet files, and learns their prices from it.

    python examples/parquet_training.py

The files have row groups of 2,000 rows. `from_parquet` reads four columns of seven, and `shuffle(block="chunks")`
decodes each row group once an epoch. A category becomes an int, and a missing value what `nulls=` says. The run is
stopped in the middle and goes on from its saved state.

It ends like this, after about 7 seconds on two busy cores; prices have a noise of 5:

    stopped after 60 steps, in epoch 1; goes on at step 60
    error 5.4 on 2,028 held-out houses, where the mean has 31.9
"""

import os

# Before JAX is imported, which reads them once. What the user has set stays.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "4")

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pyarrow as pa
from pyarrow import parquet

import loadax

HOUSES, FILES, GROUP = 20_000, 2, 2_000
STYLES = ("cottage", "loft", "villa")
COLUMNS = ["area", "rooms", "style", "price"]


def write(folder: Path) -> None:
    """Writes the houses: prices depend on area, rooms and style; some numbers of rooms are missing."""
    generator = np.random.default_rng(0)
    area = generator.uniform(20, 200, HOUSES).astype(np.float32)
    rooms = generator.integers(1, 8, HOUSES)
    style = generator.integers(0, 3, HOUSES)
    price = 0.5 * area + 4 * rooms + 20 * style + generator.normal(0, 5, HOUSES)
    table = pa.table(
        {
            "area": area,
            "rooms": pa.array(rooms, mask=generator.random(HOUSES) < 0.02),
            "style": pa.DictionaryArray.from_arrays(style, list(STYLES)),
            "price": price.astype(np.float32),
            "street": [f"street {number}" for number in range(HOUSES)],
            "built": pa.array(generator.integers(0, 10**9, HOUSES), pa.timestamp("s")),
            "owners": [[f"owner {number}"] * (number % 3) for number in range(HOUSES)],
        }
    )
    rows = HOUSES // FILES
    for number in range(FILES):
        parquet.write_table(table.slice(number * rows, rows), folder / f"{number}.parquet", row_group_size=GROUP)


def features(batch: Any) -> Any:
    """One row of numbers a house; 4 in place of an unknown number of rooms."""
    styles = jax.nn.one_hot(batch["style"], len(STYLES))
    return jnp.concatenate([batch["area"][:, None] / 100, batch["rooms"][:, None], styles], 1)


def predict(weights: Any, batch: Any) -> Any:
    """Prices."""
    return features(batch) @ weights["w"] + weights["b"]


def loss(weights: Any, batch: Any) -> Any:
    """Mean squared error."""
    return jnp.mean((predict(weights, batch) - batch["price"]) ** 2)


def main() -> int:
    """Trains, stops, goes on, and compares with the mean price."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        write(Path(name))
        data = loadax.from_parquet(name, columns=COLUMNS, nulls={"rooms": 4})
        source: Any = data.source
        print(f"{len(data)} houses in {len(np.asarray(source.chunks))} row groups, styles {source.classes['style']}")
        train, test = data.split(0.9)
        loader = loadax.Dataloader(train.shuffle(0, block="chunks", lanes=4), batch_size=400, num_epochs=options.epochs)
        optimizer = optax.adam(0.3)
        weights = {"w": jnp.zeros(2 + len(STYLES)), "b": jnp.zeros(())}
        state = optimizer.init(weights)

        @jax.jit
        def step(weights: Any, state: Any, batch: Any) -> Any:
            updates, state = optimizer.update(jax.grad(loss)(weights, batch), state)
            return optax.apply_updates(weights, updates), state

        def train_on(batch: Any) -> None:
            nonlocal weights, state
            # Virtual CPU devices share a few cores, where steps that overlap can block one another.
            weights, state = jax.block_until_ready(step(weights, state, batch))

        with iter(loader) as iterator:
            for _ in range(60):
                train_on(next(iterator))
            saved = json.dumps(iterator.get_state())
            print(f"stopped after {iterator.step} steps, in epoch {iterator.epoch}; goes on at step", end=" ")
        with loader.iterate(start=json.loads(saved)) as iterator:
            print(iterator.step)
            for batch in iterator:
                train_on(batch)
        held_out = test.read(range(len(test)))
        error = float(np.sqrt(np.mean((np.asarray(predict(weights, held_out)) - held_out["price"]) ** 2)))
        spread = float(np.std(held_out["price"]))
        print(f"error {error:.1f} on {len(test):,} held-out houses, where the mean has {spread:.1f}")
        return int(error > spread / 2)


if __name__ == "__main__":
    sys.exit(main())
