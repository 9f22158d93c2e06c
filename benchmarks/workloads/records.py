"""Records of differing length in ArrayRecord files."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from workloads.base import Data, Rows, equal, numbered, numbers

LENGTH = 1024  # tokens that records are padded to
_FILES = 4


@final
class Padded:
    """The records, padded with zeros, and how long they are."""

    def __init__(self, paths: list[Path], file_rows: int):
        self._paths, self._file_rows = paths, file_rows
        self._readers: list[Any] = []

    def row(self, row: int) -> Any:
        """One record."""
        return {name: leaf[0] for name, leaf in self.batch(np.array([row])).items()}

    def batch(self, rows: Rows) -> Any:
        """Many: one call to the batched reader of each file, and a copy into the padded rows for each record."""
        readers = self._opened()
        files, inside = np.divmod(rows, self._file_rows)
        tokens, lengths = np.zeros((len(rows), LENGTH), np.uint16), np.empty(len(rows), np.int32)
        for file in np.unique(files).tolist():
            chosen = np.flatnonzero(files == file)
            for place, record in zip(chosen.tolist(), readers[file].read(inside[chosen].tolist()), strict=True):
                values = np.frombuffer(record, np.uint16)
                tokens[place, : len(values)] = values
                lengths[place] = len(values)
        return {"data": tokens, "length": lengths}

    def __reduce__(self) -> tuple[Any, ...]:
        return (Padded, (self._paths, self._file_rows))

    def _opened(self) -> list[Any]:
        if not self._readers:
            from array_record.python.array_record_module import ArrayRecordReader

            options = "readahead_buffer_size:0,max_parallelism:0"  # which its documentation advises for random access
            self._readers = [ArrayRecordReader(str(path), options) for path in self._paths]
        return self._readers


@final
@dataclass(frozen=True)
class Records:
    """uint16 tokens, 2 to 1024 a record."""

    name: str
    rows: int
    batch_size: int

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.rows:,} records of 2 to {LENGTH} uint16 in {_FILES} ArrayRecord files, padded; "
            f"batch {self.batch_size}, shuffled"
        )

    def paths(self, folder: Path) -> list[Path]:
        """Of the files, which hold equally many records."""
        return [folder / f"records-{file}.array_record" for file in range(_FILES)]

    def write(self, folder: Path) -> None:
        """The first two tokens hold the record's number."""
        from array_record.python.array_record_module import ArrayRecordWriter

        random = np.random.Generator(np.random.SFC64(0))
        lengths = random.integers(2, LENGTH, self.rows, endpoint=True)
        for file, path in enumerate(self.paths(folder)):
            writer = ArrayRecordWriter(str(path), "group_size:1")
            for row in range(file * self._file_rows, (file + 1) * self._file_rows):
                tokens: NDArray[np.uint16] = random.integers(0, 50_000, (1, lengths[row]), np.uint16)
                numbered(tokens, np.array([row]))
                writer.write(tokens.tobytes())
            writer.close()

    def data(self, folder: Path) -> Data:
        """The files."""
        return Padded(self.paths(folder), self._file_rows)

    def rows_of(self, batch: Any) -> Rows:
        """By the first two tokens."""
        return numbers(batch["data"])

    def compare(self, batch: Any, expected: Any) -> dict[str, float]:
        """To the bit."""
        return equal(batch, expected)

    @property
    def _file_rows(self) -> int:
        return self.rows // _FILES


FULL = (Records("records", 100_000, 256),)
QUICK = (Records("records", 2048, 256),)
