"""Cost of packing, and fill of the packed rows, compared with Grain's packers on the same lengths.

python benchmarks/packing.py [--documents 10_000_000] [--seq-len 2048] [--grain 100_000] [--json FILE]
"""

import argparse
import json
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grain
import numpy as np
from grain import experimental
from numpy.typing import NDArray
from turns import machine

from loadax import from_documents
from loadax.plan.pack import ALL, PackOptions, packed, plan_arrays

_BINS = 64  # rows that Grain's packers fill side by side: as many as a batch they make

Lengths = NDArray[np.int64]


def lognormal(count: int, longest: int) -> Lengths:
    """Lengths like those of web documents: 600 on average, many short and a few very long, clipped to a row."""
    drawn = np.random.default_rng(0).lognormal(np.log(600) - 0.5, 1, count)
    return np.clip(drawn, 1, longest).astype(np.int64)


class Ones:
    """Documents of these lengths, for Grain."""

    def __init__(self, lengths: Lengths):
        self._lengths = lengths

    def __len__(self) -> int:
        return len(self._lengths)

    def __getitem__(self, index: Any) -> dict[str, NDArray[np.uint16]]:
        return {"tokens": np.ones(self._lengths[index], np.uint16)}


def grain_fill(lengths: Lengths, seq_len: int, method: str) -> tuple[float, float]:
    """Fill of Grain's rows, and the seconds it takes."""
    parent = grain.MapDataset.source(Ones(lengths)).to_iter_dataset(
        grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    )
    length_struct = {"tokens": seq_len}
    if method == "split":
        dataset = experimental.ConcatThenSplitIterDataset(parent, length_struct=length_struct)
    elif method == "best_fit":
        dataset = experimental.BestFitPackIterDataset(parent, length_struct=length_struct, num_packing_bins=_BINS)
    else:
        dataset = experimental.FirstFitPackIterDataset(parent, length_struct=length_struct, num_packing_bins=_BINS)
    began = time.perf_counter()
    rows = sum(1 for _ in dataset)
    return float(lengths.sum() / (rows * seq_len)), time.perf_counter() - began


def loadax_fill(lengths: Lengths, seq_len: int, method: Any) -> tuple[float, float]:
    """Fill of loadax's rows, and the seconds to plan them."""
    began = time.perf_counter()
    options = PackOptions({ALL: seq_len}, method, "error", 1 << 20)
    (plan,) = packed(options, plan_arrays(lengths[:, None], options), lengths[:, None])
    return float(lengths.sum() / (plan.size * seq_len)), time.perf_counter() - began


def report(documents: int, seq_len: int, grain_documents: int, taken: dict[str, Any]) -> Iterator[str]:
    """Lines of the tables, whose figures it adds to `taken`."""
    few, many = lognormal(grain_documents, seq_len), lognormal(documents, seq_len)
    yield f"{grain_documents} documents into rows of {seq_len}"
    yield f"{'method':<10} {'loadax full':>12} {'planned in':>11} {'Grain full':>11} {'packed in':>10}"
    for method in ("split", "first_fit", "best_fit"):
        ours, took = loadax_fill(few, seq_len, method)
        other, other_took = grain_fill(few, seq_len, method)
        taken[f"{method} beside Grain"] = {
            "documents": grain_documents,
            "full": ours,
            "plan_seconds": took,
            "grain_full": other,
            "grain_seconds": other_took,
        }
        yield f"{method:<10} {ours:>12.3%} {took:>10.2f}s {other:>11.3%} {other_took:>9.1f}s"
    yield ""
    yield f"{documents} documents into rows of {seq_len}"
    yield (
        f"{'method':<10} {'full':>9} {'planned in':>11} {'peak memory':>12} {'opened again':>13} {'read, Mtoken/s':>15}"
    )
    tokens = np.zeros(int(many.sum()), np.uint8)
    data = from_documents(tokens, np.concatenate([[0], np.cumsum(many)]))
    for method in ("split", "first_fit", "best_fit"):
        full, took = loadax_fill(many, seq_len, method)
        tracemalloc.start()
        loadax_fill(many, seq_len, method)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        with tempfile.TemporaryDirectory() as folder:
            options: dict[str, Any] = {"method": method, "index": Path(folder) / "index", "progress": False}
            data.pack(seq_len, **options)
            opened = seconds(lambda: data.pack(seq_len, **options))  # noqa: B023 - called at once
            again = data.pack(seq_len, **options)
            rows = np.random.default_rng(1).integers(0, len(again), 512)
            again.read(rows)
            read = seconds(lambda: again.read(rows))  # noqa: B023 - called at once
        taken[method] = {
            "documents": documents,
            "full": full,
            "plan_seconds": took,
            "peak_memory": peak,
            "open_seconds": opened,
            "tokens_per_second": 512 * seq_len / read,
        }
        yield (
            f"{method:<10} {full:>9.3%} {took:>10.2f}s {peak / 1e6:>9.0f} MB {opened * 1000:>10.1f} ms "
            f"{512 * seq_len / read / 1e6:>15.0f}"
        )


def seconds(work: Callable[[], object]) -> float:
    """Seconds of one call."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--documents", type=int, default=10_000_000)
    parser.add_argument("--seq-len", type=int, default=2048)
    parser.add_argument(
        "--grain", type=int, default=100_000, help="documents for the comparison with Grain, which reads each one"
    )
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    arguments = parser.parse_args()
    taken: dict[str, Any] = {}
    for line in report(arguments.documents, arguments.seq_len, arguments.grain, taken):
        print(line, flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps({"machine": machine(), "packing": taken}, indent=1) + "\n")


if __name__ == "__main__":
    main()
