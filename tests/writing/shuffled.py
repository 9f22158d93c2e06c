"""Writes shuffled rows of a source in chunks, which logs what it decodes, in this process or one of its own.

python -m tests.writing.shuffled '{"path": "…", "log": "…", "rows": 100, …}'
"""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from loadax.dataset import Dataset
from loadax.io import from_source, write_zarr
from loadax.protocols import ArraySpec, Integers, Tree
from loadax.writing import source_order
from tests.limits import ENDLESS

ROOT = Path(__file__).parents[2]
SEED, CHUNK, WIDTH = 3, 16, 1000


class Chunks:
    """Rows in chunks of 16, which logs the rows of each read.

    Args:
        rows: Number of rows.
        log: File to which the first row of each read of consecutive rows is appended; None: only `reads` has them.
        endless_from: Row from which a read does not end.
    """

    spec = {"id": ArraySpec((), np.dtype(np.int64)), "x": ArraySpec((WIDTH,), np.dtype(np.uint8))}  # noqa: RUF012

    def __init__(self, rows: int, log: Path | None = None, endless_from: int | None = None):
        self._rows, self._log, self._endless_from = rows, log, endless_from
        self.chunks = range(0, rows, CHUNK)
        self.reads: list[Integers] = []

    def __len__(self) -> int:
        return self._rows

    def read(self, rows: Integers) -> Tree:
        self.reads.append(rows)
        consecutive = len(rows) > 1 and len(rows) == rows[-1] - rows[0] + 1  # others are samples, for the identity
        if self._log is not None and consecutive:
            with self._log.open("a") as log:
                log.write(f"{rows[0]}\n")
            if self._endless_from is not None and int(rows.max()) >= self._endless_from:
                time.sleep(ENDLESS)
        return {"id": rows, "x": ((rows[:, None] * 7 + np.arange(WIDTH)) % 251).astype(np.uint8)}

    def decoded(self) -> Counter[int]:
        """How often each chunk was decoded."""
        return Counter(chunk for rows in self.reads for chunk in np.unique(rows // CHUNK).tolist())


def shuffled(source: Chunks) -> Dataset:
    return from_source(source).shuffle(SEED)


def start(path: Path, **arguments: Any) -> subprocess.Popen[str]:
    """Starts to write; see `main` for the arguments."""
    command = [sys.executable, "-m", "tests.writing.shuffled", json.dumps({"path": str(path), **arguments})]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def main(
    path: str,
    rows: int,
    log: str | None = None,
    endless_from: int | None = None,
    endless_part: int | None = None,
    **arguments: Any,
) -> None:
    """Writes the store."""
    source_order.SPAN_BYTES = 64 << 10
    if endless_part is not None:
        read = source_order.SourceOrder.read

        def endless(self: Any, positions: Integers) -> Tree:
            if int(positions[0]) >= (endless_part or 0) * arguments["shard_rows"]:
                time.sleep(ENDLESS)
            return read(self, positions)

        source_order.SourceOrder.read = endless  # type: ignore[method-assign]
    write_zarr(shuffled(Chunks(rows, None if log is None else Path(log), endless_from)), path, **arguments)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
