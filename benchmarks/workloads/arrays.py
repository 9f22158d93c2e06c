"""Tokens in a memory-mapped file, and images in memory."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.lib.format import open_memmap

from workloads.base import Arrays, Data, Rows, equal, numbered, numbers

_CHUNK = 20_000  # rows written at a time


@final
@dataclass(frozen=True)
class Tokens:
    """uint16[rows, 1025] in a memory-mapped file."""

    name: str
    rows: int
    batch_size: int

    def __str__(self) -> str:
        return f"{self.name}: {self.rows:,} rows of 1025 uint16, memory-mapped; batch {self.batch_size}, shuffled"

    def write(self, folder: Path) -> None:
        """The first two columns hold the row's number."""
        random = np.random.Generator(np.random.Philox(0))
        tokens = open_memmap(folder / "tokens.npy", mode="w+", dtype=np.uint16, shape=(self.rows, 1025))
        for first in range(0, self.rows, _CHUNK):
            rows = np.arange(first, min(first + _CHUNK, self.rows))
            tokens[rows] = random.integers(0, 50_000, (len(rows), 1025), np.uint16)
            numbered(tokens[rows[0] : rows[-1] + 1], rows)

    def data(self, folder: Path) -> Data:
        """The map."""
        return Arrays(mapped=folder / "tokens.npy")

    def rows_of(self, batch: Any) -> Rows:
        """By the first two tokens."""
        return numbers(batch)

    def compare(self, batch: Any, expected: Any) -> dict[str, float]:
        """To the bit."""
        return equal(batch, expected)


@final
@dataclass(frozen=True)
class Images:
    """A dict of uint8[rows, 32, 32, 3] and int32[rows] in memory."""

    name: str
    rows: int
    batch_size: int

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.rows:,} rows of {{32x32x3 uint8, int32}}, in memory; batch {self.batch_size}, shuffled"
        )

    def write(self, folder: Path) -> None:
        """The labels are the rows' numbers."""
        random = np.random.Generator(np.random.Philox(0))
        np.save(folder / "images.npy", random.integers(0, 256, (self.rows, 32, 32, 3), np.uint8))
        np.save(folder / "labels.npy", np.arange(self.rows, dtype=np.int32))

    def data(self, folder: Path) -> Data:
        """The arrays."""
        return Arrays({"image": np.load(folder / "images.npy"), "label": np.load(folder / "labels.npy")})

    def rows_of(self, batch: Any) -> Rows:
        """By the label."""
        return np.asarray(batch["label"]).astype(np.int64)

    def compare(self, batch: Any, expected: Any) -> dict[str, float]:
        """To the bit."""
        return equal(batch, expected)


FULL = (Tokens("tokens", 200_000, 256), Images("images", 50_000, 1024))
QUICK = (Tokens("tokens", 2048, 256), Images("images", 8192, 1024))
