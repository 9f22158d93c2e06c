"""`loadax new`: write a training script for a dataset.

Looks at a dataset, and writes a script that trains a small model on it: over all devices, with a held-out part, exact
evaluation, and a state to resume from.

examples:
  loadax new flowers.parquet train.py && python train.py
  loadax new corpus.bin train.py --seq-len 1024 --dtype uint16
  loadax new photos/ train.py --size 64

The script needs only loadax and JAX. Its model is as small as it can be: one layer. Put yours in its place.

{SOURCES}.
"""

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from loadax.cli.options import add_command
from loadax.cli.source import Opener, add_source_options, find_opener
from loadax.cli.terminal import show
from loadax.core.spec import flatten_spec
from loadax.core.tree import Structure
from loadax.dataset import Dataset
from loadax.errors import ArgumentError
from loadax.redaction import redact
from loadax.sources.stream.source import StreamSource

_BARE = "value"  # name of the leaf of examples that are bare arrays
_TARGETS = ("label", "labels", "target", "targets", "class", "cls", "y")


class _Leaf(NamedTuple):
    """A leaf of an example. `code`: how it is read from an example or a batch, such as `batch["x"]`."""

    name: str
    code: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def numeric(self) -> bool:
        return self.dtype.kind in "biuf"


def add(commands: Any) -> None:
    """Adds `new` to the commands."""
    command = add_command(commands, run)
    add_source_options(command)
    command.add_argument("script", metavar="SCRIPT", help="path of the script to write, which must not exist yet")


def run(options: argparse.Namespace) -> int:
    """Runs the command.

    Raises:
        LoadaxError: When the data can't be read, has no leaf of numbers, or the script exists.
    """
    script = Path(options.script)
    opener = find_opener(options)
    text = script_text(opener)
    try:
        with script.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ArgumentError(
            f"{options.script} can't be written: {error.strerror}; pass the path of a new file in a folder that exists"
        ) from error
    show(f"{script}: written; run it with: python {script}")
    return 0


def script_text(opener: Opener) -> str:
    """The script for a dataset.

    Raises:
        ArgumentError: When its rows are ragged, or no leaf has numbers.
    """
    dataset = opener.open()
    specs, structure = flatten_spec(dataset.spec)
    leaves = [
        _Leaf(path or "the example", f"batch{path or f'[{_BARE!r}]'}", spec.shape, spec.dtype)
        for path, spec in zip(structure.paths, specs, strict=True)
    ]
    ragged = dataset.source.spec is None and any(leaf.shape for leaf in leaves)
    documents = [leaf for leaf in leaves if leaf.dtype.kind in "iu" and len(leaf.shape) == 1]
    opened = _opened(opener, dataset, leaves, structure)
    if ragged and len(documents) == 1:
        return _tokens(opener, opened + _PACK.format(name=_key(documents[0])), 'batch["tokens"]')
    if isinstance(dataset.source, StreamSource):
        raise ArgumentError(
            f"{opener.code} is a stream, and the script needs random access, to hold rows out; pass a dataset that has "
            "it, or begin with the program in the guide to streams"
        )
    if ragged:
        raise ArgumentError(
            f"{opener.code}: rows differ in shape; pass --size for images or --pad-to for records, or "
            "MODULE:FUNCTION that pads, crops or packs them"
        )
    if len(documents) == 1 and len([leaf for leaf in leaves if leaf.numeric]) == 1 and documents[0].shape[0] > 1:
        return _tokens(opener, opened, documents[0].code)
    return _rows(opener, opened, leaves)


def _opened(opener: Opener, dataset: Dataset, leaves: list[_Leaf], structure: Structure) -> str:
    """Lines that open the dataset, name a bare array and drop leaves that are not numbers."""
    text = f"data = {opener.code}\n"
    kept = [leaf for leaf in leaves if leaf.numeric]
    if not kept:
        raise ArgumentError(
            f"{opener.code}: no leaf has numbers, but {', '.join(f'{leaf.name} {leaf.dtype}' for leaf in leaves)}; "
            "pass MODULE:FUNCTION of a dataset whose map decodes them"
        )
    if len(leaves) == 1 and not structure.paths[0]:
        return f'{text}data = data.map(lambda example: {{"{_BARE}": example}})  # a name for the only leaf\n'
    if type(dataset.spec) is not dict or not all(leaf.code.count("[") == 1 for leaf in kept):
        raise ArgumentError(
            f"{opener.code}: examples are not flat dicts, but have the leaves "
            f"{', '.join(leaf.name for leaf in leaves)}; pass MODULE:FUNCTION of a dataset whose map flattens them"
        )
    if len(kept) < len(leaves):
        names = ", ".join(f"{_key(leaf)}: example[{_key(leaf)}]" for leaf in kept)
        text += f"# Without texts, which JAX has no arrays for.\ndata = data.map(lambda example: {{{names}}})\n"
    return text


def _key(leaf: _Leaf) -> str:
    """The key of a leaf of a flat example, as code."""
    return leaf.code.removeprefix("batch[").removesuffix("]")


_PACK = "data = data.map(lambda example: example[{name}]).pack(256)  # documents of any length become rows of 256\n"


def _tokens(opener: Opener, opened: str, tokens: str) -> str:
    return _HEAD.format(
        source=_quoted(redact(opener.path or opener.function)), imports=_imports(opener)
    ) + _TOKENS.format(opened=opened, tokens=tokens, common=_COMMON)


