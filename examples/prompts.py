"""Trains a policy by GRPO on prompts that are leased, is killed, and goes on: each prompt is trained on once.

    python examples/prompts.py                                     # kills itself once, and goes on
    python examples/prompts.py --checkpoints /tmp/prompts --die-at 20   # by hand: is killed before update 20 ...
    python examples/prompts.py --checkpoints /tmp/prompts          # ... and goes on

A prompt is two digits, and the right answer is their sum. A small Flax model samples a group of 16 answers to each
prompt on one of 8 threads, and larger answers take longer, so that the groups are ready in another order than the
prompts were handed out. An update trains on 8 groups that are ready; only then are their prompts acknowledged. A
checkpoint has the weights, the optimizer and the state of the lease, in one file. When the run goes on, it begins with
the prompts that were handed out and not trained on.

It ends like this, after about 20 seconds on two busy cores:

    killed before update 45
    goes on at update 40: 320 prompts trained on, 24 waiting
    1600 prompts, each trained on once; 100 of 100 sums are right
"""

import os

# Before JAX is imported, which reads it once. What the user has set stays.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import argparse
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import loadax
from loadax.loader.lease import Leased

EPOCHS, IN_FLIGHT, GROUP, GROUPS = 16, 32, 16, 8  # prompts in flight, answers of a group, groups of an update
ANSWERS = 19  # 0 to 18
SAVE_EVERY, KILLED_AT = 10, 45  # updates


class Policy(nnx.Module):
    """Guesses a number for each prompt; answers near it are likelier."""

    def __init__(self, rngs: nnx.Rngs):
        self.guess = nnx.Linear(20, 1, kernel_init=nnx.initializers.constant(4.5), rngs=rngs)

    def __call__(self, digits: jax.Array) -> jax.Array:
        """(B, 2) digits -> (B, 19) log-probabilities."""
        guesses = self.guess(jax.nn.one_hot(digits, 10).reshape(-1, 20))
        return jax.nn.log_softmax(-jnp.square(jnp.arange(ANSWERS) - guesses) / 4)


class Rollouts(NamedTuple):
    """A group of answers to a prompt.

    Args:
        leased: Position and prompt.
        answers: int32[GROUP].
        rewards: float32[GROUP]: 0 for the right answer, less the further away it is.
    """

    leased: Leased
    answers: np.ndarray
    rewards: np.ndarray


GRAPH = nnx.graphdef(Policy(nnx.Rngs(0)))
OPTIMIZER = optax.adam(0.05)


@jax.jit
def sample(weights: Any, digits: jax.Array, key: jax.Array) -> jax.Array:
    """A group of answers to one prompt."""
    return jax.random.categorical(key, nnx.merge(GRAPH, weights)(digits)[0], shape=(GROUP,))


@jax.jit
def update(weights: Any, moments: Any, digits: jax.Array, answers: jax.Array, rewards: jax.Array) -> tuple[Any, Any]:
    """One update on some groups of answers, (G, 2) digits, (G, GROUP) answers and rewards: returns the new state."""
    advantages = (rewards - rewards.mean(axis=1, keepdims=True)) / (rewards.std(axis=1, keepdims=True) + 0.1)

    def loss_of(weights: Any) -> jax.Array:
        scores = nnx.merge(GRAPH, weights)(digits)
        return -(advantages * jnp.take_along_axis(scores, answers, axis=1)).mean()

    changes, moments = OPTIMIZER.update(jax.grad(loss_of)(weights), moments)
    return optax.apply_updates(weights, changes), moments


def roll_out(weights: Any, leased: Leased) -> Rollouts:
    """Samples a group of answers; a thread runs this, and large answers take longer."""
    digits, position = leased.examples["digits"], int(leased.positions[0])
    answers = np.asarray(sample(weights, digits, jax.random.key(position)))
    time.sleep(0.0005 * float(answers.mean()))
    rewards = -np.abs(answers - digits.sum())
    return Rollouts(leased, answers, rewards.astype(np.float32))


