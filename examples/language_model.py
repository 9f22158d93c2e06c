"""Trains a small language model on the source of Python's standard library, with the sequence sharded over devices.

    python examples/language_model.py                                 # 8 virtual CPU devices, one process
    python examples/language_model.py --processes 2                   # in two processes of 4 devices each: the same
    losses python examples/language_model.py --processes 2 --resume-with 1   # begun in two, ended in a fresh one: the
    same losses

The text is on every machine that has Python. Documents are the paragraphs between blank lines, mostly functions, with a
token per byte, concatenated in flat files. `pack` packs them into rows of inputs and targets: `segment_ids` and
`positions` identify the document of a token, and attention and loss stay inside it. Two such datasets are mixed by
weights that change during training, and batches grow; the step is compiled for both sizes, from `loader.specs`, before
training begins.

On a mesh of 2 x 4 devices, `P("data", "sequence")` shards a batch by rows over "data" and by text over "sequence":
loadax reads only that for each device, so on a cluster a host reads no tokens of other hosts' devices. Half-way the run
stops, and resumes from the loader's state, a few integers in JSON: by default in another iterator, with `--resume-with`
in any number of new processes, which get only weights and state.

The model must beat a bigram table. It ends like this, on Python 3.11, after a minute on two busy cores:

    step 175: 3.001 bits per byte
    step 200: 3.037 bits per byte
    training waited 0.014 s of 66.4 s for data (0.0%)
    2.988 bits per byte on 256 held-out rows, where bigrams take 3.524

By default it uses virtual CPU devices. For accelerators: `JAX_PLATFORMS=cuda python examples/language_model.py`.
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
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import AxisType, Mesh, PartitionSpec as P
from numpy.typing import NDArray
from tqdm import tqdm

import loadax
from loadax.sharding import with_sharding_constraint

PACKAGES = ("asyncio", "email", "http", "json", "logging", "multiprocessing", "unittest", "urllib", "xml")
END = 256  # the token behind a document
VOCABULARY = 257
SEQUENCE = 256  # tokens of a row
BATCH = 16  # rows, and half as many at first
EVALUATED = 256  # held-out rows
REPORTED = 25  # steps, between lines
GOOD_ENOUGH = 0.9  # of the bigrams' bits per byte, above which this script fails
TIME_LIMIT = 280  # seconds, after which the processes that this one started are ended
STATE = "state.json"
STRETCHES = P("data", "sequence")

Batch = dict[str, jax.Array]
Trained: TypeAlias = "tuple[LanguageModel, nnx.Optimizer[LanguageModel]]"


def write_documents(modules: Iterable[Path], file: Path) -> None:
    """Writes the paragraphs of the modules to `file`, as flat uint16, and the start of each one to a file beside it."""
    texts = (text for module in modules for text in module.read_bytes().split(b"\n\n") if text.strip())
    documents = [np.array([*text, END], np.uint16) for text in texts]
    np.concatenate(documents).tofile(file)
    np.save(file.with_suffix(".npy"), np.cumsum([0, *map(len, documents)]))


def write_library(folder: Path) -> None:
    """Writes the standard library's own modules in two groups.

    Every tenth module is held out, so that none of it is trained on.
    """
    library = Path(sysconfig.get_path("stdlib"))
    packages = chain.from_iterable(library.glob(f"{package}/**/*.py") for package in PACKAGES)
    for name, found in (("modules", library.glob("*.py")), ("packages", packages)):
        files = sorted(found)
        write_documents(files[9::10], folder / f"{name}-held-out.bin")
        write_documents((file for number, file in enumerate(files) if number % 10 != 9), folder / f"{name}.bin")


def packed_rows(file: Path, seed: int) -> loadax.Dataset:
    """The documents of a file, packed into rows, in another order in each epoch."""
    documents = loadax.from_documents(file, file.with_suffix(".npy"), dtype="uint16")
    return documents.shuffle(seed).pack(SEQUENCE, method="best_fit", long="cut", targets="shift").shuffle(seed)


def bits_of_bigrams(train: Iterable[loadax.Dataset], held_out: loadax.Dataset) -> float:
    """Bits per byte of a table of bigram counts, with one added to each count, on held-out rows."""

    def pairs(dataset: loadax.Dataset) -> tuple[NDArray[np.uint16], NDArray[np.uint16]]:
        rows = dataset.read(np.arange(len(dataset)))
        return rows["inputs"][rows["loss_mask"]], rows["targets"][rows["loss_mask"]]

    counts = np.ones((VOCABULARY, VOCABULARY))
    for dataset in train:
        np.add.at(counts, pairs(dataset), 1)
    chances = counts / counts.sum(axis=1, keepdims=True)
    return float(-np.mean(np.log2(chances[pairs(held_out)])))


class Block(nnx.Module):
    """Attention as far as `reach` lets it, then two dense layers, each added to what it was given."""

    def __init__(self, rngs: nnx.Rngs, width: int, heads: int):
        self.heads = heads
        self.norm = nnx.RMSNorm(width, rngs=rngs)
        self.project = nnx.Linear(width, 3 * width, use_bias=False, rngs=rngs)
        self.combine = nnx.Linear(width, width, use_bias=False, rngs=rngs)
        self.norm_again = nnx.RMSNorm(width, rngs=rngs)
        self.widen = nnx.Linear(width, 4 * width, rngs=rngs)
        self.narrow = nnx.Linear(4 * width, width, rngs=rngs)

    def __call__(self, hidden: jax.Array, reach: jax.Array) -> jax.Array:
        """(B, T, width) -> (B, T, width)."""
        rows, length, width = hidden.shape
        projected = self.project(self.norm(hidden)).reshape(rows, length, self.heads, 3 * width // self.heads)
        query, key, value = jnp.split(projected, 3, axis=-1)
        # A device asks for its own stretch, and must see all that may come before: this gathers keys and values over
        # "sequence".
        key, value = with_sharding_constraint((key, value), P("data"))
        seen = jax.nn.dot_product_attention(query, key, value, bias=reach)
        hidden += self.combine(seen.reshape(rows, length, width))
        return hidden + self.narrow(nnx.gelu(self.widen(self.norm_again(hidden))))


def attention_reach(segments: jax.Array, positions: jax.Array, heads: int) -> jax.Array:
    """(B, T), (B, T) -> (B, heads, T, T): what is added to the scores of attention.

    A token sees its own segment up to itself, nothing else. What is far away counts less, for each head to another
    degree; so positions need no embedding.
    """
    key_segments, key_positions = with_sharding_constraint((segments, positions), P("data"))
    distance = positions[:, :, None] - key_positions[:, None, :]
    seen = (segments[:, :, None] == key_segments[:, None, :]) & (distance >= 0)
    slopes = 2.0 ** -jnp.arange(0, 8, 8 / heads)
    return jnp.where(seen[:, None], -slopes[:, None, None] * distance[:, None], -jnp.inf)


class LanguageModel(nnx.Module):
    """A decoder-only transformer over bytes."""

    def __init__(self, rngs: nnx.Rngs, width: int = 64, heads: int = 4, layers: int = 2):
        self.heads = heads
        self.embed = nnx.Embed(VOCABULARY, width, rngs=rngs)
        self.blocks = nnx.List([Block(rngs, width, heads) for _ in range(layers)])
        self.norm = nnx.RMSNorm(width, rngs=rngs)
        self.predict = nnx.Linear(width, VOCABULARY, rngs=rngs)

    def __call__(self, batch: Batch) -> jax.Array:
        """(B, T) tokens, with their segments and positions -> (B, T, vocabulary) logits of the next tokens."""
        hidden = self.embed(batch["inputs"])
        reach = attention_reach(batch["segment_ids"], batch["positions"], self.heads)
        for block in self.blocks:
            hidden = block(with_sharding_constraint(hidden, STRETCHES), reach)
        return self.predict(self.norm(hidden))


def bits_and_count(model: LanguageModel, batch: Batch) -> tuple[jax.Array, jax.Array]:
    """The bits of all tokens that are to be predicted from the one before, and how many they are."""
    losses = optax.softmax_cross_entropy_with_integer_labels(model(batch), batch["targets"].astype(jnp.int32))
    return jnp.sum(losses, where=batch["loss_mask"]) / math.log(2), batch["loss_mask"].sum()


def train_step(model: LanguageModel, optimizer: nnx.Optimizer[LanguageModel], batch: Batch) -> jax.Array:
    """One step on one global batch; returns its bits per byte."""

    def bits_per_byte(model: LanguageModel) -> jax.Array:
        bits, count = bits_and_count(model, batch)
        return bits / count

    bits, gradients = nnx.value_and_grad(bits_per_byte)(model)
    optimizer.update(model, gradients)
    return bits


evaluate = nnx.jit(bits_and_count)


@jax.jit
def same(one: Batch, other: Batch) -> jax.Array:
    """Whether two batches are equal, over all devices."""
    return jnp.array([jnp.array_equal(one[name], other[name]) for name in one]).all()


def compile_steps(loader: loadax.Dataloader, trained: Trained) -> dict[int, Callable[[Batch], jax.Array]]:
    """The training step for each size of batch, compiled before training begins: the loader tells what will come."""
    # weights are whole on every device, batches cut as they come
    step = nnx.jit(train_step, in_shardings=(P(), P(), None))
    return {
        len(spec["inputs"]): partial(step.lower(*trained, spec).compile(), *trained) for spec in loader.specs.values()
    }


def say(line: str) -> None:
    """Prints a line, above the progress bar; the first process speaks for all."""
    if jax.process_index() == 0:
        tqdm.write(line)


def show_batches(loader: loadax.Dataloader) -> None:
    """Prints how large batches are from which step on, and which part of the first one this process's devices hold."""
    for step, spec in loader.specs.items():
        say(f"from step {step:3} on, batches are {spec['inputs'].shape}")
    tokens = loader[0]["inputs"]
    say(f"of the first one's {tokens.nbytes} bytes of tokens, each device holds its rows and its columns")
    for shard in tokens.addressable_shards:
        rows, stretch = (cut.indices(size) for cut, size in zip(shard.index, tokens.shape, strict=True))
        where = f"rows {rows[0]} to {rows[1]}, tokens {stretch[0]:3} to {stretch[1]:3}"
        say(f"  {shard.device}: {where}, {shard.data.nbytes} bytes")


