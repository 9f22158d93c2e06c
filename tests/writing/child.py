"""Writes a store in a process of its own, for tests that interrupt, kill or measure it.

python -m tests.writing.child '{"path": "…", "rows": 100, …}'
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from loadax import from_source
from loadax.protocols import ArraySpec, Integers, Tree
from loadax.sources.base import Attributes
from loadax.writing.write import write_zarr
from loadax.writing.written_rows import Written
from tests.writing.rows import TreeRows, tree_of

ROOT = Path(__file__).parents[2]


class Computed:
    """Rows of 64 KiB that take no memory before they are read."""

    spec = ArraySpec((1 << 16,), np.dtype(np.uint8))
    attributes: Attributes = MappingProxyType({})

    def __init__(self, rows: int):
        self._rows = rows

    def __len__(self) -> int:
        return self._rows

    def read(self, positions: Integers) -> Tree:
        noise = np.random.default_rng(int(positions[0])).integers(0, 256, (len(positions), 1 << 16), np.uint8)
        noise[:, ::2] = 0
        return noise

    def describe(self) -> Any:
        return self._rows


def start(path: Path, **arguments: Any) -> subprocess.Popen[str]:
    """Starts to write `rows` rows of `tree_of` to `path`; see `main` for the rest."""
    command = [sys.executable, "-W", "error", "-m", "tests.writing.child", json.dumps({"path": str(path), **arguments})]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def ragged(rows: int, pause: float) -> Written:
    """Rows of different lengths, made by a map that takes `pause` seconds."""

    def grow(row: int) -> Any:
        time.sleep(pause)
        return {"tokens": np.arange(row % 13) + row, "label": np.int64(row)}

    data = from_source(list(range(rows))).map(grow)
    return Written(data.reader, data.order, "grow")


def main(
    path: str,
    rows: int,
    pause: float = 0.0,
    computed: bool = False,
    endless_from: int | None = None,
    of_any_length: bool = False,
    **arguments: Any,
) -> None:
    """Prints a line, writes the store, and prints the most memory in MiB that this process had."""
    share = arguments.pop("shard", None)
    data: Any = Computed(rows) if computed else TreeRows(tree_of(rows), pause=pause, endless_from=endless_from)
    data = ragged(rows, pause) if of_any_length else data
    print("begins", flush=True)  # noqa: T201 - so that a test can stop it some time after this, and not before
    write_zarr(data, path, shard=None if share is None else tuple(share), **arguments)
    status = Path("/proc/self/status").read_text()
    print(int(status.split("VmHWM:")[1].split()[0]) // 1024)  # noqa: T201


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
