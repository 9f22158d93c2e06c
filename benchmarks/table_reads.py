"""Speed of tables beside what their users would write: `python benchmarks/table_reads.py [--rounds 5] [--folder PATH]`.

Each round times every pair in turn, in alternating order, and gives a ratio of rows per second, and one of rows per
second of CPU time, which other load on the machine changes less. The medians of these ratios are printed, with the
medians of the rows per second. All in one process, on one CPU device.

- arrow: `from_arrow(table).read(rows)` beside `table.take(rows)`, of 1,024 and of 65,536 random rows in memory.
- arrow chunks: the same, of a table in record batches of 10,000 rows.
- parquet chunks: an epoch of `Dataloader(data.shuffle(0, block="chunks"))`, which shuffles and places. Beside a loop
  over `pq.ParquetFile.iter_batches` in file order that makes NumPy arrays and places them by `jax.device_put`; (5
  epochs) five of each, where loadax decodes a row group once and keeps it; (host) beside that loop's record batches
  alone, without arrays, placing or a shuffle; and (shuffled) beside a loop that does what loadax does: row groups in
  random order, 32 of them read at a time, their rows permuted, cut and placed.
- parquet full: `from_parquet(path).read(rows)` of random rows, row groups in memory, beside `hf[rows]`.
- jsonl: batches of random rows of tokens of `from_jsonl`, beside a stream of Hugging Face with its shuffle buffer, and
  beside `hf[rows]` of the table that Hugging Face makes of the file once; (converted) of the store that `write_zarr`,
  and so `loadax convert`, makes of it once, beside the same.
"""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import jax
import numpy as np
import pyarrow as pa
from pyarrow import parquet

import loadax

ROWS, GROUP, OPEN = 1_000_000, 10_000, 32
LINES, LENGTH, BATCH = 20_000, 512, 256

Pair = tuple[str, int, Callable[[], Any], Callable[[], Any]]
"""Name, rows of a call, loadax's call and the other one."""


def table() -> pa.Table:
    """16 float32 and an int32."""
    generator = np.random.default_rng(0)
    columns = {f"x{number}": generator.random(ROWS, dtype=np.float32) for number in range(16)}
    return pa.table({**columns, "y": np.arange(ROWS, dtype=np.int32)})


def arrow_pairs(whole: pa.Table) -> Iterator[Pair]:
    """Random rows of a table in memory."""
    generator = np.random.default_rng(1)
    # Copied, so that no two record batches share memory.
    parts = [
        pa.table({name: np.array(whole[name].slice(first, GROUP)) for name in whole.column_names})
        for first in range(0, ROWS, GROUP)
    ]
    for name, data in (("arrow", whole), ("arrow chunks", pa.concat_tables(parts))):
        opened = loadax.from_arrow(data)
        for count, calls in ((1024, 64), (65_536, 8)):  # each takes longer than a time slice of the machine
            rows = [generator.integers(0, ROWS, count) for _ in range(calls)]
            yield (
                f"{name}, {count:,} rows",
                calls * count,
                lambda opened=opened, rows=rows: [opened.read(each) for each in rows],  # type: ignore[misc]
                lambda data=data, rows=rows: [data.take(pa.array(each)) for each in rows],  # type: ignore[misc]
            )


