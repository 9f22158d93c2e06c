"""Trains a small Flax model on real handwritten digits, on a mesh of 2 x 4 devices, in one process or in several.

    python examples/digits.py                 # 8 virtual CPU devices, one process
    python examples/digits.py --processes 2   # the same training in two processes of 4 devices each: the same losses
    python examples/digits.py --checkpoints runs/digits   # saves as it goes; the same line again resumes

The digits are 1,797 scans of 8 x 8 pixels that come inside scikit-learn, so nothing is downloaded. Batches are cut over
the mesh's "data" axis and weights over its "model" axis, as in Flax's guide "Scale up on multiple devices". The
training loop does not depend on the number of processes: loadax gives each its shard of the same global batches.

It ends like this, after about 10 seconds on two cores:

    loss 0.024895 in the last of 20 epochs
    accuracy 0.9845 on 386 held-out digits
    training waited 0.043 s of 3.6 s for data (1.2%)

With `--checkpoints`, Orbax saves the weights, the optimizer and the position in the data as training goes on, in
the background. A run that was killed goes on from the last checkpoint that is whole, on any mesh and with any number of
processes, and ends with the same loss. To see that:

    python examples/digits.py --checkpoints /tmp/digits --processes 2 --die-at 205
    JAX_NUM_CPU_DEVICES=4 python examples/digits.py --checkpoints /tmp/digits

By default it uses virtual CPU devices. For accelerators: `JAX_PLATFORMS=cuda python examples/digits.py`.
"""

import os

# Before JAX is imported, which reads them once. What the user has set stays.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")

import argparse
import json
import math
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from numpy.typing import NDArray
from orbax.checkpoint import v1 as ocp
from sklearn.datasets import load_digits
from tqdm import tqdm

import loadax

GOOD_ENOUGH = 0.97  # held-out accuracy, below which this script fails
SAVE_EVERY = 10  # steps
TIME_LIMIT = 240  # seconds, after which the processes that this one started are ended


class Classifier(nnx.Module):
    """Two hidden layers; the wide one is cut over the "model" axis, so each device holds a quarter of its weights."""

    def __init__(self, rngs: nnx.Rngs, width: int = 512):
        self.norm = nnx.LayerNorm(64, rngs=rngs)
        columns, rows = {"out_sharding": P(None, "model")}, {"out_sharding": P("model", None)}
        self.widen = nnx.Linear(
            64, width, kernel_metadata=columns, bias_metadata={"out_sharding": P("model")}, rngs=rngs
        )
        self.narrow = nnx.Linear(width, 128, kernel_metadata=rows, rngs=rngs)
        self.norm_again = nnx.LayerNorm(128, rngs=rngs)
        self.classify = nnx.Linear(128, 10, rngs=rngs)

    def __call__(self, image: jax.Array) -> jax.Array:
        """(B, 64) pixels of 0 to 16 -> (B, 10) logits."""
        hidden = nnx.gelu(self.narrow(nnx.gelu(self.widen(self.norm(image)))))
        return self.classify(self.norm_again(hidden))


@nnx.jit
def train_step(model: Classifier, optimizer: nnx.Optimizer[Classifier], batch: dict[str, jax.Array]) -> jax.Array:
    """One step on one global batch; returns its mean loss."""

    def loss_of(model: Classifier) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(model(batch["image"]), batch["label"]).mean()

    loss, gradients = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, gradients)
    return loss


@nnx.jit
def count_correct(model: Classifier, batch: dict[str, jax.Array]) -> jax.Array:
    """Number of real rows of a padded batch that the model classifies correctly."""
    right = model(batch["image"]).argmax(axis=-1) == batch["label"]
    return jnp.sum(right & batch["mask"])


