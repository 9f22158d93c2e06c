"""Cells by genes as batches on devices: `python benchmarks/sparse.py [--cells 20000] [--genes 20000] [--rounds 5]`.

A matrix of float32 with `--density` of its entries, in memory and in an `.h5ad` file in chunks, is read once in random
order by loadax and by a loop, in alternating rounds: an epoch, or its first `--steps` batches. Both end with a dense
batch of `--batch` cells on the devices.

- memory: `pack_sparse` of a full shuffle; the loop places `X[rows].toarray()` of a permutation's rows.
- h5ad: packs of consecutive cells, shuffled; the loop reads the same runs by `backed.X[first:end].toarray()`.
- arrays: packs as they are placed, without making them dense, beside the same loop in memory.
- growth: megabytes of resident memory that an epoch from the file adds, beside the bytes of its entries.

Medians of cells per second and of ratios are printed, by the clock and by CPU time, and the bytes placed.
"""

import os

os.environ["JAX_PLATFORMS"] = "cpu"

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import h5py
import jax
import numpy as np
import psutil
import scipy.sparse

import loadax

Contestant = Callable[[], tuple[int, int]]
"""Reads an epoch; returns the cells and the bytes that were placed."""


def cells_by_genes(cells: int, genes: int, density: float) -> scipy.sparse.csr_matrix:
    """Counts whose number per cell differs as those of a sequencer do: log-normal."""
    generator = np.random.default_rng(0)
    lengths = generator.lognormal(np.log(density * genes), 0.4, cells).astype(np.int64).clip(1, genes)
    bounds = np.append(0, np.cumsum(lengths))
    columns = np.empty(bounds[-1], np.int32)
    for first, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        columns[first:end] = np.sort(generator.choice(genes, end - first, replace=False))
    values = generator.integers(1, 50, bounds[-1]).astype(np.float32)
    return scipy.sparse.csr_matrix((values, columns, bounds), shape=(cells, genes))


def write(path: Path, matrix: scipy.sparse.csr_matrix, chunk: int) -> None:
    """An `.h5ad` file with nothing but X."""
    with h5py.File(path, "w") as file:
        file.attrs["encoding-type"] = "anndata"
        group = file.create_group("X")
        group.attrs["encoding-type"] = "csr_matrix"
        group.attrs["shape"] = matrix.shape
        for name in ("data", "indices", "indptr"):
            group.create_dataset(name, data=getattr(matrix, name), chunks=None if name == "indptr" else (chunk,))


def epoch(loader: loadax.Dataloader, cells: int, steps: int) -> tuple[int, int]:
    """Cells of the first steps of an epoch of packs, and the bytes that are placed for them."""
    packs = 0
    for placed in islice(loader.iterate(), steps):
        packs += len(jax.block_until_ready(placed)["row_mask"])
    return cells, packs * sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(loader.dataset[0]))


def loop(batches: Iterator[Any]) -> tuple[int, int]:
    """Cells and bytes of dense batches that are placed one by one."""
    cells = placed = 0
    for batch in batches:
        jax.block_until_ready(jax.device_put(batch))
        cells += len(batch)
        placed += batch.nbytes
    return cells, placed


def pairs(
    matrix: scipy.sparse.csr_matrix, path: Path, batch: int, rows: int, steps: int | None
) -> dict[str, tuple[Contestant, Contestant]]:
    """Contestants by name: loadax's and the loop."""
    generator = np.random.default_rng(1)
    cells = matrix.shape[0]
    count = min(cells // batch, steps or cells)
    packs, dense = loadax.pack_sparse(loadax.from_sparse(matrix).shuffle(0), rows)
    stored, _ = loadax.pack_sparse(loadax.from_sparse(path), rows)
    group = h5py.File(path)["X"]

    def in_memory() -> Iterator[Any]:
        order = generator.permutation(cells)
        for step in range(count):
            yield matrix[order[step * batch : (step + 1) * batch]].toarray()

    def from_file() -> Iterator[Any]:
        order = generator.permutation(cells // rows) * rows
        bounds = group["indptr"][:]
        for step in range(count):
            parts = []
            for first in np.sort(order[step * batch // rows : (step + 1) * batch // rows]).tolist():
                begin, end = bounds[first], bounds[first + rows]
                flat = (group["data"][begin:end], group["indices"][begin:end], bounds[first : first + rows + 1] - begin)
                parts.append(scipy.sparse.csr_matrix(flat, shape=(rows, matrix.shape[1])))
            yield scipy.sparse.vstack(parts).toarray()

    def loader(data: loadax.Dataset, device_map: Any) -> Contestant:
        made = loadax.Dataloader(data.shuffle(1), batch // rows, device_map=device_map, num_epochs=1)
        epoch(made, count * batch, count)  # compiles
        return lambda: epoch(made, count * batch, count)

    return {
        "memory": (loader(packs, dense), lambda: loop(in_memory())),
        "arrays": (loader(packs, None), lambda: loop(in_memory())),
        "h5ad": (loader(stored, dense), lambda: loop(from_file())),
    }


def timed(contestant: Contestant) -> tuple[float, float, int]:
    """Cells per second by the clock and by CPU time, and bytes placed for each cell."""
    clock, processor = time.perf_counter(), time.process_time()
    cells, placed = contestant()
    return cells / (time.perf_counter() - clock), cells / (time.process_time() - processor), placed // cells


def main() -> None:
    """Prints a line of JSON for each pair."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("cells", 20_000), ("genes", 20_000), ("rounds", 5), ("batch", 512), ("rows", 64)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--density", type=float, default=0.05)
    parser.add_argument("--steps", type=int, help="batches of each turn (default: an epoch's)")
    options = parser.parse_args()
    matrix = cells_by_genes(options.cells, options.genes, options.density)
    entries = (matrix.data.nbytes + matrix.indices.nbytes) // options.cells
    print(f"{matrix.nnz:,} entries, {entries:,} bytes a cell; dense {4 * options.genes:,} bytes a cell")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cells.h5ad"
        write(path, matrix, 1 << 16)
        before = psutil.Process().memory_info().rss
        packs, dense = loadax.pack_sparse(loadax.from_sparse(path), options.rows)
        loader = loadax.Dataloader(packs.shuffle(1), options.batch // options.rows, device_map=dense, num_epochs=1)
        epoch(loader, options.cells, len(loader))
        grown = psutil.Process().memory_info().rss - before
        print(json.dumps({"pair": "growth", "MB": grown >> 20, "MB of entries": matrix.nnz * 8 >> 20}))
        for name, pair in pairs(matrix, path, options.batch, options.rows, options.steps).items():
            found = [[timed(each) for each in (pair if turn % 2 else pair[::-1])] for turn in range(options.rounds)]
            rounds = [each if turn % 2 else each[::-1] for turn, each in enumerate(found)]
            report: dict[str, Any] = {"pair": name}
            for which, what in enumerate(("cells/s", "cells/CPU s")):
                report[what] = [round(statistics.median(each[side][which] for each in rounds)) for side in (0, 1)]
                ratios = [ours[which] / theirs[which] for ours, theirs in rounds]
                report[f"{what}, ratio"] = round(statistics.median(ratios), 2)
            report["bytes a cell"] = [rounds[0][side][2] for side in (0, 1)]
            print(json.dumps(report))


if __name__ == "__main__":
    main()
