"""loadax beside Grain and Hugging Face on their own data: `python benchmarks/neighbours.py [PART ...]`.

Both are run in turn, round by round; a figure is the median over rounds of the ratio of their rates within a round, so
that a busy machine slows both. A row is 16 float32 and an int32; there are 20,000, in batches of 256. Parts:

- `huggingface`: a `Dataloader` of a `datasets.Dataset` beside `iter(256)` of it in NumPy's format, in order, and beside
  `ds[rows]`, shuffled; in memory with lists of any and of a fixed length, and mapped from a file.
- `grain-in`: a `Dataloader` of a `grain.MapDataset` beside Grain's own iteration of it, by the best of its options.
- `grain-out`: Grain's iteration of `to_map_dataset(…)` beside that of the same rows in a plain source.
"""

import os

os.environ["JAX_PLATFORMS"] = "cpu"

import argparse
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, final

import datasets
import grain
import numpy as np

import loadax
from loadax.interop.grain import to_map_dataset

_BATCH = 256
_OPTIONS = [(0, 0), (1, 2), (4, 16), (16, 500)]  # threads and elements ahead; the last are Grain's own

Run = Callable[[], Iterable[Any]]


@final
class Rows:
    """The rows, and a plain source of Grain's."""

    def __init__(self, count: int):
        self.x = np.random.default_rng(0).standard_normal((count, 16)).astype(np.float32)
        self.y = np.arange(count, dtype=np.int32)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, row: int) -> Any:
        return {"x": self.x[row], "y": self.y[row]}


def seconds(run: Run) -> float:
    """What it takes to go through all batches."""
    start = time.perf_counter()
    deque(run(), maxlen=0)
    return time.perf_counter() - start


def compare(name: str, ours: Run, theirs: Run, arguments: argparse.Namespace) -> None:
    """Prints the median ratio of rates, its range, and the rates."""
    seconds(ours), seconds(theirs)  # what is done once
    taken = [(seconds(ours), seconds(theirs)) for _ in range(arguments.rounds)]
    ratios = sorted(other / own for own, other in taken)
    own, other = (arguments.rows / statistics.median(times) for times in zip(*taken, strict=True))
    print(
        f"{name:<42} {statistics.median(ratios):6.2f}  ({ratios[0]:.2f} to {ratios[-1]:.2f})  "
        f"{own:>11,.0f} {other:>11,.0f} rows/s",
        flush=True,
    )


def hugging_face(rows: Rows, arguments: argparse.Namespace) -> None:
    """In order and shuffled, in memory and mapped."""
    fixed = datasets.Features({"x": datasets.List(datasets.Value("float32"), length=16), "y": datasets.Value("int32")})
    with tempfile.TemporaryDirectory() as folder:
        memory = datasets.Dataset.from_dict({"x": rows.x, "y": rows.y})
        memory.save_to_disk(folder)
        kinds = {
            "lists in memory": memory,
            "lists of 16 in memory": datasets.Dataset.from_dict({"x": list(rows.x), "y": rows.y}, features=fixed),
            "lists mapped from a file": datasets.load_from_disk(folder),
        }
        order = np.random.default_rng(0).permutation(len(rows))
        for name, data in kinds.items():
            numpy = data.with_format("numpy")
            by_rows = [order[start : start + _BATCH] for start in range(0, len(rows) - _BATCH + 1, _BATCH)]
            compare(f"huggingface, {name}", _loads(data), partial(numpy.iter, _BATCH), arguments)
            shuffled = _loads(loadax.from_huggingface(data).shuffle(0))
            compare(f"huggingface, {name}, shuffled", shuffled, partial(map, numpy.__getitem__, by_rows), arguments)


def _loads(data: Any) -> Run:
    return partial(loadax.Dataloader(data, _BATCH).iterate, 0)


def _iterations(data: Any) -> dict[str, Run]:
    """Grain's iteration of a dataset: rows ahead and then batches, or batches ahead."""
    runs: dict[str, Run] = {}
    for threads, ahead in _OPTIONS:
        options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=ahead)
        by_rows, by_batches = data.to_iter_dataset(options).batch(_BATCH), data.batch(_BATCH).to_iter_dataset(options)
        runs[f"{threads} threads, rows"] = partial(iter, by_rows)
        runs[f"{threads} threads, batches"] = partial(iter, by_batches)
    return runs


def _double(row: Any) -> Any:
    return {"x": row["x"] * 2, "y": row["y"]}


def _scale(row: Any, rng: np.random.Generator) -> Any:
    return {"x": row["x"] * np.float32(rng.random()), "y": row["y"]}


def grain_in(rows: Rows, arguments: argparse.Namespace) -> None:
    """A MapDataset, by loadax and by the best of Grain's options."""
    source = grain.MapDataset.source(rows)
    chains = {
        "source": source,
        "map": source.map(_double),
        "shuffle and random_map": source.shuffle(seed=1).random_map(_scale, seed=2),
    }
    for name, chain in chains.items():
        runs = _iterations(chain)
        taken = {options: min(seconds(run), seconds(run)) for options, run in runs.items()}
        best = min(taken, key=taken.__getitem__)
        compare(f"grain in, {name}; Grain: {best}", _loads(chain), runs[best], arguments)


def grain_out(rows: Rows, arguments: argparse.Namespace) -> None:
    """The same rows in loadax and in a plain source, through Grain."""
    plain, ours = _iterations(grain.MapDataset.source(rows)), _iterations(to_map_dataset({"x": rows.x, "y": rows.y}))
    for name in plain:
        compare(f"grain out, {name}", ours[name], plain[name], arguments)


_PARTS = {"huggingface": hugging_face, "grain-in": grain_in, "grain-out": grain_out}


def main() -> None:
    """Reads the arguments."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="*", choices=[*_PARTS, []], help="which; all of them by default")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rows", type=int, default=20_000)
    arguments = parser.parse_args()
    datasets.disable_progress_bars()
    print(f"{'':<42}  ratio  (range)            loadax      theirs")
    for part in arguments.parts or _PARTS:
        _PARTS[part](Rows(arguments.rows), arguments)


if __name__ == "__main__":
    main()