def _rows(opener: Opener, opened: str, leaves: list[_Leaf]) -> str:
    numbers = [leaf for leaf in leaves if leaf.numeric]
    scalars = [leaf for leaf in numbers if not leaf.shape]
    named = [leaf for leaf in scalars if _key(leaf).strip("'\"").lower() in _TARGETS]
    target = (named or scalars or numbers)[-1]
    inputs = [leaf for leaf in numbers if leaf is not target] or [target]
    features = ", ".join(f"flat({leaf.code})" for leaf in inputs)
    return _HEAD.format(
        source=_quoted(redact(opener.path or opener.function)), imports=_imports(opener)
    ) + _ROWS.format(
        opened=opened, features=features, target=f"flat({target.code})", what=_quoted(target.name), common=_COMMON
    )


def _quoted(text: str) -> str:
    """A text as it stands within a docstring."""
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _imports(opener: Opener) -> str:
    own = f"import {opener.function.partition(':')[0]}\n" if opener.path is None else ""
    return f"import jax\nimport jax.numpy as jnp\nimport numpy as np\n\n{own}import loadax\n"


_HEAD = '''\
"""Trains on {source}. Written by `loadax new`; the model is a place for yours."""

import json
from pathlib import Path

{imports}
BATCH_SIZE = 64  # rows of a batch, over all devices and processes together
EPOCHS = 3
LEARNING_RATE = 0.05
CHECKPOINT = Path(__file__).with_suffix(".checkpoint.npz")  # parameters and the next step: delete it to begin again

'''
_ROWS = '''\
{opened}train, test = data.split(0.9, seed=0)
devices = jax.device_count()
batch_size = max(1, min(BATCH_SIZE, len(train)) // devices) * devices


def flat(leaf):
    return leaf.reshape(len(leaf), -1).astype(jnp.float32)


def inputs_and_target(batch):
    """float32[rows, features] and float32[rows, targets]: {what} from the other leaves."""
    return jnp.concatenate([{features}], axis=1), {target}


def predict(params, inputs):
    return (inputs - params["mean"]) / params["scale"] @ params["weights"] + params["bias"]


def loss_of(params, batch):
    inputs, target = inputs_and_target(batch)
    errors = jnp.mean((predict(params, inputs) - target) ** 2, axis=1)
    mask = batch["mask"] if isinstance(batch, dict) and "mask" in batch else jnp.ones_like(errors)
    return jnp.sum(errors * mask), jnp.sum(mask)


def first_params(batch):
    inputs, target = inputs_and_target(batch)
    scale = jnp.std(inputs, axis=0) + 1e-6
    scale = scale * jnp.sqrt(inputs.shape[1])
    weights = jnp.zeros((inputs.shape[1], target.shape[1]))
    return {{"mean": inputs.mean(axis=0), "scale": scale, "weights": weights, "bias": target.mean(axis=0)}}


def trained(params, gradients):
    rates = {{"mean": 0.0, "scale": 0.0, "weights": LEARNING_RATE, "bias": LEARNING_RATE}}
    return {{name: params[name] - rates[name] * gradients[name] for name in params}}
{common}'''
_TOKENS = '''\
{opened}train, test = data.split(0.9, seed=0)
devices = jax.device_count()
batch_size = max(1, min(BATCH_SIZE, len(train)) // devices) * devices
VOCABULARY, WIDTH = 256, 32  # tokens are hashed into this vocabulary: put the size of yours here


def loss_of(params, batch):
    """Sum of the losses of the next tokens, and their number."""
    tokens = {tokens}.astype(jnp.int32) % VOCABULARY
    logits = params["embedding"][tokens[:, :-1]] @ params["output"]
    losses = -jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, 1:, None], axis=-1)[..., 0]
    mask = jnp.ones_like(losses)
    if isinstance(batch, dict) and "loss_mask" in batch:  # the first token of a packed document has none before it
        mask = mask * batch["loss_mask"][:, 1:]
    if isinstance(batch, dict) and "mask" in batch:  # padding of the last batch
        mask = mask * batch["mask"][:, None]
    return jnp.sum(losses * mask), jnp.sum(mask)


def first_params(batch):
    keys = jax.random.split(jax.random.key(0))
    return {{
        "embedding": 0.1 * jax.random.normal(keys[0], (VOCABULARY, WIDTH)),
        "output": 0.1 * jax.random.normal(keys[1], (WIDTH, VOCABULARY)),
    }}


def trained(params, gradients):
    return {{name: params[name] - 10 * LEARNING_RATE * gradients[name] for name in params}}
{common}'''
_COMMON = """

@jax.jit
def train_step(params, batch):
    def mean_loss(params):
        total, count = loss_of(params, batch)
        return total / jnp.maximum(count, 1)

    loss, gradients = jax.value_and_grad(mean_loss)(params)
    return trained(params, gradients), loss


evaluate = jax.jit(loss_of)


def save(params, state):
    arrays = jax.device_get(params)
    if jax.process_index() == 0:
        np.savez(CHECKPOINT, state=json.dumps(state), **arrays)


def load():
    with np.load(CHECKPOINT) as file:
        return {name: jnp.asarray(file[name]) for name in file if name != "state"}, json.loads(str(file["state"]))


def main():
    loader = loadax.Dataloader(train.shuffle(seed=0), batch_size, num_epochs=EPOCHS)
    tests = loadax.Dataloader(test, batch_size, remainder="pad")
    params, start = load() if CHECKPOINT.exists() else (first_params(loader[0]), 0)
    with loader.iterate(start) as batches:
        for batch in batches:
            params, loss = train_step(params, batch)
            if batches.step % loader.steps_per_epoch == 0:
                sums = [evaluate(params, rows) for rows in tests]
                held_out = sum(float(total) for total, _ in sums) / max(1.0, sum(float(count) for _, count in sums))
                print(f"step {batches.step}: loss {float(loss):.4g}, held out {held_out:.4g}")
                save(params, batches.get_state())
        print(batches.report())


if __name__ == "__main__":
    main()
"""
