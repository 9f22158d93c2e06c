"""Batches bucketed by length beside tf.data's `bucket_by_sequence_length`, in turns.

python benchmarks/buckets.py [--rows 67349] [--rounds 7] [--json FILE]

- "sentences": as flax's example sst2 has them, in batches of 64, with a bucket for every 8 tokens up to 64.
- "documents": of up to 512 tokens, in batches of as many tokens: 128: 512, 256: 256, 512: 128.

Both shuffle, pad each row to the length of its bucket, add its length, and put the batch on a device. tf.data shuffles
in a buffer of 10,000 rows, and needs tensorflow (`pip install tensorflow-cpu`). "padded" is loadax with all rows padded
to the longest bucket. Each round measures all of them, one after the other; a ratio is the median of the rounds'.
"""

import argparse
import json
import os
import statistics
from collections.abc import Callable, Generator
from functools import partial
from itertools import islice
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import jax
import numpy as np
from jax.sharding import AxisType
from turns import machine

from loadax import Buckets, Dataloader, Dataset, from_documents

try:
    import tensorflow as tf
except ImportError:
    tf = None

Contestant = Callable[[], Generator[Any, None, None]]
CASES: dict[str, tuple[float, dict[int, int]]] = {  # median length, and batch sizes by length
    "sentences": (10, dict.fromkeys(range(8, 65, 8), 64)),
    "documents": (120, {128: 512, 256: 256, 512: 128}),
}
_READ_AHEAD = 12  # batches at the start that are not timed


def documents(rows: int, median: float, longest: int) -> tuple[Any, Any]:
    """Tokens of all documents, and where they end."""
    lengths = np.clip(np.random.default_rng(0).lognormal(np.log(median), 0.7, rows), 1, longest).astype(np.int64)
    return np.arange(1, int(lengths.sum()) + 1, dtype=np.int32), np.cumsum(lengths)


def ours(data: Dataset, sizes: Any) -> Generator[Any, None, None]:
    """Batches of loadax on a device."""
    mesh = jax.make_mesh((1,), ("data",), (AxisType.Auto,), devices=jax.devices()[:1])
    with iter(Dataloader(data.shuffle(seed=0), sizes, num_epochs=None, mesh=mesh)) as batches:
        yield from batches


def theirs(tokens: Any, ends: Any, sizes: dict[int, int]) -> Generator[Any, None, None]:
    """Batches of tf.data on a device."""
    ragged = tf.RaggedTensor.from_row_limits(tokens, ends)
    data = tf.data.Dataset.from_tensor_slices(ragged).repeat().shuffle(10_000, seed=0)
    data = data.map(lambda row: {"tokens": row, "tokens_length": tf.size(row)}, tf.data.AUTOTUNE)
    data = data.bucket_by_sequence_length(
        lambda row: row["tokens_length"],
        [length + 1 for length in sizes],
        [*sizes.values(), 1],  # the last one is of longer rows, of which there are none
        {"tokens": [None], "tokens_length": []},
        pad_to_bucket_boundary=True,
        drop_remainder=True,
    )
    for batch in data.prefetch(tf.data.AUTOTUNE).as_numpy_iterator():
        yield jax.device_put(batch, jax.devices()[0])


def measure(contestants: dict[str, Contestant], batches: int, rounds: int) -> dict[str, list[dict[str, float]]]:
    """By contestant and round: rows a second, processor time of a row in microseconds, and the share of padding."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in contestants}
    for number in range(-1, rounds):
        for name in list(contestants)[:: 1 if number % 2 else -1]:
            running = contestants[name]()
            for _ in range(_READ_AHEAD):  # read while nobody looks
                jax.block_until_ready(next(running))
            rows = entries = 0
            lengths = []
            began, worked = perf_counter(), process_time()
            for batch in islice(running, batches):
                jax.block_until_ready(batch)
                rows, entries = rows + len(batch["tokens"]), entries + batch["tokens"].size
                lengths.append(batch["tokens_length"])
            took, cpu = perf_counter() - began, process_time() - worked
            running.close()
            if number >= 0:
                filled = sum(int(np.asarray(each).sum()) for each in lengths)
                found[name].append({"rows_s": rows / took, "cpu_us": cpu / rows * 1e6, "padding": 1 - filled / entries})
    return found


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=67_349, help="number of rows (default: as many as sst2 has)")
    parser.add_argument("--batches", type=int, default=400, help="batches of a round (default 400)")
    parser.add_argument("--rounds", type=int, default=7, help="rounds (default 7)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="file to write the results to")
    options = parser.parse_args()
    results: dict[str, Any] = {}
    for case, (median, sizes) in CASES.items():
        tokens, ends = documents(options.rows, median, max(sizes))
        data = from_documents({"tokens": tokens}, np.concatenate([[0], ends]))
        even = max(sizes.values()) if len({*sizes.values()}) == 1 else min(sizes.values())
        contestants: dict[str, Contestant] = {
            "loadax": partial(ours, data, Buckets("tokens", sizes)),
            "padded": partial(ours, data.pad({"tokens": max(sizes)}), even),
        }
        if tf is not None:
            contestants["tf.data"] = partial(theirs, tokens, ends, sizes)
        found = measure(contestants, options.batches, options.rounds)
        results[case] = found
        for name, runs in found.items():
            each = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
            ratios = [one["rows_s"] / other["rows_s"] for one, other in zip(found["loadax"], runs, strict=True)]
            print(
                f"{case} {name}: {each['rows_s']:,.0f} rows/s, {each['cpu_us']:.2f} us of CPU a row, "
                f"{each['padding']:.1%} padding; loadax {statistics.median(ratios):.2f} times",
                flush=True,
            )
    if tf is None:
        print("tf.data: tensorflow is not installed")
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(), "buckets": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