def save(folder: Path, trained: Trained, state: str, history: list[float]) -> None:
    """Saves a checkpoint for other processes to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "weights.npz", *map(np.asarray, jax.tree.leaves(nnx.state(trained))))
    (folder / STATE).write_text(json.dumps([state, history]))


def restore(folder: Path, trained: Trained) -> tuple[str, list[float]]:
    """Restores a checkpoint of `save`; returns the loader's state, and the bits per byte of the steps so far."""
    with np.load(folder / "weights.npz") as weights:
        nnx.update(trained, jax.tree.unflatten(jax.tree.structure(nnx.state(trained)), list(weights.values())))
    state, history = json.loads((folder / STATE).read_text())
    return state, history


def fit(loader: loadax.Dataloader, trained: Trained, options: argparse.Namespace) -> list[float]:
    """Trains, and returns the bits per byte of each step.

    Half-way it stops. What goes on then knows of what was before only the weights and the loader's state: another
    iterator, or with `--checkpoint` the next call of this function, in other processes.
    """
    half, folder = options.steps // 2, options.checkpoint
    saved = folder is not None and (folder / STATE).exists()
    state, history = restore(folder, trained) if saved else ("0", [])
    stops = [half, options.steps]
    if folder is not None:
        stops = stops[1:] if saved else stops[:1]
    steps = compile_steps(loader, trained)
    waited = elapsed = 0.0
    quiet = jax.process_index() > 0
    with tqdm(
        total=options.steps, initial=len(history), desc="training", unit="step", leave=False, disable=quiet
    ) as bar:
        for stop in stops:
            with loader.iterate(json.loads(state)) as batches:
                for batch in islice(batches, stop - len(history)):
                    if len(history) == half:
                        assert same(batch, loader[half]), f"the batch after {state} is another one"
                        say(f"stopped, and went on with the very batch that came next, from {state}")
                    history.append(float(steps[len(batch["inputs"])](batch)))
                    bar.update()
                    if len(history) % REPORTED == 0:
                        say(f"step {len(history):3}: {np.mean(history[-REPORTED:]):.3f} bits per byte")
                state, stats = json.dumps(batches.get_state()), batches.stats()
            waited, elapsed = waited + stats.wait, elapsed + stats.elapsed
    say(f"training waited {waited:.3f} s of {elapsed:.1f} s for data ({waited / elapsed:.1%})")
    if folder is not None and not saved and not quiet:
        save(folder, trained, state, history)
    return history


