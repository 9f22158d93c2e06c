"""A dataset that gives its rows one by one, dicts of small arrays; as they are, and through a function of one row."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from workloads.base import Arrays, Data, Rows, equal


def scaled(row: Any) -> Any:
    """A function of one row, as short as such functions are."""
    return {"x": row["x"] * np.float32(2), "y": row["y"]}


@final
class Items:
    """An object with `__len__` and `__getitem__`, which is all that torch's `Dataset` asks for.

    Args:
        folder: of the arrays.
        mapped: whether each row goes through the function.
    """

    def __init__(self, folder: Path, mapped: bool):
        self._folder, self._mapped = folder, mapped
        self._x, self._y = (Arrays(mapped=folder / f"{name}.npy").whole for name in "xy")

    def __len__(self) -> int:
        return len(self._y)

    def __getitem__(self, row: int) -> Any:
        example = {"x": self._x[row], "y": self._y[row]}
        return scaled(example) if self._mapped else example

    def row(self, row: int) -> Any:
        """One of them."""
        return self[row]

    def batch(self, rows: Rows) -> Any:
        """Many: the loop that one writes by hand."""
        examples = [self[row] for row in rows.tolist()]
        return {name: np.stack([example[name] for example in examples]) for name in examples[0]}

    def __reduce__(self) -> tuple[Any, ...]:
        return (Items, (self._folder, self._mapped))


@final
@dataclass(frozen=True)
class OneByOne:
    """Dicts of float32[8] and int32[4], 48 bytes a row, by `__getitem__`."""

    name: str
    rows: int
    batch_size: int
    mapped: bool

    def __str__(self) -> str:
        through = ", each through a function" if self.mapped else ""
        return f"{self.name}: {self.rows:,} rows of 48 bytes by __getitem__{through}; batch {self.batch_size}, shuffled"

    def write(self, folder: Path) -> None:
        """The second leaf begins with the row's number."""
        random = np.random.Generator(np.random.Philox(0))
        np.save(folder / "x.npy", random.random((self.rows, 8), np.float32))
        np.save(folder / "y.npy", np.arange(self.rows, dtype=np.int32)[:, None] + np.arange(4, dtype=np.int32))

    def items(self, folder: Path) -> Items:
        """The rows before the function."""
        return Items(folder, mapped=False)

    def data(self, folder: Path) -> Data:
        """The rows, after the function where there is one."""
        return Items(folder, self.mapped)

    def rows_of(self, batch: Any) -> Rows:
        """By the second leaf."""
        return np.asarray(batch["y"])[:, 0].astype(np.int64)

    def compare(self, batch: Any, expected: Any) -> dict[str, float]:
        """To the bit."""
        return equal(batch, expected)


FULL = (OneByOne("rows", 200_000, 64, mapped=False), OneByOne("row-map", 200_000, 64, mapped=True))
QUICK = (OneByOne("rows", 512, 64, mapped=False), OneByOne("row-map", 512, 64, mapped=True))
