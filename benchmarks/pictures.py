"""Pictures with captions, as clip-jax reads them, beside tf.data: `python benchmarks/pictures.py [--pairs 4096]`.

A record of a TFRecord file is a `tf.train.Example`: a JPEG of 288x288, a caption, and the height of the original. Both
leave out pairs whose original is small, shuffle, decode, cut 256x256 at random, pad the caption's bytes to 64 tokens,
and place batches of 64 on eight virtual CPU devices; tf.data parses and filters in every epoch and shuffles 1,024 pairs
at a time, loadax filters once and shuffles all. They take turns in processes of their own.
"""

import argparse
import io
import statistics
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
from contestant import Measured, quieted, serve
from decoders import photographs
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from PIL import Image, ImageOps
from simplejpeg import decode_jpeg
from turns import environment, started

import loadax
from loadax.sources.shards.crc import masked_crc32c
from loadax.sources.shards.example_message import example_class

_SHARDS, _BATCH, _WINDOW = 4, 64, 1024
_STORED, _SIZE, _TOKENS, _LEAST = 288, 256, 64, 200


def write(folder: Path, pairs: int) -> None:
    """Writes the records; of one in four the original was small."""
    pictures = []
    for content in photographs():
        jpg = io.BytesIO()
        ImageOps.fit(Image.open(io.BytesIO(content)), (_STORED, _STORED)).save(jpg, "JPEG", quality=90)
        pictures.append(jpg.getvalue())
    for shard in range(_SHARDS):
        with (folder / f"{shard:05}.tfrecord").open("wb") as file:
            for pair in range(shard, pairs, _SHARDS):
                example, side = example_class()[0](), 150 if pair // _SHARDS % 4 == 0 else 300
                caption = f"photograph {pair} of a set, {side} pixels high".encode()
                add = example.features.feature.add
                add(key="height").value.int64_list.value.append(side)
                add(key="caption").value.bytes_list.value.append(caption)
                add(key="jpg").value.bytes_list.value.append(pictures[pair % len(pictures)])
                record = example.SerializeToString()
                for part in (struct.pack("<Q", len(record)), record):
                    file.write(part + struct.pack("<I", masked_crc32c(part)))


def ours(folder: Path, sharding: Any) -> Callable[[], Iterator[Any]]:
    """Batches of loadax."""

    def example(pair: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        top, left = rng.integers(0, _STORED - _SIZE + 1, 2)
        text = np.frombuffer(pair["caption"], np.uint8, min(len(pair["caption"]), _TOKENS))
        tokens, mask = np.zeros((2, _TOKENS), np.int32)
        tokens[: len(text)], mask[: len(text)] = text, 1
        picture = decode_jpeg(pair["jpg"])[top : top + _SIZE, left : left + _SIZE]
        return {"pixel_values": picture, "input_ids": tokens, "attention_mask": mask}

    pairs = loadax.from_tfrecord(folder, features={"height": "int64", "caption": bytes, "jpg": bytes}, progress=False)
    kept = pairs.filter(lambda pair: bool(pair["height"] >= _LEAST), progress=False)
    rows = kept.map(example, rng=True).shuffle(seed=0)
    return loadax.Dataloader(rows, _BATCH, num_epochs=None, partition=sharding).iterate


def theirs(folder: Path, sharding: Any) -> Callable[[], Iterator[Any]]:
    """Batches of tf.data."""
    import tensorflow as tf

    kinds = {"height": tf.int64, "caption": tf.string, "jpg": tf.string}
    features = {name: tf.io.FixedLenFeature([], kind) for name, kind in kinds.items()}

    def example(pair: Any) -> Any:
        picture = tf.io.decode_jpeg(pair["jpg"], channels=3, dct_method="INTEGER_ACCURATE")
        tokens = tf.cast(tf.io.decode_raw(pair["caption"], tf.uint8, fixed_length=_TOKENS), tf.int32)
        mask = tf.cast(tf.range(_TOKENS) < tf.strings.length(pair["caption"]), tf.int32)
        cut = tf.image.random_crop(picture, (_SIZE, _SIZE, 3))
        return {"pixel_values": cut, "input_ids": tokens, "attention_mask": mask}

    ahead = tf.data.AUTOTUNE
    files = tf.data.Dataset.from_tensor_slices(sorted(map(str, folder.glob("*.tfrecord")))).shuffle(_SHARDS)
    records = files.interleave(tf.data.TFRecordDataset, num_parallel_calls=ahead, deterministic=False)
    pairs = records.map(lambda record: tf.io.parse_single_example(record, features), ahead)
    kept = pairs.filter(lambda pair: pair["height"] >= _LEAST).shuffle(_WINDOW).repeat()
    batches = kept.map(example, ahead, deterministic=False).batch(_BATCH, drop_remainder=True).prefetch(ahead)
    return lambda: (jax.device_put(batch, sharding) for batch in batches.as_numpy_iterator())


def main() -> None:
    """Prints rates and ratios."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=4096, help="number of pairs (default: 4,096)")
    parser.add_argument("--rounds", type=int, default=7, help="rounds (default: 7)")
    parser.add_argument("--seconds", type=float, default=1.0, help="seconds of a turn (default: 1)")
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        answer_commands(*options.serve)
        return
    sides = ["loadax", *(["tf.data"] if find_spec("tensorflow") else [])]
    taken: dict[str, list[tuple[float, float]]] = {side: [] for side in sides}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        write(Path(folder), options.pairs)
        command = [sys.executable, __file__, "--serve", folder]
        children = {side: stack.enter_context(started(side, [*command, side], environment())) for side in sides}
        leaves = {child.ask("leaves") for child in children.values()}
        if len(leaves) > 1:
            raise ValueError(f"the sides make other batches: {leaves}")
        for number in range(-1, options.rounds):  # the first warms up
            for side in sides if number % 2 else sides[::-1]:
                turn = children[side].ask("round", seconds=options.seconds, lead=options.seconds / 2)
                if number >= 0:
                    taken[side].append((turn["rows"] / turn["seconds"], turn["rows"] / turn["cpu_seconds"]))
    for side, rounds in taken.items():
        rate, work = map(statistics.median, zip(*rounds, strict=True))
        print(f"{side:8}{rate:8.0f} rows/s, {1e6 / work:.0f} us of CPU time a row")
    if "tf.data" not in taken:
        print("tf.data: tensorflow is not installed, so there is nothing beside loadax: pip install tensorflow-cpu")
        return
    both = list(zip(taken["loadax"], taken["tf.data"], strict=True))
    wall, cpu = (statistics.median(mine[kind] / other[kind] for mine, other in both) for kind in (0, 1))
    print(f"ratio: {wall:.2f} of tf.data's rows/s, {cpu:.2f} by CPU time")


def answer_commands(folder: str, side: str) -> None:
    """Answers commands from stdin until it ends."""
    answers, mesh = quieted(), Mesh(np.array(jax.devices()), ("data",))
    opened = {"loadax": ours, "tf.data": theirs}[side](Path(folder), NamedSharding(mesh, PartitionSpec("data")))
    measured = Measured(SimpleNamespace(batch_size=_BATCH), Path(folder), opened)

    def answer(do: str, **arguments: Any) -> Any:
        return str(jax.tree.map(jax.typeof, next(opened()))) if do == "leaves" else measured.round(**arguments)

    serve(answers, answer)
    measured.end()


if __name__ == "__main__":
    main()