def train(folder: Path, options: argparse.Namespace) -> bool:
    """Trains on the current mesh, and evaluates what is trained to the end; returns whether it is good enough."""
    write_library(folder)
    library = {name: packed_rows(folder / f"{name}.bin", options.seed) for name in ("modules", "packages")}
    quarter = options.steps // 4
    weights = {0: {"modules": 0.8, "packages": 0.2}, 3 * quarter: {"modules": 0.5, "packages": 0.5}}
    mixture = loadax.mix(library, weights, options.seed, stop="never", by="step")
    loader = loadax.Dataloader(mixture, batch_size={0: BATCH // 2, quarter: BATCH}, partition=STRETCHES)
    model = LanguageModel(nnx.Rngs(options.seed))
    schedule = optax.warmup_cosine_decay_schedule(0, 1e-2, warmup_steps=options.steps // 10, decay_steps=options.steps)
    optimizer = nnx.Optimizer(model, optax.adamw(schedule), wrt=nnx.Param)
    for name, dataset in library.items():
        say(f"{name}: {dataset}")
    show_batches(loader)
    history = fit(loader, (model, optimizer), options)
    if options.losses and jax.process_index() == 0:
        options.losses.write_text(json.dumps(history))
    if len(history) < options.steps:
        return True

    held_out = loadax.concat([packed_rows(folder / f"{name}-held-out.bin", options.seed) for name in library])
    # A slice is refused, as it would share documents with the rest; nothing else reads the rest here.
    held_out = held_out.shuffle(options.seed).subset_per_epoch(range(EVALUATED))
    evaluation = loadax.Dataloader(held_out, batch_size=BATCH, partition=STRETCHES)
    bits, count = np.sum([jax.device_get(evaluate(model, batch)) for batch in evaluation], axis=0)
    bigrams = bits_of_bigrams(library.values(), held_out)
    say(f"{bits / count:.3f} bits per byte on {EVALUATED} held-out rows, where bigrams take {bigrams:.3f}")
    return bool(bits / count <= options.at_most * bigrams)


def parse() -> argparse.Namespace:
    """The command line."""
    summary, _, story = (__doc__ or "").partition("\n\n")
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=summary, epilog=story, formatter_class=form)
    parser.add_argument("--steps", type=int, default=200, help="batches to train on (default 200)")
    parser.add_argument("--seed", type=int, default=0, help="of the order and the first weights (default 0)")
    share = f"share of the bigrams' bits per byte to exit with 0 (default {GOOD_ENOUGH})"
    parser.add_argument("--at-most", type=float, default=GOOD_ENOUGH, help=share)
    parser.add_argument(
        "--losses", type=Path, metavar="FILE", help="write the bits per byte of every step there, as JSON"
    )
    parser.add_argument(
        "--processes", type=int, default=1, choices=(1, 2, 4, 8), help="start that many and train in all of them"
    )
    again = "train in --processes until half-way, and go on in that many fresh ones"
    parser.add_argument("--resume-with", type=int, choices=(1, 2, 4, 8), help=again)
    stop = "stop half-way and leave all that is needed in FOLDER, or go on from there; --resume-with does both"
    parser.add_argument("--checkpoint", type=Path, metavar="FOLDER", help=stop)
    join = (
        "be process NUMBER of --processes that meet at ADDRESS (host:port of process 0); --processes does this for you"
    )
    parser.add_argument("--join", nargs=2, metavar=("ADDRESS", "NUMBER"), help=join)
    options = parser.parse_args()
    if options.steps < 4:
        parser.error(
            f"--steps {options.steps}: "
            "pass 4 or more, since batches grow after a quarter of them and the run stops half-way"
        )
    return options


def start_processes(count: int, *arguments: str) -> int:
    """Runs this script `count` times as one JAX run on this machine; returns its exit status.

    They end when this one does.
    """
    with socket.socket() as probe:  # a port that is free now
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    devices = int(os.environ["JAX_NUM_CPU_DEVICES"]) // count
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices)}
    command = [sys.executable, *sys.argv, *arguments, "--processes", str(count), "--join", address]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # In sessions of their own, so that Ctrl-C reaches this process alone, and it ends the others.
    children = [
        subprocess.Popen([*command, str(number)], env=environment, start_new_session=True) for number in range(count)
    ]
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
    """Gloo, over which CPU processes talk, reports every connection on file descriptor 1.

    Python's output gets one of its own.
    """
    sys.stdout = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def main() -> int:
    """Runs what the command line asks for; returns the exit status."""
    options = parse()
    if options.resume_with and options.join is None:
        with tempfile.TemporaryDirectory() as folder:
            arguments = ("--checkpoint", folder)
            return start_processes(options.processes, *arguments) or start_processes(options.resume_with, *arguments)
    if options.processes > 1 and options.join is None:
        return start_processes(options.processes)
    if options.join is not None:
        address, number = options.join
        quieten_gloo()
        jax.distributed.initialize(address, num_processes=options.processes, process_id=int(number))
    devices = np.array(jax.devices())
    sequence = math.gcd(len(devices), 4)  # 2 x 4 on 8 devices
    # The devices of one process stand below each other, so that processes differ in the stretches they hold: long texts
    # are what a sequence axis is for, and no process then reads a whole one.
    mesh = Mesh(devices.reshape(sequence, -1).T, ("data", "sequence"), axis_types=(AxisType.Auto,) * 2)
    with tempfile.TemporaryDirectory() as folder, jax.set_mesh(mesh):
        return 0 if train(Path(folder), options) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        sys.exit(130)
