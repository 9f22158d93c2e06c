"""The data that every contestant feeds: written once a run, read by path, and every row says which one it is."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

_CHUNK = 20_000  # rows written at a time


@final
@dataclass(frozen=True)
class Workload:
    """Rows and how they are fed.

    Args:
        name: "tokens", uint16[rows, 1025] in a memory-mapped file, or "images", a dict of uint8[rows, 32, 32, 3] and int32[rows]
            in memory.
        rows: how many.
        batch_size: of the global batch.
    """

    name: str
    rows: int
    batch_size: int

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches in the rows."""
        return self.rows // self.batch_size

    def __str__(self) -> str:
        kind = {"tokens": "1025 uint16, memory-mapped", "images": "{32x32x3 uint8, int32}, in memory"}[self.name]
        return f"{self.name}: {self.rows:,} rows of {kind}; batch {self.batch_size}, shuffled"

    def write(self, folder: Path) -> None:
        """Writes the rows, the same ones each time. The tokens' first two columns, and the labels, hold the row's number."""
        random = np.random.Generator(np.random.Philox(0))
        if self.name == "tokens":
            tokens = open_memmap(folder / "tokens.npy", mode="w+", dtype=np.uint16, shape=(self.rows, 1025))
            for first in range(0, self.rows, _CHUNK):
                rows = np.arange(first, min(first + _CHUNK, self.rows))
                tokens[rows] = random.integers(0, 50_000, (len(rows), 1025), np.uint16)
                tokens[rows, 0], tokens[rows, 1] = rows & 0xFFFF, rows >> 16
        else:
            np.save(folder / "images.npy", random.integers(0, 256, (self.rows, 32, 32, 3), np.uint8))
            np.save(folder / "labels.npy", np.arange(self.rows, dtype=np.int32))

    def load(self, folder: Path) -> Any:
        """The rows as NumPy arrays: one array, or a dict of them."""
        if self.name == "tokens":
            # A plain array over the map: np.memmap's own bookkeeping would slow down every slice.
            return np.asarray(np.load(folder / "tokens.npy", mmap_mode="r"))
        return {"image": np.load(folder / "images.npy"), "label": np.load(folder / "labels.npy")}

    def rows_of(self, batch: Any) -> NDArray[np.int64]:
        """Which rows a batch holds, by what stands in it."""
        if self.name == "tokens":
            low, high = np.asarray(batch)[:, :2].astype(np.int64).T
            return low + (high << 16)
        return np.asarray(batch["label"]).astype(np.int64)


FULL = {"tokens": Workload("tokens", 200_000, 256), "images": Workload("images", 50_000, 1024)}
QUICK = {"tokens": Workload("tokens", 2048, 256), "images": Workload("images", 8192, 1024)}
