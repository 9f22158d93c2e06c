"""Seconds, decoded chunks and memory of writing a shuffled dataset, in the order of its source and of its positions.

python benchmarks/shuffled_writes.py [--rows 1_000_000] [--chunk-rows 16 64] [--format zarr parquet] [--json FILE]

Rows are 1 KiB, compressed by zstd. Each store is written in a process of its own.
"""

import argparse
import json
import logging
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from turns import machine

from loadax import from_parquet, from_source, from_zarr, write_zarr
from loadax.protocols import ArraySpec
from loadax.writing import source_order

_WIDTH = 1024
_PARQUET_MEMORY = 128 << 20  # smaller than the data, as it is for those who need this


class Rows:
    """Rows that compress a little."""

    def __init__(self, rows: int):
        self.spec = {"x": ArraySpec((_WIDTH,), np.dtype(np.uint8))}
        self._rows = rows
        self._some = np.random.default_rng(0).integers(0, 50, (1 << 16, _WIDTH), np.uint8)

    def __len__(self) -> int:
        return self._rows

    def read(self, rows: Any) -> Any:
        return {"x": self._some[rows % len(self._some)]}


class Counted:
    """A source, and the number of chunks that its reads decode."""

    def __init__(self, source: Any):
        self._source, self.spec, self.chunks = source, source.spec, source.chunks
        self.decoded: list[int] = []  # in each read; appended to by several threads

    def __len__(self) -> int:
        return len(self._source)

    def read(self, rows: Any) -> Any:
        self.decoded.append(len(np.unique(np.searchsorted(self.chunks, rows, "right"))))
        return self._source.read(rows)


def make(source: str, path: Path, rows: int, chunk_rows: int) -> None:
    """Writes the rows in chunks."""
    made = Rows(rows)
    if source == "zarr":
        write_zarr(from_source(made), path, chunk_rows=chunk_rows)
        return
    with pq.ParquetWriter(path, pa.schema({"x": pa.list_(pa.uint8(), _WIDTH)}), compression="zstd") as writer:
        for first in range(0, rows, chunk_rows):
            values = made.read(np.arange(first, min(first + chunk_rows, rows)))["x"]
            writer.write_table(pa.table({"x": pa.FixedSizeListArray.from_arrays(values.reshape(-1), _WIDTH)}))


def measure(source: str, path: str, order: str) -> dict[str, Any]:
    """Writes the rows shuffled, in this process."""
    warnings.simplefilter("ignore")  # of shuffle(), about the chunks
    data = from_zarr(path) if source == "zarr" else from_parquet(path, memory_bytes=_PARQUET_MEMORY)
    counted = Counted(data.source)
    if order == "positions":
        source_order.FEWER_CHUNKS = 1 << 60
    with tempfile.TemporaryDirectory(dir=Path(path).parent) as folder:
        began, cpu = time.perf_counter(), time.process_time()
        write_zarr(from_source(counted).shuffle(0), f"{folder}/shuffled.zarr")
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    peak = int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) // 1024
    decoded = sum(counted.decoded) / len(counted.chunks)
    return {"seconds": seconds, "cpu_seconds": cpu, "decodes_of_a_chunk": decoded, "peak_mib": peak}


def main() -> None:
    """Prints a line for each store and order, and writes them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--chunk-rows", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--format", nargs="+", choices=["zarr", "parquet"], default=["zarr", "parquet"])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(*options.measure)))
        return
    logging.basicConfig(level=logging.WARNING)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for source in options.format:
            for chunk_rows in options.chunk_rows:
                path = Path(folder) / f"{source}-{chunk_rows}"
                make(source, path, options.rows, chunk_rows)
                for order in ("positions", "source"):
                    command = [sys.executable, __file__, "--measure", source, str(path), order]
                    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
                    results.append({"format": source, "chunk_rows": chunk_rows, "order": order, **json.loads(output)})
                    print(results[-1], flush=True)
    if options.json:
        options.json.write_text(json.dumps({"rows": options.rows, "machine": machine(), "results": results}, indent=1))


if __name__ == "__main__":
    main()
