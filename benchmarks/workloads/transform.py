"""A user's function in pure Python, which holds the GIL for about 0.15 ms per row."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from workloads.base import Arrays, Data, Rows, equal

_VALUES = 2432  # that the loop goes over, about: the row's own, again and again


def work(row: NDArray[np.int32]) -> NDArray[np.int32]:
    """The row with a checksum of itself in its second place."""
    digest = 7
    for value in row.tolist() * round(_VALUES / len(row)):
        digest = (digest * 31 + value) & 0x7FFFFFFF
    out = row.copy()
    out[1] = digest
    return out


@final
class Worked:
    """The rows after the function."""

    def __init__(self, path: Path):
        self._path, self._rows = path, Arrays(mapped=path)

    def row(self, row: int) -> Any:
        """One of them."""
        return work(self.raw(row))

    def raw(self, row: int) -> Any:
        """One of them before the function."""
        return self._rows.row(row)

    def batch(self, rows: Rows) -> Any:
        """Many, one after the other."""
        return np.stack([self.row(row) for row in rows.tolist()])

    def __reduce__(self) -> tuple[Any, ...]:
        return (Worked, (self._path,))


@final
@dataclass(frozen=True)
class Transform:
    """int32[rows, width] in a memory-mapped file, and the function."""

    name: str
    rows: int
    width: int
    batch_size: int

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.rows:,} rows of {self.width} int32 through a function in pure Python; "
            f"batch {self.batch_size}, shuffled, 2 workers"
        )

    def write(self, folder: Path) -> None:
        """The first column holds the row's number."""
        rows = np.random.Generator(np.random.Philox(0)).integers(0, 50_000, (self.rows, self.width), np.int32)
        rows[:, 0] = np.arange(self.rows)
        np.save(folder / "rows.npy", rows)

    def data(self, folder: Path) -> Data:
        """What comes out of the function."""
        return Worked(folder / "rows.npy")

    def rows_of(self, batch: Any) -> Rows:
        """By the first column."""
        return np.asarray(batch)[:, 0].astype(np.int64)

    def compare(self, batch: Any, expected: Any) -> dict[str, float]:
        """To the bit."""
        return equal(batch, expected)


FULL = (Transform("transform", 200_000, 64, 64), Transform("transform-wide", 20_000, 1025, 64))
QUICK = (Transform("transform", 512, 64, 64), Transform("transform-wide", 512, 1025, 64))
