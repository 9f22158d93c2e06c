"""Trains a small language model on the source of Python's standard library, with the sequence cut over devices.

    python examples/language_model.py                 # 8 virtual CPU devices, one process
    python examples/language_model.py --processes 2   # the same training in two processes of 4 devices each: the same losses

The text is on every machine that has Python. It is written as flat files of uint16 tokens, one a byte and one more between files, as
tokenisers leave them, and `loadax.from_tokens` reads windows of it where they lie. On a mesh of 2 x 4 devices,
`P("data", "sequence")` cuts a batch into rows over "data" and into stretches of text over "sequence": loadax reads for each device
just that, so on a cluster a host reads no tokens of other hosts' stretches. Half-way the run is given up, as for a restart, and
another iterator goes on from its state, a few integers in JSON.

The model must do better than a table of which byte follows which. It ends like this, on Python 3.11, after about a minute on two
busy cores:

    step 175: 2.968 bits per byte
    step 200: 2.937 bits per byte
    2.895 bits per byte on 256 held-out windows, where bigrams take 3.461
    training waited 0.006 s of 52.4 s for data (0.0%)

By itself it uses virtual CPU devices. For accelerators: `JAX_PLATFORMS=cuda python examples/language_model.py`.
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
import sysconfig
import tempfile
import time
from collections.abc import Iterable
from itertools import chain, islice
from pathlib import Path
from typing import NoReturn, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P
from numpy.typing import NDArray
from tqdm import tqdm

import loadax
from loadax.sharding import with_sharding_constraint

SEPARATOR = 256  # the token between two files
VOCABULARY = 257
WINDOW = 256  # tokens that a row of a batch predicts
BATCH = 16
EVALUATED = 256  # held-out windows
REPORTED = 25  # steps, between lines
TRAINING_FILES = 4  # into which the tokens to train on are written
GOOD_ENOUGH = 0.9  # of the bigrams' bits per byte, above which this script fails
TIME_LIMIT = 280  # seconds, after which the processes that this one started are ended
STRETCHES = P("data", "sequence")

Tokens = NDArray[np.uint16]
Batch = dict[str, jax.Array]
Bar: TypeAlias = "tqdm[NoReturn]"


def tokenise(files: Iterable[Path]) -> Tokens:
    """The bytes of the files one after the other, each file ended by the separator."""
    parts: list[Tokens] = []
    for file in files:
        parts += [np.frombuffer(file.read_bytes(), np.uint8).astype(np.uint16), np.array([SEPARATOR], np.uint16)]
    return np.concatenate(parts)


def write_tokens(folder: Path) -> Tokens:
    """Writes the standard library's own modules to `train-0.bin` and so on and `held_out.bin`; returns what is to be trained on.

    Every tenth module is held out, so that none of it is in the training data.
    """
    modules = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    tokenise(modules[9::10]).tofile(folder / "held_out.bin")
    train = tokenise(module for number, module in enumerate(modules) if number % 10 != 9)
    # Cut anywhere: the files are one stream, and windows go on from one to the next.
    for number, part in enumerate(np.array_split(train, TRAINING_FILES)):
        part.tofile(folder / f"train-{number}.bin")
    return train


def bits_of_bigrams(train: Tokens, windows: dict[str, Tokens]) -> float:
    """Bits per byte of the table that counts which token follows which, with one added to each count, on the same windows."""
    counts = np.ones((VOCABULARY, VOCABULARY))
    np.add.at(counts, (train[:-1], train[1:]), 1)
    chances = counts / counts.sum(axis=1, keepdims=True)
    return float(-np.mean(np.log2(chances[windows["inputs"], windows["targets"]])))


class Block(nnx.Module):
    """Attention to what came before, then two dense layers, each added to what it was given."""

    def __init__(self, rngs: nnx.Rngs, width: int, heads: int):
        self.heads = heads
        self.norm = nnx.RMSNorm(width, rngs=rngs)
        self.project = nnx.Linear(width, 3 * width, use_bias=False, rngs=rngs)
        self.combine = nnx.Linear(width, width, use_bias=False, rngs=rngs)
        self.norm_again = nnx.RMSNorm(width, rngs=rngs)
        self.widen = nnx.Linear(width, 4 * width, rngs=rngs)
        self.narrow = nnx.Linear(4 * width, width, rngs=rngs)

    def __call__(self, hidden: jax.Array) -> jax.Array:
        """(B, T, width) -> (B, T, width)."""
        rows, length, width = hidden.shape
        projected = self.project(self.norm(hidden)).reshape(rows, length, self.heads, 3 * width // self.heads)
        query, key, value = jnp.split(projected, 3, axis=-1)
        # A device asks for its own stretch, and must see all that may come before: this gathers keys and values over "sequence".
        key, value = with_sharding_constraint((key, value), P("data"))
        seen = jax.nn.dot_product_attention(query, key, value, bias=nearness(length, self.heads), is_causal=True)
        hidden += self.combine(seen.reshape(rows, length, width))
        return hidden + self.narrow(nnx.gelu(self.widen(self.norm_again(hidden))))


def nearness(length: int, heads: int) -> jax.Array:
    """(1, heads, T, T): what is far away counts less, for each head to another degree; so positions need no embedding."""
    slopes = 2.0 ** -jnp.arange(0, 8, 8 / heads)
    distance = jnp.arange(length)[:, None] - jnp.arange(length)
    return -(slopes[:, None, None] * jnp.maximum(distance, 0))[None]


class LanguageModel(nnx.Module):
    """A decoder-only transformer over bytes."""

    def __init__(self, rngs: nnx.Rngs, width: int = 64, heads: int = 4, layers: int = 2):
        self.embed = nnx.Embed(VOCABULARY, width, rngs=rngs)
        self.blocks = nnx.List([Block(rngs, width, heads) for _ in range(layers)])
        self.norm = nnx.RMSNorm(width, rngs=rngs)
        self.predict = nnx.Linear(width, VOCABULARY, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """(B, T) tokens -> (B, T, vocabulary) logits of the token that follows each."""
        hidden = self.embed(tokens)
        for block in self.blocks:
            hidden = block(with_sharding_constraint(hidden, STRETCHES))
        return self.predict(self.norm(hidden))


def bits_per_byte(model: LanguageModel, batch: Batch) -> jax.Array:
    """The mean over a batch, in bits for each token."""
    losses = optax.softmax_cross_entropy_with_integer_labels(model(batch["inputs"]), batch["targets"].astype(jnp.int32))
    return losses.mean() / math.log(2)


@nnx.jit
def train_step(model: LanguageModel, optimizer: nnx.Optimizer[LanguageModel], batch: Batch) -> jax.Array:
    """One step on one global batch; returns its bits per byte."""
    bits, gradients = nnx.value_and_grad(bits_per_byte)(model, batch)
    optimizer.update(model, gradients)
    return bits


evaluate = nnx.jit(bits_per_byte)


@jax.jit
def same(one: Batch, other: Batch) -> jax.Array:
    """Whether two batches are equal, over all devices."""
    return jnp.array([jnp.array_equal(one[name], other[name]) for name in one]).all()


def fit(
    model: LanguageModel, optimizer: nnx.Optimizer[LanguageModel], batches: Iterable[Batch], history: list[float], bar: Bar
) -> None:
    """Trains on the batches, and writes the bits per byte of each step into the history."""
    for batch in batches:
        history.append(float(train_step(model, optimizer, batch)))
        bar.update()
        if len(history) % REPORTED == 0 and jax.process_index() == 0:
            bar.write(f"step {len(history):3}: {np.mean(history[-REPORTED:]):.3f} bits per byte")


def show_stretches(inputs: jax.Array) -> None:
    """Prints which part of a batch each device holds."""
    print(
        f"a batch of inputs is {inputs.shape}, {inputs.nbytes} bytes; each device holds its rows and its stretch of each window"
    )
    for shard in inputs.addressable_shards:
        rows, tokens = (cut.indices(size) for cut, size in zip(shard.index, inputs.shape, strict=True))
        where = f"rows {rows[0]:2} to {rows[1]:2}, tokens {tokens[0]:3} to {tokens[1]:3}"
        print(f"  {shard.device}: {where}, {shard.data.nbytes} bytes")


def train(folder: Path, options: argparse.Namespace) -> float:
    """Trains and evaluates on the current mesh; returns the held-out bits per byte relative to those of bigrams."""
    first = jax.process_index() == 0
    tokens = write_tokens(folder)
    files = [folder / f"train-{number}.bin" for number in range(TRAINING_FILES)]
    data = loadax.from_tokens(files, WINDOW, dtype="uint16", targets=True)
    loader = loadax.Dataloader(data.shuffle(options.seed), batch_size=BATCH, partition=STRETCHES, num_epochs=None)
    model = LanguageModel(nnx.Rngs(options.seed))
    schedule = optax.warmup_cosine_decay_schedule(0, 1e-2, warmup_steps=options.steps // 10, decay_steps=options.steps)
    optimizer = nnx.Optimizer(model, optax.adamw(schedule), wrt=nnx.Param)
    if first:
        show_stretches(loader[0]["inputs"])

    history: list[float] = []
    half = options.steps // 2
    with tqdm(total=options.steps, desc="training", unit="step", mininterval=0.5, leave=False, disable=not first) as bar:
        with loader.iterate() as batches:
            fit(model, optimizer, islice(batches, half), history, bar)
            state = json.dumps(batches.get_state())
            missed = next(batches)
            before = batches.stats()
        with loader.iterate(json.loads(state)) as batches:
            resumed = next(batches)
            assert same(resumed, missed), f"the batch after {state} is another one"
            if first:
                bar.write(f"stopped, and went on with the very batch that came next, from {state}")
            fit(model, optimizer, chain([resumed], islice(batches, options.steps - half - 1)), history, bar)
            after = batches.stats()

    held_out = loadax.from_tokens(folder / "held_out.bin", WINDOW, dtype="uint16", targets=True).shuffle(options.seed)[:EVALUATED]
    evaluation = loadax.Dataloader(held_out, batch_size=BATCH, partition=STRETCHES)
    bits = float(np.mean([float(evaluate(model, batch)) for batch in evaluation]))
    bigrams = bits_of_bigrams(tokens, held_out.read(np.arange(EVALUATED)))
    if first:
        waited, elapsed = before.wait + after.wait, before.elapsed + after.elapsed
        print(f"{bits:.3f} bits per byte on {EVALUATED} held-out windows, where bigrams take {bigrams:.3f}")
        print(f"training waited {waited:.3f} s of {elapsed:.1f} s for data ({waited / elapsed:.1%})")
        if options.losses:
            options.losses.write_text(json.dumps(history))
    return bits / bigrams


def parse() -> argparse.Namespace:
    """The command line."""
    summary, _, story = (__doc__ or "").partition("\n\n")
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=summary, epilog=story, formatter_class=form)
    parser.add_argument("--steps", type=int, default=200, help="batches to train on (default 200)")
    parser.add_argument("--seed", type=int, default=0, help="of the order and the first weights (default 0)")
    share = f"share of the bigrams' bits per byte to exit with 0 (default {GOOD_ENOUGH})"
    parser.add_argument("--at-most", type=float, default=GOOD_ENOUGH, help=share)
    parser.add_argument("--losses", type=Path, metavar="FILE", help="write the bits per byte of every step there, as JSON")
    parser.add_argument("--processes", type=int, default=1, choices=(1, 2, 4, 8), help="start that many and train in all of them")
    join = "be process NUMBER of --processes that meet at ADDRESS (host:port of process 0); --processes does this for you"
    parser.add_argument("--join", nargs=2, metavar=("ADDRESS", "NUMBER"), help=join)
    options = parser.parse_args()
    if options.steps < 2:
        parser.error(f"--steps {options.steps}: pass 2 or more, since the run stops half-way and goes on")
    return options


def start_processes(count: int) -> int:
    """Runs this script `count` times as one JAX run on this machine; returns its exit status. They end when this one does."""
    with socket.socket() as probe:  # a port that is free now
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    devices = int(os.environ["JAX_NUM_CPU_DEVICES"]) // count
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices)}
    commands = [[sys.executable, *sys.argv, "--join", address, str(number)] for number in range(count)]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # In sessions of their own, so that Ctrl-C reaches this process alone, and it ends the others.
    children = [subprocess.Popen(command, env=environment, start_new_session=True) for command in commands]
    deadline = time.monotonic() + TIME_LIMIT
    try:
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
    """Gloo, over which CPU processes talk, reports every connection on file descriptor 1: Python's output gets one of its own."""
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
    devices = np.array(jax.devices())
    sequence = math.gcd(len(devices), 4)  # 2 x 4 on 8 devices
    # The devices of one process stand below each other, so that processes differ in the stretches they hold: long texts are what a
    # sequence axis is for, and no process then reads a whole one.
    mesh = Mesh(devices.reshape(sequence, -1).T, ("data", "sequence"), axis_types=(AxisType.Auto,) * 2)
    with tempfile.TemporaryDirectory() as folder, jax.set_mesh(mesh):
        share = train(Path(folder), options)
    return 0 if share <= options.at_most else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        sys.exit(130)