def add_noise(example: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """A noisier scan.

    `rng` follows from seed, epoch and row alone, so the noise is the same on any mesh and any host.
    """
    return {**example, "image": example["image"] + rng.normal(0, 3, 64)}


def train_state(model: Classifier, optimizer: nnx.Optimizer[Classifier], losses: NDArray[np.float32]) -> dict[str, Any]:
    """What a checkpoint holds beside the position in the data: weights, optimizer, and the losses so far."""
    return {
        "model": nnx.to_pure_dict(nnx.state(model)),
        "optimizer": nnx.to_pure_dict(nnx.state(optimizer)),
        "losses": losses,
    }


def restore(
    checkpointer: ocp.training.Checkpointer,
    model: Classifier,
    optimizer: nnx.Optimizer[Classifier],
    losses: NDArray[np.float32],
    batches: loadax.DataIterator,
) -> None:
    """Loads the newest checkpoint onto the current mesh, and sets the iterator to the step behind it."""
    everywhere = NamedSharding(batches.mesh, P())

    def placed(leaf: jax.Array | NDArray[np.float32]) -> Any:
        """The leaf as it will be: new scalars are on one device, and their checkpoint on all."""
        if isinstance(leaf, np.ndarray):
            return leaf
        sharding = leaf.sharding if isinstance(leaf.sharding, NamedSharding) else everywhere
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    target = jax.tree.map(placed, train_state(model, optimizer, losses))
    loaded = checkpointer.load_checkpointables(None, {"train": target, "data": batches})["train"]
    nnx.update(model, loaded["model"])
    nnx.update(optimizer, loaded["optimizer"])
    losses[:] = loaded["losses"]


def train(options: argparse.Namespace) -> float:
    """Trains and evaluates on the current mesh; returns the held-out accuracy."""
    first = jax.process_index() == 0  # the one that prints
    digits = load_digits()
    data = loadax.from_arrays({"image": digits.data, "label": digits.target})
    train_data, held_out = data.split(0.8)
    loader = loadax.Dataloader(
        train_data.shuffle(options.seed).map(add_noise, rng=True, seed=options.seed),
        batch_size=64,  # rows of the global batch, however many processes and devices there are
        partition=P("data"),
        num_epochs=options.epochs,
    )
    model = Classifier(nnx.Rngs(options.seed))
    schedule = optax.cosine_decay_schedule(3e-3, decay_steps=len(loader))
    optimizer = nnx.Optimizer(model, optax.adamw(schedule, weight_decay=1e-2), wrt=nnx.Param)
    if first:
        print("a batch of images, (64, 64): each device holds the rows of its 'data' index")
        jax.debug.visualize_array_sharding(loader[0]["image"])

    losses = np.zeros(len(loader), np.float32)
    with ExitStack() as stack:
        batches = stack.enter_context(loader.iterate())
        checkpointer = None
        if options.checkpoints:
            checkpointer = stack.enter_context(ocp.training.Checkpointer(options.checkpoints.absolute()))
            if checkpointer.latest is not None:
                restore(checkpointer, model, optimizer, losses, batches)
        bar = stack.enter_context(
            tqdm(
                initial=batches.step,
                total=len(loader),
                desc="training",
                unit="step",
                mininterval=0.5,
                disable=not first,
            )
        )
        unread: dict[int, jax.Array] = {}  # losses that may still be computed: reading one would wait for its step
        for step, batch in enumerate(batches, batches.step):
            if step == options.die_at:
                os.kill(os.getpid(), signal.SIGKILL)
            unread[step] = train_step(model, optimizer, batch)
            bar.update()
            saves = checkpointer is not None and batches.step % SAVE_EVERY == 0
            if saves or batches.step % loader.steps_per_epoch == 0:
                for read, loss in unread.items():
                    losses[read] = loss
                unread.clear()
                bar.set_postfix(epoch=batches.epoch, loss=f"{losses[step]:.4f}", refresh=False)
            if checkpointer is not None and saves:
                state = train_state(model, optimizer, losses.copy())
                checkpointer.save_checkpointables_async(batches.step, {"train": state, "data": batches})
        waited, elapsed = batches.stats().wait, batches.stats().elapsed
    history = losses.reshape(options.epochs, -1).mean(axis=1).tolist()

    # Every held-out digit once: the last batch is filled up, and "mask" tells real rows from padding.
    evaluation = loadax.Dataloader(held_out, batch_size=128, partition=P("data"), remainder="pad")
    accuracy = sum(int(count_correct(model, batch)) for batch in evaluation) / len(held_out)
    if first:
        print(f"loss {history[-1]:.6f} in the last of {options.epochs} epochs")
        print(f"accuracy {accuracy:.4f} on {len(held_out)} held-out digits")
        print(f"training waited {waited:.3f} s of {elapsed:.1f} s for data ({waited / max(elapsed, 1e-9):.1%})")
        if options.losses:
            options.losses.write_text(json.dumps(history))
    return accuracy


def parse() -> argparse.Namespace:
    """The command line."""
    summary, _, story = (__doc__ or "").partition("\n\n")
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=summary, epilog=story, formatter_class=form)
    parser.add_argument("--epochs", type=int, default=20, help="how often every digit is seen (default 20)")
    parser.add_argument("--seed", type=int, default=0, help="of the order, the noise and the first weights (default 0)")
    parser.add_argument(
        "--at-least", type=float, default=GOOD_ENOUGH, help=f"accuracy to exit with 0 (default {GOOD_ENOUGH})"
    )
    parser.add_argument("--losses", type=Path, metavar="FILE", help="write the mean loss of every epoch there, as JSON")
    parser.add_argument("--checkpoints", type=Path, metavar="FOLDER", help="save there, and resume from what is there")
    parser.add_argument("--die-at", type=int, metavar="STEP", help="be killed before that step, to try resuming")
    parser.add_argument(
        "--processes", type=int, default=1, choices=(1, 2, 4, 8), help="start that many and train in all of them"
    )
    join = (
        "be process NUMBER of --processes that meet at ADDRESS (host:port of process 0); --processes does this for you"
    )
    parser.add_argument("--join", nargs=2, metavar=("ADDRESS", "NUMBER"), help=join)
    options = parser.parse_args()
    if options.epochs < 1:
        parser.error(f"--epochs {options.epochs}: pass 1 or more")
    return options


