"""Trains on a stream that two processes read, kills them, and goes on in one process.

    python examples/stream_training.py

The stream has 16 lanes of sensor readings, made as they are read; nothing can look at reading 1,000 without the 999
before it. Lanes have `get_state` and `set_state`, so a run goes on where it was. Orbax saves the weights and the
iterator every 20 steps. After step 50 the parent process kills both; then one process goes on from step 40, opens all
lanes, and trains on the readings that the two would have read.

It ends like this, after about 20 seconds on two busy cores:

    killed 2 processes after step 50
    1 process goes on at step 40
    weights off by 0.01 after 120 steps
"""

import argparse
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

# Before JAX is imported, which reads them once. What the user has set stays.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "2")

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
from orbax.checkpoint import v1

import loadax
from loadax.sharding import data_parallel

LANES, BATCH, STEPS, SAVED_EVERY, KILLED_AFTER = 16, 64, 120, 20, 50
TRUE = np.array([2.0, -1.0, 0.5, 3.0], np.float32)
_LIMIT = 300.0  # seconds that a run may take


class Sensor:
    """One lane: readings of a sensor, and the position in them."""

    def __init__(self, lane: int):
        self._lane, self._reading = lane, 0

    def __iter__(self) -> "Sensor":
        return self

    def __next__(self) -> dict[str, Any]:
        random = np.random.default_rng((self._lane, self._reading))
        self._reading += 1
        x = random.standard_normal(4).astype(np.float32)
        return {"x": x, "y": np.float32(x @ TRUE + 0.1 * random.standard_normal())}

    def get_state(self) -> dict[str, int]:
        """Position in the readings."""
        return {"reading": self._reading}

    def set_state(self, state: dict[str, int]) -> None:
        """Goes on at a position."""
        self._reading = state["reading"]


@jax.jit
def update(weights: jax.Array, batch: Any) -> jax.Array:
    """One step of gradient descent."""
    return weights - 0.1 * jax.grad(lambda w: jnp.mean((batch["x"] @ w - batch["y"]) ** 2))(weights)


def train(folder: Path) -> None:
    """Trains from the latest checkpoint, in whatever processes there are."""
    mesh = data_parallel()
    data = loadax.from_stream(lambda lane, lanes: Sensor(lane), lanes=LANES)  # noqa: ARG005
    loader = loadax.Dataloader(data, BATCH, mesh=mesh, num_epochs=None)
    zeros = np.zeros(4, np.float32)
    weights = jax.make_array_from_callback((4,), NamedSharding(mesh, P()), lambda index: zeros[index])
    with iter(loader) as batches, v1.training.Checkpointer(folder) as checkpointer:
        if checkpointer.latest is not None:
            saved = checkpointer.load_checkpointables(abstract_checkpointables={"weights": weights, "data": batches})
            weights = saved["weights"]
            print(f"{jax.process_count()} process goes on at step {batches.step}", flush=True)
        while batches.step < STEPS:
            weights = update(weights, next(batches))
            if batches.step % SAVED_EVERY == 0:
                checkpointer.save_checkpointables(batches.step, {"weights": weights, "data": batches})
            if batches.step == KILLED_AFTER and jax.process_count() > 1:
                jax.block_until_ready(weights)
                print("at step 50", flush=True)
    error = float(np.abs(np.asarray(weights.addressable_data(0)) - TRUE).max())
    print(f"weights off by {error:.2f} after {STEPS} steps", flush=True)


def start(folder: Path, process: int, processes: int, port: int) -> "subprocess.Popen[str]":
    """Starts one process of a run."""
    command = [sys.executable, __file__, "--worker", str(folder), str(process), str(processes), str(port)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def main() -> int:
    """Starts two processes, kills them, and starts one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        folder, process, processes, port = options.worker
        if int(processes) > 1:
            jax.distributed.initialize(f"localhost:{port}", int(processes), int(process))
        train(Path(folder))
        return 0
    with tempfile.TemporaryDirectory() as name:
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
        both = [start(Path(name), process, 2, port) for process in range(2)]
        try:
            for child in both:
                assert child.stdout is not None
                for line in child.stdout:
                    if line.startswith("at step"):
                        break
        finally:
            for child in reversed(both):  # the coordinator last, or the other one would tell of its end
                child.kill()
            for child in both:
                child.communicate()
        print(f"killed 2 processes after step {KILLED_AFTER}", flush=True)
        one = start(Path(name), 0, 1, 0)
        out, _ = one.communicate(timeout=_LIMIT)
        print(out, end="")
        return one.returncode


if __name__ == "__main__":
    sys.exit(main())
