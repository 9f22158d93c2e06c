"""Rows in a Parquet file, and rows of four bytes in memory."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from workloads.base import Arrays, Data, Rows, equal

COLUMNS = tuple(f"x{number}" for number in range(16))
GROUP = 10_000  # rows


@final
@dataclass(frozen=True)
class Table:
    """Sixteen float32 columns and one of int32, in row groups of 10,000, not compressed."""

    name: str
    rows: int
    batch_size: int

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.rows:,} rows of 17 columns in Parquet; batch {self.batch_size:,}, shuffled in chunks"
        )

    def path(self, folder: Path) -> Path:
        """The file."""
        return folder / "rows.parquet"

    def write(self, folder: Path) -> None:
        """The last column holds the row's number."""
        import pyarrow as pa
        from pyarrow import parquet

        columns = self._columns()
        parquet.write_table(pa.table(columns), self.path(folder), row_group_size=GROUP, compression="none")

    def data(self, _folder: Path) -> Data:
        """The same rows in memory."""
        return Arrays(self._columns())

    def rows_of(self, batch: Any) -> Rows:
        """By the last column."""
        return np.asarray(batch["y"]).astype(np.int64)

    def compare(self, batch: Any, expected: Any) -> dict[str, float]:
        """To the bit."""
        return equal(batch, expected)

    def _columns(self) -> Any:
        random = np.random.default_rng(0)
        columns = {name: random.random(self.rows, np.float32) for name in COLUMNS}
        return {**columns, "y": np.arange(self.rows, dtype=np.int32)}


@final
@dataclass(frozen=True)
class Tiny:
    """int32[rows] in memory: what a step costs is not its rows."""

    name: str
    rows: int
    batch_size: int

    def __str__(self) -> str:
        return f"{self.name}: {self.rows:,} rows of 4 bytes in memory; batch {self.batch_size}, shuffled"

    def write(self, folder: Path) -> None:
        """Each row is its number."""
        np.save(folder / "tiny.npy", np.arange(self.rows, dtype=np.int32))

    def data(self, folder: Path) -> Data:
        """The array."""
        return Arrays(np.load(folder / "tiny.npy"))

    def rows_of(self, batch: Any) -> Rows:
        """The rows themselves."""
        return np.asarray(batch).astype(np.int64)

    def compare(self, batch: Any, expected: Any) -> dict[str, float]:
        """To the bit."""
        return equal(batch, expected)
