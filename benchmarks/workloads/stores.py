"""Fields and tokens in stores."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import tensorstore as ts
from numpy.lib.format import open_memmap
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from workloads.base import Arrays, Data, Rows, equal, numbered, numbers

SEQ_LEN = 1024
_FIELD = (64, 64, 8)
_MODES = 16  # smooth patterns that a field is made of
_STEP = 256  # a field's values are multiples of 1/256, as those of packed data are; zstd then halves them


@final
@dataclass(frozen=True)
class Stored:
    """Rows in a store, and how they are fed.

    Args:
        name: "fields" or "chunks" (zarr 3, compressed), "raw-fields", "raw-tokens" or "raw-tokens-small" (zarr 3, raw),
            or "windows" (a flat file of tokens).
        rows: Number of rows.
        batch_size: Rows of the global batch.
        chunk_rows: Rows of a chunk.
        shard_rows: Rows of a shard; 0: every chunk is a file.
        lanes: Lanes of the block shuffle; 0: single rows are shuffled.
        window: Window of the block shuffle.
    """

    name: str
    rows: int
    batch_size: int
    chunk_rows: int = 1
    shard_rows: int = 0
    lanes: int = 0
    window: int = 0

    def __str__(self) -> str:
        row = f"{SEQ_LEN + 1} uint16" if self._tokens else "x".join(map(str, _FIELD)) + " float32"
        chunks = f"chunks of {self.chunk_rows}" + (f" in shards of {self.shard_rows}" if self.shard_rows else "")
        store = {"windows": "windows of a flat file"}.get(
            self.name, ("raw" if self.name.startswith("raw") else "zstd") + f" zarr 3, {chunks}"
        )
        return f"{self.name}: {self.rows:,} rows of {row}, {store}; batch {self.batch_size}, shuffled"

    @property
    def _tokens(self) -> bool:
        return self.name in {"raw-tokens", "raw-tokens-small", "windows"}

    @property
    def _row_shape(self) -> tuple[int, ...]:
        return (SEQ_LEN + 1,) if self._tokens else _FIELD

    def write(self, folder: Path) -> None:
        """Writes the store, and the rows as a plain `.npy` file, for checks and for NumPy."""
        random = np.random.Generator(np.random.SFC64(0))
        if self.name == "windows":
            tokens = np.memmap(folder / "tokens.bin", np.uint16, "w+", shape=(self.rows * SEQ_LEN + 1,))
            for first, values in _token_rows(random, self.rows, SEQ_LEN):
                tokens[first * SEQ_LEN : first * SEQ_LEN + values.size] = values.ravel()
            return
        dtype = np.dtype(np.uint16 if self._tokens else np.float32)
        plain = open_memmap(folder / "rows.npy", mode="w+", dtype=dtype, shape=(self.rows, *self._row_shape))
        store = self._create(folder / "store", dtype)
        blocks = _token_rows(random, self.rows, SEQ_LEN + 1) if self._tokens else _field_rows(random, self.rows)
        for first, values in blocks:
            plain[first : first + len(values)] = values
            store[first : first + len(values)].write(values).result()

    def data(self, folder: Path) -> Data:
        """The rows as a memory-mapped NumPy array."""
        if self.name == "windows":
            tokens = np.asarray(np.memmap(folder / "tokens.bin", np.uint16, "r"))
            return Arrays(sliding_window_view(tokens, SEQ_LEN + 1)[::SEQ_LEN])
        return Arrays(mapped=folder / "rows.npy")

    def rows_of(self, batch: Any) -> Rows:
        """By the first values of the rows."""
        values = np.asarray(batch["tokens"] if isinstance(batch, dict) else batch)
        return numbers(values) if self._tokens else values[:, 0, 0, 0].astype(np.int64)

    def compare(self, batch: Any, expected: Any) -> dict[str, float]:
        """To the bit."""
        return equal(batch["tokens"] if isinstance(batch, dict) else batch, expected)

    def _create(self, path: Path, dtype: np.dtype[Any]) -> ts.TensorStore:
        codecs: list[Any] = [{"name": "bytes", "configuration": {"endian": "little"}}]
        if not self.name.startswith("raw"):
            codecs += [{"name": "zstd", "configuration": {"level": 1}}, {"name": "crc32c"}]
        chunk = [self.chunk_rows, *self._row_shape]
        if self.shard_rows:
            codecs = [{"name": "sharding_indexed", "configuration": {"chunk_shape": chunk, "codecs": codecs}}]
            chunk = [self.shard_rows, *self._row_shape]
        metadata = {
            "data_type": dtype.name,
            "shape": [self.rows, *self._row_shape],
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk}},
            "codecs": codecs,
        }
        spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{path}/"}, "metadata": metadata}
        return ts.open(spec, create=True).result()


def _token_rows(random: np.random.Generator, rows: int, length: int) -> Iterator[tuple[int, NDArray[Any]]]:
    """Rows of tokens, many at a time, each block with the number of its first.

    Their first two hold the row's number.
    """
    for first in range(0, rows, 1 << 14):
        block = np.arange(first, min(first + (1 << 14), rows))
        tokens = random.integers(0, 50_000, (len(block), length), np.uint16)
        numbered(tokens, block)
        yield first, tokens


def _field_rows(random: np.random.Generator, rows: int) -> Iterator[tuple[int, NDArray[Any]]]:
    """The same for fields: smooth patterns and a little noise; the first value is the row's number."""
    modes = random.standard_normal((_MODES, *_FIELD), np.float32).cumsum(1).cumsum(2).reshape(_MODES, -1) / _FIELD[0]
    for first in range(0, rows, 512):
        count = min(512, rows - first)
        fields = random.standard_normal((count, _MODES), np.float32) @ modes
        fields += np.float32(0.02) * random.standard_normal(fields.shape, np.float32)
        fields = np.round(fields * _STEP) / np.float32(_STEP)
        fields[:, 0] = np.arange(first, first + count)
        yield first, fields.reshape(count, *_FIELD)


FULL = (
    Stored("fields", 4096, 32, shard_rows=512),
    Stored("chunks", 8192, 32, chunk_rows=64, lanes=16, window=2),
    Stored("raw-fields", 4096, 32, chunk_rows=64),
    Stored("raw-tokens", 100_000, 256, chunk_rows=4096),
    Stored("raw-tokens-small", 100_000, 256, chunk_rows=64),
    Stored("windows", 100_000, 256),
)
QUICK = (
    Stored("fields", 256, 32, shard_rows=128),
    Stored("chunks", 256, 32, chunk_rows=8, lanes=4, window=2),
    Stored("raw-fields", 256, 32, chunk_rows=64),
    Stored("raw-tokens", 2048, 256, chunk_rows=512),
    Stored("raw-tokens-small", 2048, 256, chunk_rows=64),
    Stored("windows", 2048, 256),
)
