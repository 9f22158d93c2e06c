"""Cost of feeding a training step: its time on loadax's batches, relative to one constant batch.

python benchmarks/device.py [--rows 8192] [--batch 256] [--width 256] [--rounds 15] [--seconds 1] [--json device.json]

It runs on JAX's default devices; for the CPU, set `JAX_PLATFORMS=cpu`. The loop is the usual one: a step starts as soon
as its batch is ready, and is waited for after the next one has started. Ways of feeding take turns in one process, in a
random order, and each step time is divided by that of the constant batch in the same round. A ratio of 1 means that the
loader costs nothing.
"""

import argparse
import gc
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from jax import numpy as jnp
from turns import machine

from loadax import Dataloader, from_arrays

_SIDE = 64  # of the images, uint8 with 3 channels
_LABELS = 10
_LEAD = 0.2  # untimed seconds of each turn, to use up batches that were read during other turns

Batch = dict[str, Any]
Open = Callable[[], Iterator[Batch]]


def normalised(example: Batch) -> Batch:
    """Converts uint8 to bfloat16 around zero, the input of the model."""
    return {**example, "image": (example["image"].astype(jnp.bfloat16) - 127.5) / 64}


def normalised_rows(batch: Batch) -> Batch:
    """The same in NumPy on the host, which transfers four times the bytes."""
    return {**batch, "image": (batch["image"].astype(np.float32) - 127.5) / np.float32(64)}


def ways(rows: int, batch_size: int) -> dict[str, Open]:
    """The constant batch, and all ways to feed the step."""
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (rows, _SIDE, _SIDE, 3), np.uint8)
    data = from_arrays({"image": images, "label": generator.integers(0, _LABELS, rows, np.int32)}).shuffle(seed=0)
    loader = partial(Dataloader, batch_size=batch_size, num_epochs=None)
    mapped = loader(data, device_map=normalised)
    return {
        "one batch": lambda: repeat(mapped[0]),
        "device_map": lambda: iter(mapped),
        "keep_on_device": partial(iter, loader(data, device_map=normalised, keep_on_device=8 << 30)),
        "map on the host": partial(iter, loader(data.map_batch(normalised_rows))),
        "nothing read ahead": partial(iter, loader(data, device_map=normalised, num_workers=0, prefetch=0)),
    }


def training(width: int) -> tuple[Any, Callable[[Any, Batch], Any]]:
    """A small network over patches of the images, and its step with Adam."""
    patch = 8 * 8 * 3
    keys = jax.random.split(jax.random.key(0), 3)
    sizes = ((patch, width), (width, width), (width, _LABELS))
    weights = [jax.random.normal(key, size) / np.sqrt(size[0]) for key, size in zip(keys, sizes, strict=True)]
    optimizer = optax.adam(1e-3)

    def loss(weights: list[jax.Array], batch: Batch) -> jax.Array:
        images = batch["image"].reshape(-1, 8, 8, 8, 8, 3).swapaxes(2, 3).reshape(-1, 64, patch)
        hidden = images.astype(jnp.float32)
        for layer in weights[:-1]:
            hidden = jax.nn.gelu(hidden @ layer)
        logits = hidden.mean(1) @ weights[-1]
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean()

    @jax.jit
    def step(state: Any, batch: Batch) -> Any:
        weights, moments = state
        updates, moments = optimizer.update(jax.grad(loss)(weights, batch), moments)
        return optax.apply_updates(weights, updates), moments

    return (weights, optimizer.init(weights)), step


def step_seconds(state: Any, step: Callable[[Any, Batch], Any], batches: Iterator[Batch], seconds: float) -> float:
    """Seconds per step of one turn."""
    turn(state, step, batches, _LEAD)
    began = time.perf_counter()
    steps = turn(state, step, batches, seconds)
    return (time.perf_counter() - began) / steps


def turn(state: Any, step: Callable[[Any, Batch], Any], batches: Iterator[Batch], seconds: float) -> int:
    """Trains for `seconds`; returns the number of steps."""
    steps, stop = 0, time.perf_counter() + seconds
    while not steps or time.perf_counter() < stop:
        before, state = state, step(state, next(batches))
        jax.block_until_ready(before)  # one step is in flight while the next one starts
        steps += 1
    jax.block_until_ready(state)
    return steps


def compare(arguments: argparse.Namespace) -> dict[str, Any]:
    """Runs all rounds."""
    state, step = training(arguments.width)
    made = {name: open_() for name, open_ in ways(arguments.rows, arguments.batch).items()}
    for batches in made.values():
        jax.block_until_ready(step(state, next(batches)))
    turns: dict[str, list[float]] = {name: [] for name in made}
    order = list(made)
    for round_number in range(arguments.rounds):
        random.Random(round_number).shuffle(order)
        for name in order:
            gc.collect()
            turns[name].append(step_seconds(state, step, made[name], arguments.seconds))
    for batches in made.values():
        if hasattr(batches, "close"):
            batches.close()
    constant = turns["one batch"]
    ratios = {
        name: [turn / one for turn, one in zip(seconds, constant, strict=True)] for name, seconds in turns.items()
    }
    return {
        "device": jax.devices()[0].device_kind,
        "devices": jax.device_count(),
        **{name: getattr(arguments, name) for name in ("rows", "batch", "width", "rounds")},
        "ways": {
            name: {
                "step_ms": statistics.median(seconds) * 1e3,
                "ratio": statistics.median(ratios[name]),
                "least": min(ratios[name]),
                "most": max(ratios[name]),
            }
            for name, seconds in turns.items()
        },
    }


def main() -> None:
    """Measures, prints and writes the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=8192, help="64x64x3 images of uint8")
    parser.add_argument("--batch", type=int, default=256, help="rows of a batch")
    parser.add_argument("--width", type=int, default=256, help="width of the network, which sets the cost of a step")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=1.0, help="seconds of a turn")
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    arguments = parser.parse_args()
    results = {**machine(), **compare(arguments)}
    print(
        f"{results['devices']} x {results['device']}, batch {results['batch']}, medians of {results['rounds']} rounds"
    )
    for name, figures in results["ways"].items():
        print(
            f"{name:<20}{figures['step_ms']:>10.3f} ms a step{figures['ratio']:>8.3f} of one batch "
            f"({figures['least']:.3f} to {figures['most']:.3f})"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
