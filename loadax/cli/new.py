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
    text = script_text(find_opener(options))
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
        pack = f"data.map(lambda example: example[{_key(documents[0])}]).pack(256)"
        opened += f"data = {pack}  # documents of any length become rows of 256\n"
        return _script(opener, opened, "tokens", tokens='batch["tokens"]')
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
        return _script(opener, opened, "tokens", tokens=documents[0].code)
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


def _rows(opener: Opener, opened: str, leaves: list[_Leaf]) -> str:
    numbers = [leaf for leaf in leaves if leaf.numeric]
    scalars = [leaf for leaf in numbers if not leaf.shape]
    named = [leaf for leaf in scalars if _key(leaf).strip("'\"").lower() in _TARGETS]
    target = (named or scalars or numbers)[-1]
    inputs = [leaf for leaf in numbers if leaf is not target] or [target]
    features = ", ".join(f"flat({leaf.code})" for leaf in inputs)
    return _script(opener, opened, "rows", features=features, target=f"flat({target.code})", what=_quoted(target.name))


def _script(opener: Opener, opened: str, kind: str, **names: str) -> str:
    """The script around a model: fills in the templates `script.txt` and `script_KIND.txt`."""
    whole, model = (Path(__file__).with_name(f"{name}.txt").read_text("utf-8") for name in ("script", f"script_{kind}"))
    own = f"import {opener.function.partition(':')[0]}\n" if opener.path is None else ""
    source = _quoted(redact(opener.path or opener.function))
    return whole.format(source=source, own=own, opened=opened, model=model.format(**names))


def _quoted(text: str) -> str:
    """A text as it stands within a docstring."""
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
