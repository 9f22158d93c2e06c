"""What the tests of filters share: data, and functions that can be recognised."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from loadax import Dataset, from_arrays

ROWS = 500
VALUES = (np.arange(ROWS) * 37) % 101
GROUPS = np.arange(ROWS) * 7 % 60


def data(rows: int = ROWS) -> Dataset:
    return from_arrays({"x": VALUES[:rows], "user": GROUPS[:rows]})


def small(example: Any) -> bool:
    return bool(example["x"] < 40)


SMALL = [row for row in range(ROWS) if VALUES[row] < 40]


def user(example: Any) -> str:
    return f"user {example['user']}"


def counted(fn: Callable[[Any], Any], calls: list[int]) -> Callable[[Any], Any]:
    def wrapped(example: Any) -> Any:
        calls.append(1)
        return fn(example)

    return wrapped


def rows_of(dataset: Dataset, epoch: int = 0) -> list[int]:
    size = len(dataset)
    found: Any = dataset.order.visits(np.full(size, epoch), np.arange(size)).rows
    return list(found.tolist())


def files(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


class Opaque:
    """A filter that can't be recognised."""

    def __call__(self, example: Any) -> bool:
        return True