def start_processes(count: int) -> int:
    """Runs this script `count` times as one JAX run on this machine; returns its exit status.

    They end when this one does.
    """
    with socket.socket() as probe:  # a port that is free now
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    devices = int(os.environ["JAX_NUM_CPU_DEVICES"]) // count
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices)}
    commands = [[sys.executable, *sys.argv, "--join", address, str(number)] for number in range(count)]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    children: list[subprocess.Popen[bytes]] = []
    deadline = time.monotonic() + TIME_LIMIT
    try:
        # In sessions of their own, so that Ctrl-C reaches this process alone, and it ends the others.
        children.extend(subprocess.Popen(command, env=environment, start_new_session=True) for command in commands)
        # Until all have ended, or one has failed: the others would wait for it.
        while None in (codes := [child.poll() for child in children]) and not any(codes):
            if time.monotonic() > deadline:
                print(f"the processes still ran after {TIME_LIMIT} s and were ended", file=sys.stderr)
                return 1
            time.sleep(0.05)
        return max(abs(code or 0) for code in codes)
    finally:
        for child in children:
            child.kill()
            child.wait()


def quieten_gloo() -> None:
    """Gloo, over which CPU processes talk, reports every connection on file descriptor 1.

    Python's output gets one of its own.
    """
    sys.stdout = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def main() -> int:
    """Runs what the command line asks for; returns the exit status."""
    options = parse()
    if options.processes > 1 and options.join is None:
        return start_processes(options.processes)
    if options.join is not None:
        address, number = options.join
        quieten_gloo()
        jax.distributed.initialize(address, num_processes=options.processes, process_id=int(number))
    devices = jax.device_count()
    model_axis = math.gcd(devices, 4)  # 2 x 4 on 8 devices
    mesh = jax.make_mesh((devices // model_axis, model_axis), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    with jax.set_mesh(mesh):
        accuracy = train(options)
    return 0 if accuracy >= options.at_least else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        sys.exit(130)