def parquet_pairs(path: Path, folder: Path) -> Iterator[Pair]:
    """Epochs of a chunk shuffle, and random rows from row groups in memory."""
    for batch in (1024, 8192, 65_536):

        def epochs(count: int, batch: int = batch) -> None:
            data = loadax.from_parquet(path).shuffle(0, block="chunks", lanes=8)
            last = None
            for last in loadax.Dataloader(data, batch_size=batch, num_epochs=count):  # noqa: B007
                pass
            jax.block_until_ready(last)

        def loop(placed: bool, count: int = 1, batch: int = batch) -> None:
            last: Any = None
            for _ in range(count):
                for part in parquet.ParquetFile(path).iter_batches(batch):
                    last = {name: part[name].to_numpy() for name in part.schema.names} if placed else part
                    last = jax.device_put(last) if placed else last
            if placed:
                jax.block_until_ready(last)

        def shuffled(batch: int = batch) -> None:
            generator, file, last = np.random.default_rng(0), parquet.ParquetFile(path), None
            for groups in np.array_split(generator.permutation(ROWS // GROUP), -(-ROWS // GROUP // OPEN)):
                part = file.read_row_groups(groups.tolist())
                columns = {name: part[name].to_numpy() for name in part.column_names}
                order = generator.permutation(len(part))
                for first in range(0, len(part), batch):
                    rows = order[first : first + batch]
                    last = jax.device_put({name: column[rows] for name, column in columns.items()})
            jax.block_until_ready(last)

        epoch, five = partial(epochs, 1), partial(epochs, 5)
        yield f"parquet chunks (shuffled), {batch:,}", ROWS, epoch, shuffled
        yield f"parquet chunks, batches of {batch:,}", ROWS, epoch, partial(loop, True)
        yield f"parquet chunks (5 epochs), {batch:,}", 5 * ROWS, five, partial(loop, True, 5)
        yield f"parquet chunks (host), {batch:,}", ROWS, epoch, partial(loop, False)
    opened = loadax.from_parquet(path)
    opened.read(np.arange(0, ROWS, GROUP))  # every row group is in memory
    hf = datasets.load_dataset("parquet", data_files=str(path), split="train", cache_dir=str(folder / "hf"))
    generator = np.random.default_rng(2)
    rows = [generator.integers(0, ROWS, 1024) for _ in range(4)]
    for name, other in (("hf[rows]", hf), ("hf numpy[rows]", hf.with_format("numpy"))):
        yield (
            f"parquet full beside {name}, 1,024 rows",
            4 * 1024,
            lambda: [opened.read(each) for each in rows],
            lambda other=other: [other[each] for each in rows],  # type: ignore[misc]
        )


def jsonl_pairs(path: Path, folder: Path) -> Iterator[Pair]:
    """Batches of rows of tokens."""
    opened = loadax.from_jsonl(path)
    generator = np.random.default_rng(3)
    rows = [generator.integers(0, LINES, BATCH) for _ in range(20)]

    def ours() -> None:
        for each in rows:
            opened.read(each)

    stream = datasets.load_dataset("json", data_files=str(path), split="train", streaming=True)
    kept = datasets.load_dataset("json", data_files=str(path), split="train", cache_dir=str(folder / "hf"))

    def streamed() -> None:
        batches = iter(stream.shuffle(seed=0, buffer_size=1000).batch(BATCH))
        for _ in rows:
            np.asarray(next(batches)["tokens"])

    def one_by_one() -> None:
        for each in rows:
            np.stack([np.asarray(json.loads(line)["tokens"]) for line in _lines(path, each)])

    yield "jsonl beside an HF stream", BATCH * len(rows), ours, streamed
    yield "jsonl beside json.loads of each line", BATCH * len(rows), ours, one_by_one
    numpy = kept.with_format("numpy")
    if not (store := folder / "tokens.zarr").exists():
        loadax.write_zarr(opened, store, progress=False)
    converted = loadax.from_zarr(store)

    def of_table() -> None:
        for each in rows:
            numpy[each]["tokens"]

    yield "jsonl beside hf numpy[rows]", BATCH * len(rows), ours, of_table
    name = "jsonl (converted) beside hf numpy[rows]"
    yield name, BATCH * len(rows), lambda: [converted.read(each) for each in rows], of_table


_KEPT: dict[Path, list[bytes]] = {}


def _lines(path: Path, rows: Any) -> list[bytes]:
    lines = _KEPT.setdefault(path, path.read_bytes().splitlines()) if path not in _KEPT else _KEPT[path]
    return [lines[row] for row in rows.tolist()]


def seconds(call: Callable[[], Any]) -> tuple[float, float]:
    """Wall time and CPU time of a call."""
    began, cpu = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - began, time.process_time() - cpu


def main() -> None:
    """Runs all pairs and prints a line for each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="folder for the files (default: a temporary one)")
    parser.add_argument("--only", default="", help="run only pairs whose name contains this")
    options = parser.parse_args()
    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        whole = table()
        if not (path := folder / "rows.parquet").exists():
            parquet.write_table(whole, path, row_group_size=GROUP)
        if not (lines := folder / "tokens.jsonl").exists():
            tokens = np.random.default_rng(4).integers(0, 50_000, (LINES, LENGTH)).tolist()
            lines.write_text("".join(json.dumps({"tokens": row}) + "\n" for row in tokens))
        pairs = [*arrow_pairs(whole), *parquet_pairs(path, folder), *jsonl_pairs(lines, folder)]
        for name, rows, ours, other in pairs:
            if options.only not in name:
                continue
            times: list[tuple[tuple[float, float], tuple[float, float]]] = []
            for turn in range(-1, options.rounds):  # the first is a rehearsal
                first = seconds(ours) if turn % 2 else None
                second = seconds(other)
                times.append((first or seconds(ours), second))
            wall, cpu = ([(mine[kind], theirs[kind]) for mine, theirs in times[1:]] for kind in (0, 1))
            mine, theirs = (rows / statistics.median(column) for column in zip(*wall, strict=True))
            ratios = "  ".join(f"{kind} {ratio(pairs)}" for kind, pairs in (("ratio", wall), ("of CPU time", cpu)))
            print(f"{name:45} {mine:12,.0f} {theirs:12,.0f} rows/s  {ratios}")


def ratio(times: list[tuple[float, float]]) -> str:
    """Median, least and largest ratio of the times of pairs."""
    ratios = [theirs / mine for mine, theirs in times]
    return f"{statistics.median(ratios):6.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


if __name__ == "__main__":
    main()