def save(path: Path, checkpoint: dict[str, Any]) -> None:
    """Replaces the checkpoint at once, so that a run that is killed leaves the old one or the new one."""
    path.with_suffix(".new").write_bytes(pickle.dumps(jax.device_get(checkpoint)))
    path.with_suffix(".new").replace(path)


def train(folder: Path, die_at: int | None) -> None:
    """Trains from the latest checkpoint to the end, or until it kills itself."""
    digits = np.stack(np.divmod(np.arange(100), 10), axis=1)
    data = loadax.from_arrays({"digits": digits}).shuffle(seed=0)
    loader = loadax.Dataloader(data, batch_size=1, num_epochs=EPOCHS)
    path = folder / "checkpoint.pickle"
    if path.exists():
        checkpoint = pickle.loads(path.read_bytes())  # noqa: S301 # this program wrote it
        waiting = sum(stop - start for start, stop in checkpoint["lease"]["lease"]["unfinished"])
        trained = len(checkpoint["trained"])
        print(f"goes on at update {checkpoint['updates']}: {trained} prompts trained on, {waiting} waiting", flush=True)
    else:
        weights = nnx.state(Policy(nnx.Rngs(0)))
        checkpoint = {"weights": weights, "moments": OPTIMIZER.init(weights), "lease": 0, "trained": [], "updates": 0}
    running: set[Future[Rollouts]] = set()
    with ThreadPoolExecutor(8) as threads, loader.lease(checkpoint["lease"]) as lease:
        while True:
            while len(running) < IN_FLIGHT and (leased := next(lease, None)) is not None:
                running.add(threads.submit(roll_out, checkpoint["weights"], leased))
            ready = [future for future in running if future.done()][:GROUPS]
            if len(ready) < min(GROUPS, len(running)):
                wait(running.difference(ready), return_when=FIRST_COMPLETED)
                continue
            if not ready:
                break
            if checkpoint["updates"] == die_at:
                os.kill(os.getpid(), signal.SIGKILL)
            running.difference_update(ready)
            groups = [future.result() for future in ready]
            batch = [
                np.concatenate([group.leased.examples["digits"] for group in groups]),
                np.stack([group.answers for group in groups]),
                np.stack([group.rewards for group in groups]),
            ]
            weights, moments = update(checkpoint["weights"], checkpoint["moments"], *batch)
            positions = [int(group.leased.positions[0]) for group in groups]
            lease.ack(positions)  # they are in the weights now
            checkpoint = {
                "weights": weights,
                "moments": moments,
                "trained": checkpoint["trained"] + positions,
                "updates": checkpoint["updates"] + 1,
                "lease": lease.get_state(),
            }
            if checkpoint["updates"] % SAVE_EVERY == 0:
                save(path, checkpoint)
    save(path, checkpoint)
    assert sorted(checkpoint["trained"]) == list(range(EPOCHS * len(digits))), "a prompt was lost or repeated"
    likeliest = nnx.merge(GRAPH, checkpoint["weights"])(jnp.asarray(digits)).argmax(axis=1)
    right = int((likeliest == digits.sum(axis=1)).sum())
    print(f"{len(checkpoint['trained'])} prompts, each trained on once; {right} of {len(digits)} sums are right")


def main() -> int:
    """Trains; without `--checkpoints`, kills the run once and goes on."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--checkpoints", type=Path, metavar="FOLDER", help="where the checkpoint is saved")
    parser.add_argument("--die-at", type=int, metavar="UPDATE", help="kill this process before an update")
    options = parser.parse_args()
    if options.checkpoints:
        options.checkpoints.mkdir(parents=True, exist_ok=True)
        train(options.checkpoints, options.die_at)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--checkpoints", folder]
        killed = subprocess.run([*command, "--die-at", str(KILLED_AT)], check=False).returncode
        print(f"killed before update {KILLED_AT}" if killed == -signal.SIGKILL else f"ended with {killed}", flush=True)
        return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
