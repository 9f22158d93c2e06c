"""Rows to write: trees in memory, and what counts, waits or fails while it is read."""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadax.core.tree import flatten, map_leaves
from loadax.protocols import ArraySpec, Integers, Tree
from tests.limits import ENDLESS


@dataclass(frozen=True)
class TreeRows:
    """Arrays in memory.

    Args:
        tree: of arrays with equal first dimensions.
        name: what they describe themselves as.
        pause: seconds that each read takes.
        endless_from: a position, from which on a read does not end.
        fails_at: a position that can't be read.
        asked: the positions that were asked for.
        attributes: what the numbers of leaves mean.
    """

    tree: Tree
    name: str = "rows"
    pause: float = 0.0
    endless_from: int | None = None
    fails_at: int | None = None
    asked: list[int] = field(default_factory=list)
    attributes: dict[str, Any] = field(default_factory=dict)

    @property
    def spec(self) -> Tree:
        return map_leaves(lambda leaf: ArraySpec(leaf.shape[1:], leaf.dtype), self.tree)

    def __len__(self) -> int:
        return len(flatten(self.tree)[0][0])

    def read(self, positions: Integers) -> Tree:
        beyond = self.endless_from is not None and len(positions) > 0 and int(positions.max()) >= self.endless_from
        time.sleep(ENDLESS if beyond else self.pause)
        self.asked.extend(positions.tolist())
        if self.fails_at in positions:
            raise OSError(f"position {self.fails_at} is gone")
        return map_leaves(lambda leaf: leaf[positions], self.tree)

    def describe(self) -> Any:
        return {"name": self.name}


def made_up(dtype: Any, shape: tuple[int, ...], seed: int = 0) -> NDArray[Any]:
    """Numbers that compress a little, with rows of zeros among them."""
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 2 if dtype is np.bool_ else 7, shape)
    values[rng.random(shape[0]) < 0.3] = 0
    return values.astype(dtype)


def tree_of(rows: int, seed: int = 0) -> dict[str, Any]:
    """A tree of three leaves of different widths."""
    return {
        "image": made_up(np.uint8, (rows, 8, 8, 3), seed),
        "more": {"field": made_up(np.float32, (rows, 300), seed + 1), "label": made_up(np.int64, (rows,), seed + 2)},
    }


def files(path: Path) -> dict[str, bytes]:
    """All files below a folder, by their paths in it."""
    # A file that was being written when its process was killed may leave its lock, which the next writer takes over.
    found = [each for each in sorted(path.rglob("*")) if each.is_file() and not each.name.endswith(".__lock")]
    return {each.relative_to(path).as_posix(): each.read_bytes() for each in found}


NAMES = {"image": ("image",), "more.field": ("more", "field"), "more.label": ("more", "label")}
"""The arrays that `tree_of` becomes, and where they stand in the tree."""
