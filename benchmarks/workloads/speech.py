"""Recordings of which overlapping chunks are fed; examples_of_rows.py has the functions."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from workloads.base import Data, Rows


@final
@dataclass(frozen=True)
class Speech:
    """Noise in one file, and where each recording ends.

    Args:
        name: Name of the workload.
        rows: Number of recordings.
        batch_size: Chunks of a batch.
    """

    name: str
    rows: int
    batch_size: int

    def __str__(self) -> str:
        return f"{self.name}: chunks of 30 s of {self.rows} recordings, to spectrograms; batch {self.batch_size}"

    def write(self, folder: Path) -> None:
        """The samples, and where they end."""
        from examples_of_rows import write_recordings

        np.save(folder / "ends.npy", write_recordings(folder / "audio.npy", self.rows))

    def data(self, folder: Path) -> Data:
        """Of no use here: examples_of_rows.py compares the chunks."""
        raise NotImplementedError

    def rows_of(self, batch: Any) -> Rows:
        """Of no use here."""
        raise NotImplementedError

    def compare(self, batch: Any, expected: Any) -> dict[str, float]:
        """Of no use here."""
        raise NotImplementedError
