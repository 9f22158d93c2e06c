"""Datasets whose states, rows and plans are kept, each named by its verbs. A name keeps its meaning for ever."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import loadax
from loadax import Dataset, from_arrays, from_source

ROWS = 100
SEQ_LEN = 16


def numbers(rows: int = ROWS, first: int = 0) -> Dataset:
    return from_arrays({"x": np.arange(first, first + rows), "y": np.arange(rows, dtype=np.float32)})


def documents() -> Dataset:
    return from_source([np.arange(i, i + 1 + i * 7 % 13, dtype=np.int32) for i in range(60)])


def pairs() -> Dataset:
    lengths = [(1 + i * 5 % 11, 1 + i * 3 % 7) for i in range(40)]
    return from_source(
        [{"inputs": np.arange(i, i + n), "targets": np.arange(i, i + m)} for i, (n, m) in enumerate(lengths)]
    )


def is_even(example: Mapping[str, Any]) -> bool:
    return bool(example["x"] % 2 == 0)


def filtered(folder: Path | None = None) -> Dataset:
    return numbers().filter(is_even, None if folder is None else "even", index=folder)


def packed(folder: Path | None = None, **how: Any) -> Dataset:
    return documents().pack(SEQ_LEN, index=folder, **how)


def packed_by_leaf(folder: Path | None = None) -> Dataset:
    return pairs().pack({"inputs": 16, "targets": 12}, method="best_fit", index=folder)


CHAINS: dict[str, Callable[[], Dataset]] = {
    "in order": numbers,
    "shuffle": lambda: numbers().shuffle(1),
    "block shuffle": lambda: numbers().shuffle(2, block=8, window=3, lanes=4),
    "slice, shuffle": lambda: numbers()[3:80:2].shuffle(3),
    "shuffle, slice": lambda: numbers().shuffle(3).subset_per_epoch(range(50)),
    "repeat": lambda: numbers(30).shuffle(0).repeat(2),
    "split": lambda: numbers().split(0.3, seed=5)[1].shuffle(1),
    "split by counts": lambda: numbers().split([60, 30, 10], seed=5)[0],
    "select": lambda: numbers().select([5, 3, 99, 3]),
    "sample": lambda: numbers(10).sample(np.arange(10) + 1.0, 40, seed=2),
    "concat": lambda: loadax.concat([numbers(), numbers(20, 1000)]).shuffle(4),
    "mix": lambda: loadax.mix([numbers().shuffle(1), numbers(50, 1000).shuffle(2)], [0.7, 0.3], seed=6, version=1),
    "zip": lambda: loadax.zip({"a": numbers(), "b": numbers(ROWS, 500)}).shuffle(1),
    "windows": lambda: numbers().windows(4, 2, lead=1).shuffle(1),
    "filter": lambda: filtered().shuffle(9),
    "split_by": lambda: numbers().map(lambda row: {**row, "group": row["x"] // 4}).split_by("group", 0.5, seed=1)[0],
    "exclude": lambda: numbers().exclude([0, 5, 7]).shuffle(2),
    "random map": lambda: numbers().shuffle(1).map(lambda row, rng: {**row, "z": rng.integers(1000)}, rng=True, seed=3),
    "pack split": lambda: packed().shuffle(1),
    "pack best_fit": lambda: packed(method="best_fit", long="cut"),
    "pack first_fit": lambda: packed(method="first_fit", align=4, most_documents=3, value=-1),
    "pack with bos": lambda: packed(bos=7),
    "pack by leaf": packed_by_leaf,
}
